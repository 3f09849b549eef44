//! Snappy pages.
