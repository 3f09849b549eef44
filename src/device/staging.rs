//! Many small host arrays to the device in one copy.

use bytemuck::Pod;

use super::{DeviceBuffer, PinnedBuffer, Stream};
use crate::error::Result;

/// Arrays that will travel together. Push them, then [`upload`](Staging::upload).
#[derive(Debug, Default)]
pub struct Staging {
    bytes: Vec<u8>,
}

/// Where a pushed array will lie; resolved by [`Staged::address`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

/// The alignment of every array, enough for any kernel struct and 16-byte loads.
const ALIGN: usize = 16;

impl Staging {
    /// Adds an array.
    pub fn push<T: Pod>(&mut self, items: &[T]) -> Slot {
        let slot = Slot(self.bytes.len() as u64);
        self.bytes.extend_from_slice(bytemuck::cast_slice(items));
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        slot
    }

    /// Copies all arrays to the device: one allocation, one copy on `stream`.
    pub fn upload(self, stream: &Stream, what: &'static str) -> Result<Staged> {
        let device = stream.gpu().alloc(self.bytes.len() as u64, stream, what)?;
        let mut pinned = stream.gpu().alloc_pinned(self.bytes.len())?;
        pinned.copy_from_slice(&self.bytes);
        let staged = Staged { device, stream: stream.clone(), pinned };
        if !staged.device.is_empty() {
            // SAFETY: the pinned memory lives in the result, whose drop waits for the stream.
            unsafe { stream.copy_to_device(&staged.device, 0, &staged.pinned)? };
        }
        Ok(staged)
    }
}

/// Arrays on the device. Dropping it waits for the stream: the copy reads its pinned memory. So keep it until the
/// stream has been synchronised anyway; then the wait returns at once.
#[derive(Debug)]
#[must_use]
pub struct Staged {
    device: DeviceBuffer,
    stream: Stream,
    pinned: PinnedBuffer,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // A failure here is sticky and the next call reports it.
        let _ = self.stream.gpu().backend().synchronize(self.stream.raw());
    }
}

impl Staged {
    /// The device address of a pushed array.
    pub fn address(&self, slot: Slot) -> u64 {
        self.device.address() + slot.0
    }
}
