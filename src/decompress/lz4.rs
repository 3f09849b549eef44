//! Raw LZ4 pages.

use crate::device::Stream;
use crate::error::{Error, Result};
use crate::kernels::abi::Lz4Args;

/// Queues the decompression of pages: from `source` to `body`, the levels of V2 pages as they are.
///
/// `pages` is the address of an array of [`abi::Page`](crate::kernels::abi::Page), `items` of `count` indices (`u32`)
/// into it, `fault` of a [`FaultSlot`](crate::kernels::abi::FaultSlot). A malformed page is a fault with its offset in
/// `source`; its body then holds anything.
///
/// # Safety
/// The addresses are valid as said until the kernel is done, and so are `source` and `body` of every page named, for as
/// many bytes as the page says.
pub unsafe fn launch(stream: &Stream, pages: u64, items: u64, count: usize, fault: u64) -> Result<()> {
    let blocks = u32::try_from(count).map_err(|_| Error::Argument(format!("{count} pages in one launch")))?;
    // SAFETY: the caller's promise.
    unsafe { stream.launch(blocks, &Lz4Args { pages, items, fault, count: u64::from(blocks) }) }
}
