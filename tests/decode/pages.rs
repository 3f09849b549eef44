//! Pages written by hand.
