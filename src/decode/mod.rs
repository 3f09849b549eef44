//! From plain page bodies to arrays.
pub mod dictionary;
pub mod fixed;
pub mod levels;
pub mod strings;
pub mod utf8;
