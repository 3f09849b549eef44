//! From chunks in a slab to the page table.
//!
//! [`header::parse`] reads the page headers of many chunks on the device in one launch and hands back a [`PageTable`];
//! `decompress` and `decode` take it from there.

pub mod crc;
mod desc;
pub mod header;

pub use desc::{ALL_VALUES, ChunkInput, PageTable};
