//! Page-locked buffers between the host's reads and the device: two to a reading thread, so that one is filled while
//! the other is copied.

use crate::device::{Event, Gpu, PinnedBuffer, Stream};
use crate::error::Result;

/// A reading thread's way to the device: a stream of its own and two bounce buffers, which grow to what is asked of them
/// and are kept.
#[derive(Debug)]
pub(crate) struct Lane {
    stream: Stream,
    slots: [Slot; 2],
    turn: usize,
    /// The slot of the round's last copy.
    last: Option<usize>,
}

#[derive(Debug)]
struct Slot {
    buffer: PinnedBuffer,
    copied: Event,
    /// Whether a copy out of the buffer may still be under way.
    busy: bool,
}

impl Slot {
    fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { buffer: gpu.alloc_pinned(0)?, copied: gpu.new_event()?, busy: false })
    }

    /// The buffer, once the copy out of it is done, with room for `bytes`.
    fn free_buffer(&mut self, gpu: &Gpu, bytes: usize) -> Result<&mut PinnedBuffer> {
        if self.busy {
            self.copied.synchronize()?;
            self.busy = false;
        }
        if self.buffer.len() < bytes {
            self.buffer = gpu.alloc_pinned(0)?; // before the larger one is asked for
            self.buffer = gpu.alloc_pinned(bytes.next_power_of_two())?;
        }
        Ok(&mut self.buffer)
    }
}

impl Lane {
    /// A lane with empty buffers.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { stream: gpu.new_stream()?, slots: [Slot::new(gpu)?, Slot::new(gpu)?], turn: 0, last: None })
    }

    /// The lane's stream.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Fills a buffer through `fill` and queues its copy to the device at `address`; `ready` comes before the first copy
    /// of a round.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are device memory of this lane's device until the stream has been waited for.
    pub(crate) unsafe fn send(
        &mut self,
        address: u64,
        bytes: usize,
        ready: Option<&Event>,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let gpu = self.stream.gpu().clone();
        let slot = &mut self.slots[self.turn];
        let buffer = slot.free_buffer(&gpu, bytes)?;
        fill(&mut buffer[..bytes])?;
        if let (None, Some(ready)) = (self.last, ready) {
            self.stream.wait(ready)?;
        }
        slot.busy = true;
        // SAFETY: the target is the caller's promise; the buffer stays until `copied` was waited for, or the stream.
        unsafe { gpu.backend().copy_to_device(self.stream.raw(), address, slot.buffer.as_ptr(), bytes)? };
        slot.copied.record(&self.stream)?;
        self.last = Some(self.turn);
        self.turn ^= 1;
        Ok(())
    }

    /// Ends a round: later work on `stream` waits for its copies.
    pub(crate) fn end(&mut self, stream: Option<&Stream>) -> Result<()> {
        match (self.last.take(), stream) {
            // Copies of one stream are in order, so the last is enough.
            (Some(last), Some(stream)) => stream.wait(&self.slots[last].copied),
            _ => Ok(()),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The buffers go with the lane. A failure is sticky, and whoever uses the device next reports it.
        let _ = self.stream.gpu().backend().synchronize(self.stream.raw());
    }
}
