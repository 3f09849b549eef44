//! Malformed pages.
