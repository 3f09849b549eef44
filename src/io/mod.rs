//! From a plan's ranges to bytes in device or host memory, and the ledger of how they got there.
//!
//! [`fetch::Fetcher`] takes the ranges of one batch and hands each to its route: `cufile.rs` for direct ones, `posix.rs`
//! for the host's, whose bytes come from a [`source::Source`]: a file, memory or, through `object.rs`, an object store.
//! Every operation is entered in the [`ledger`].

mod compat;
pub mod cufile;
pub mod fetch;
pub mod host;
pub mod ledger;
mod pool;
mod posix;
mod scatter;
pub mod source;

pub use source::Source;
