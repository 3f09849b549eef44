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
#[cfg(feature = "object-store")]
mod object;
pub(crate) mod pool;
mod posix;
#[cfg(feature = "object-store")]
mod redact;
mod scatter;
pub mod source;

/// The crate whose stores [`Source::from_store`] takes.
#[cfg(feature = "object-store")]
pub use object_store;
pub use source::Source;
