//! From chunks in a slab to the page table.

pub mod header;
