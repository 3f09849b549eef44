//! Launches the kernel that takes small ranges from one packed buffer to their places in the slab.

use crate::device::Stream;
use crate::error::{Error, Result};
use crate::kernels::abi::ScatterArgs;

/// Ranges lie in the packed buffer at multiples of this, as they do in the slab, so that copies are wide.
pub(super) const ALIGN: usize = 16;

/// A range's way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Offset in the packed buffer.
    pub(super) from: usize,
    /// Offset in the slab.
    pub(super) to: u64,
    /// Bytes.
    pub(super) bytes: usize,
}

/// Queues the scatter of `count` entries at a device address, a block each.
pub(super) fn launch(stream: &Stream, entries: u64, count: usize) -> Result<()> {
    let blocks = u32::try_from(count)
        .ok()
        .filter(|it| *it <= i32::MAX as u32) // the largest grid that CUDA launches in x
        .ok_or_else(|| Error::Argument("too many small ranges for one batch".into()))?;
    // SAFETY: the entries and both buffers that they name are held by the caller until the stream is done with them.
    unsafe { stream.launch(blocks, &ScatterArgs { entries, count: count as u64 }) }
}
