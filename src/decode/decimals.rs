//! Launches the kernel of decimals.cu, once the references to the bytes of each slot are known to be whole.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::ByteDecimalsArgs;

/// Whether the kernel makes decimals of this many bytes.
pub(super) fn is_sound(out_width: u32) -> bool {
    matches!(out_width, 16 | 32)
}

pub(super) fn launch(stream: &Stream, table: &Table, items: u64, count: u32) -> Result<()> {
    let Table { pages, columns, states, fault } = *table;
    // SAFETY: the list holds `count` parts of pages of the table, and both live until the stream has been synchronised.
    unsafe { stream.launch(count, &ByteDecimalsArgs { pages, columns, states, items, fault, count: count.into() }) }
}
