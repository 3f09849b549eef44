//! Page-locked memory on its way to the device, made once and reused.

use super::scatter;
use crate::device::staging::{Staged, Staging};
use crate::device::{DeviceBuffer, Event, Gpu, PinnedBuffer, Stream};
use crate::error::Result;
use crate::kernels::abi::ScatterEntry;

/// What a reading thread owns: a stream, and two bounce buffers that it fills in turn.
#[derive(Debug)]
pub(super) struct Lane {
    stream: Stream,
    bounces: [Bounce; 2],
    /// The buffer that is filled next.
    turn: usize,
    finished: Event,
}

/// A buffer, and when the last copy from it is done.
#[derive(Debug)]
struct Bounce {
    buffer: PinnedBuffer,
    copied: Event,
    in_flight: bool,
}

impl Lane {
    /// The lane in `slot`, made or made anew so that it holds `bytes`.
    pub(super) fn of_size<'a>(slot: &'a mut Option<Self>, gpu: &Gpu, bytes: usize) -> Result<&'a mut Self> {
        match slot.take().filter(|lane| lane.bounces[0].buffer.len() >= bytes) {
            Some(lane) => Ok(slot.insert(lane)),
            None => {
                let bounce =
                    || Ok(Bounce { buffer: gpu.alloc_pinned(bytes)?, copied: gpu.new_event()?, in_flight: false });
                let bounces = [bounce()?, bounce()?];
                Ok(slot.insert(Self { stream: gpu.new_stream()?, bounces, turn: 0, finished: gpu.new_event()? }))
            }
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Reached when all copies so far are done.
    pub(super) fn finished(&self) -> &Event {
        &self.finished
    }

    /// Fills a bounce buffer with `fill` and queues its copy to the slab.
    pub(super) fn copy(
        &mut self,
        slab: &DeviceBuffer,
        offset: u64,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let bounce = &mut self.bounces[self.turn];
        self.turn = 1 - self.turn;
        if bounce.in_flight {
            bounce.copied.synchronize()?;
            bounce.in_flight = false;
        }
        let part = &mut bounce.buffer[..bytes];
        fill(part)?;
        // SAFETY: the buffer is next written after `copied`, and freed after the stream is done: see Drop.
        unsafe { self.stream.copy_to_device(slab, offset, part)? };
        bounce.in_flight = true;
        bounce.copied.record(&self.stream)
    }

    /// Marks the end of this round's copies.
    pub(super) fn finish(&self) -> Result<()> {
        self.finished.record(&self.stream)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Copies may still read the buffers. A failure is sticky and was or will be reported.
        let _ = self.stream.gpu().backend().synchronize(self.stream.raw());
    }
}

/// The buffer in which small ranges travel together.
#[derive(Debug)]
pub(super) struct Packed {
    buffer: PinnedBuffer,
    copied: Event,
    /// What the last round left on the device until it was done, and its stream.
    in_flight: Option<(Staged, DeviceBuffer, Stream)>,
}

impl Packed {
    /// The buffer in `slot`, made or made anew so that it holds `bytes`.
    pub(super) fn of_size<'a>(slot: &'a mut Option<Self>, gpu: &Gpu, bytes: usize) -> Result<&'a mut Self> {
        match slot.take().filter(|packed| packed.buffer.len() >= bytes) {
            Some(packed) => Ok(slot.insert(packed)),
            None => {
                let buffer = gpu.alloc_pinned(bytes)?;
                Ok(slot.insert(Self { buffer, copied: gpu.new_event()?, in_flight: None }))
            }
        }
    }

    /// The host side, once the last copy from it is done.
    pub(super) fn buffer(&mut self) -> Result<&mut [u8]> {
        if self.in_flight.take().is_some() {
            self.copied.synchronize()?;
        }
        Ok(&mut self.buffer)
    }

    /// Queues the copy of the filled part and its scatter into the slab.
    pub(super) fn send(&mut self, entries: &[scatter::Entry], slab: &DeviceBuffer, stream: &Stream) -> Result<()> {
        let bytes = entries.iter().map(|it| it.from + it.bytes).max().unwrap_or(0);
        let device = stream.gpu().alloc(bytes as u64, stream, "small ranges")?;
        let mut staging = Staging::default();
        let place = |it: &scatter::Entry| ScatterEntry {
            source: device.address() + it.from as u64,
            target: slab.address() + it.to,
            bytes: it.bytes as u64,
        };
        let slot = staging.push(&entries.iter().map(place).collect::<Vec<_>>());
        let staged = staging.upload(stream, "places of small ranges")?;
        // SAFETY: the buffer is next written after `copied`, and freed after the stream is done: see Drop.
        unsafe { stream.copy_to_device(&device, 0, &self.buffer[..bytes])? };
        self.copied.record(stream)?;
        let address = staged.address(slot);
        self.in_flight = Some((staged, device, stream.clone()));
        scatter::launch(stream, address, entries.len())
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        if let Some((_, _, stream)) = &self.in_flight {
            // The copy may still read the buffer. A failure is sticky and was or will be reported.
            let _ = stream.gpu().backend().synchronize(stream.raw());
        }
    }
}
