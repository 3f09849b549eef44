//! Launches the kernel of dictionary.cu. Dictionaries of fixed-width values need none: their PLAIN values are read in
//! place.

use super::Table;
use crate::device::Stream;
use crate::error::Result;
use crate::kernels::abi::DictionaryStringsArgs;

pub(super) fn launch(stream: &Stream, table: &Table, items: u64, count: u32) -> Result<()> {
    let Table { pages, states, fault, .. } = *table;
    // SAFETY: the table and the list hold `count` pages and live until the stream has been synchronised.
    unsafe { stream.launch(count, &DictionaryStringsArgs { pages, states, items, fault, count: count.into() }) }
}
