//! Launches the kernel of split.cu, which makes plain values of BYTE_STREAM_SPLIT pages.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::SplitArgs;

/// Queues a block for each of the `count` pages in the list at `items`.
pub(super) fn launch(stream: &Stream, table: &Table, items: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the table and the list hold `count` pages and live until the stream has been synchronised; what the pages
    // are expanded to, too.
    unsafe { stream.launch(count, &SplitArgs { pages, columns, states, items, fault, count: count.into() }) }
}
