//! From a plan's ranges to bytes in device or host memory, and the ledger of how they got there.
//!
//! [`fetch::Fetcher`] takes the ranges of one batch and hands each to its route: `cufile.rs`, `posix.rs` or `object.rs`.
//! Every operation is entered in the [`ledger`].

pub mod fetch;
pub mod host;
pub mod ledger;
pub mod scatter;
pub mod source;

pub use source::Source;
