//! Small ranges from one packed buffer to their places.
