//! Small ranges from one packed buffer to their places: one copy and one launch for all of them.

use crate::device::{Event, Gpu, PinnedBuffer, Stream};
use crate::error::{Error, Result};
use crate::kernels::abi::{ScatterArgs, ScatterEntry};

/// Wide copies need source and target to agree modulo this.
const ALIGN: u64 = 16;

/// The packed ranges of one batch. The page-locked buffer is kept between batches.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// `source` counts from the buffer's start.
    entries: Vec<ScatterEntry>,
    /// Bytes of the buffer in use: the entries, then the ranges.
    bytes: u64,
    buffer: Option<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    pinned: PinnedBuffer,
    copied: Event,
    busy: bool,
}

impl Packed {
    /// Starts a batch of `count` ranges.
    pub(crate) fn begin(&mut self, count: usize) {
        self.entries.clear();
        self.bytes = (count * size_of::<ScatterEntry>()) as u64;
    }

    /// Adds a range that goes to the device address `target`.
    pub(crate) fn push(&mut self, target: u64, bytes: u64) {
        let source = self.bytes + (target.wrapping_sub(self.bytes) % ALIGN);
        self.entries.push(ScatterEntry { source, target, bytes });
        self.bytes = source + bytes;
    }

    /// The buffer's memory, and where in it each range lies. Waits for the copy of the batch before.
    pub(crate) fn memory(&mut self, gpu: &Gpu) -> Result<(*mut u8, impl Iterator<Item = usize> + '_)> {
        let bytes = usize::try_from(self.bytes).map_err(|_| Error::Argument("too many small ranges".into()))?;
        self.settle()?;
        if self.buffer.as_ref().is_none_or(|it| it.pinned.len() < bytes) {
            self.buffer = None; // before the larger one is asked for
            let pinned = gpu.alloc_pinned(bytes.next_power_of_two())?;
            self.buffer = Some(Buffer { pinned, copied: gpu.new_event()?, busy: false });
        }
        let address = self.buffer.as_mut().map_or(std::ptr::null_mut(), |it| it.pinned.as_mut_ptr());
        Ok((address, self.entries.iter().map(|it| it.source as usize)))
    }

    fn settle(&mut self) -> Result<()> {
        match &mut self.buffer {
            Some(buffer) if buffer.busy => {
                buffer.copied.synchronize()?;
                buffer.busy = false;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Queues the way of all ranges to their places on `stream`.
    ///
    /// # Safety
    /// The ranges' bytes lie in `memory`; every target is device memory until the stream has been waited for.
    pub(crate) unsafe fn scatter(&mut self, stream: &Stream) -> Result<()> {
        // SAFETY: the caller's promise.
        let queued = unsafe { self.queue(stream) };
        if queued.is_err() {
            // Part of it may be under way.
            let _ = stream.gpu().backend().synchronize(stream.raw());
        }
        queued
    }

    /// # Safety
    /// As [`scatter`](Self::scatter).
    unsafe fn queue(&mut self, stream: &Stream) -> Result<()> {
        let Some(buffer) = self.buffer.as_mut().filter(|_| !self.entries.is_empty()) else { return Ok(()) };
        buffer.busy = true;
        match stream.gpu().alloc(self.bytes, stream, "small ranges") {
            Ok(staging) => {
                self.entries.iter_mut().for_each(|it| it.source += staging.address());
                let table: &[u8] = bytemuck::cast_slice(&self.entries);
                buffer.pinned[..table.len()].copy_from_slice(table);
                let args = ScatterArgs { entries: staging.address(), count: self.entries.len() as u64 };
                let blocks = u32::try_from(self.entries.len()).unwrap_or(u32::MAX).min(MAX_BLOCKS);
                // SAFETY: the buffer stays until `copied` was waited for; the entries name parts of the staging memory,
                // which is freed in the stream's order, and targets, which are the caller's promise.
                unsafe {
                    stream.copy_to_device(&staging, 0, &buffer.pinned[..self.bytes as usize])?;
                    stream.launch(blocks, &args)?;
                }
            }
            // The budget has no room for all of them a second time: a copy each does as well.
            Err(Error::Budget { .. }) => {
                for entry in &self.entries {
                    let source = buffer.pinned[entry.source as usize..].as_ptr();
                    let backend = stream.gpu().backend();
                    // SAFETY: as above.
                    unsafe { backend.copy_to_device(stream.raw(), entry.target, source, entry.bytes as usize)? };
                }
            }
            Err(error) => return Err(error),
        }
        buffer.copied.record(stream)
    }
}

/// The kernel strides over what is more.
const MAX_BLOCKS: u32 = 1 << 20;

impl Drop for Packed {
    fn drop(&mut self) {
        // The copy reads the buffer. A failure is sticky, and whoever uses the device next reports it.
        let _ = self.settle();
    }
}
