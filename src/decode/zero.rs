//! Zeroes what no value fills: words that pages share, and padding. Recycled device memory never reaches a consumer.

use crate::device::staging::{Slot, Staging};
use crate::device::{DeviceBuffer, Stream};
use crate::error::Result;
use crate::kernels::abi::{ZeroArgs, ZeroEntry};

/// Bytes that one block zeroes.
const ZERO_PART: u64 = 64 << 10;

/// Ranges to be zeroed.
#[derive(Debug, Default)]
pub(super) struct Zeros(Vec<ZeroEntry>);

impl Zeros {
    /// Adds a buffer from an offset to its end.
    pub(super) fn push(&mut self, buffer: &DeviceBuffer, from: u64) {
        for start in (from..buffer.len()).step_by(ZERO_PART as usize) {
            let bytes = ZERO_PART.min(buffer.len() - start);
            self.0.push(ZeroEntry { target: buffer.address() + start, bytes });
        }
    }

    pub(super) fn stage(&self, staging: &mut Staging) -> Slot {
        staging.push(&self.0)
    }

    pub(super) fn launch(&self, stream: &Stream, entries: u64) -> Result<()> {
        let count = super::blocks(self.0.len())?;
        // SAFETY: the entries lie inside buffers that are freed in the order of this stream.
        unsafe { stream.launch(count, &ZeroArgs { entries, count: count.into() }) }
    }
}
