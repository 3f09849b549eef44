//! Launches the kernel of levels.cu.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::LevelsArgs;

pub(super) fn launch(stream: &Stream, table: &Table, items: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the table and the list hold `count` pages and live until the stream has been synchronised.
    unsafe { stream.launch(count, &LevelsArgs { pages, columns, states, items, fault, count: count.into() }) }
}
