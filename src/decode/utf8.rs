//! Launches the kernel of utf8.cu.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::Utf8Args;

pub(super) fn launch(stream: &Stream, table: &Table, items: u64, bases: u64, bytes: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the lists hold `count` parts of pages of the table, and all live until the stream has been synchronised.
    unsafe {
        stream.launch(count, &Utf8Args { pages, columns, states, items, bases, bytes, fault, count: count.into() })
    }
}
