//! Owned streams and events.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DeviceBuffer, Gpu, RawEvent, RawStream};
use crate::error::Result;
use crate::kernels::abi::KernelArgs;

/// A queue of device work. Cheap to clone; destroyed with its last clone.
#[derive(Debug, Clone)]
pub struct Stream(Arc<StreamInner>);

#[derive(Debug)]
struct StreamInner {
    gpu: Gpu,
    raw: RawStream,
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        self.gpu.backend().destroy_stream(self.raw);
    }
}

impl Gpu {
    /// A new stream.
    pub fn new_stream(&self) -> Result<Stream> {
        let raw = self.backend().create_stream()?;
        Ok(Stream(Arc::new(StreamInner { gpu: self.clone(), raw })))
    }

    /// A new event.
    pub fn new_event(&self) -> Result<Event> {
        Ok(Event { raw: self.backend().create_event()?, gpu: self.clone() })
    }
}

impl Stream {
    /// The device of this stream.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// The backend's handle.
    pub fn raw(&self) -> RawStream {
        self.0.raw
    }

    /// Waits for all work queued so far; counted as a host wait.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu().counters().syncs.fetch_add(1, Ordering::Relaxed);
        self.gpu().backend().synchronize(self.raw())
    }

    /// Makes later work here wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.gpu().backend().wait(self.raw(), event.raw)
    }

    /// Queues a kernel; does nothing for zero blocks.
    ///
    /// # Safety
    /// Every address in `args` is valid for what the kernel does with it, until the kernel is done.
    pub unsafe fn launch<A: KernelArgs>(&self, blocks: u32, args: &A) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        self.gpu().counters().launches.fetch_add(1, Ordering::Relaxed);
        // SAFETY: KernelArgs ties the struct to the kernel; the addresses are the caller's promise.
        unsafe { self.gpu().backend().launch(self.raw(), A::KERNEL, blocks, bytemuck::bytes_of(args)) }
    }

    /// Queues a copy of `source` to `target` at `offset` bytes.
    ///
    /// # Safety
    /// `source` stays valid and unwritten until the copy is done.
    ///
    /// # Panics
    /// When the range lies outside `target`.
    pub unsafe fn copy_to_device(&self, target: &DeviceBuffer, offset: u64, source: &[u8]) -> Result<()> {
        target.check(offset, source.len());
        // SAFETY: the range was checked; the lifetime is the caller's promise.
        unsafe {
            self.gpu().backend().copy_to_device(self.raw(), target.address() + offset, source.as_ptr(), source.len())
        }
    }

    /// Queues a copy from `source` at `offset` bytes to `target`.
    ///
    /// # Safety
    /// `target` stays valid and untouched until the copy is done.
    ///
    /// # Panics
    /// When the range lies outside `source`.
    pub unsafe fn copy_to_host(&self, target: &mut [u8], source: &DeviceBuffer, offset: u64) -> Result<()> {
        source.check(offset, target.len());
        // SAFETY: the range was checked; the lifetime is the caller's promise.
        unsafe {
            self.gpu().backend().copy_to_host(self.raw(), target.as_mut_ptr(), source.address() + offset, target.len())
        }
    }

    /// Queues a fill of `bytes` bytes of `target` from `offset`.
    ///
    /// # Panics
    /// When the range lies outside `target`.
    pub fn fill(&self, target: &DeviceBuffer, offset: u64, bytes: usize, value: u8) -> Result<()> {
        target.check(offset, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range was checked, and a buffer is freed in the order of its stream.
        unsafe { self.gpu().backend().fill(self.raw(), target.address() + offset, value, bytes) }
    }
}

/// A point in a stream that others can wait for.
#[derive(Debug)]
pub struct Event {
    gpu: Gpu,
    raw: RawEvent,
}

impl Event {
    /// Marks the work queued on `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.gpu.backend().record(self.raw, stream.raw())
    }

    /// Blocks until the mark is reached. Not counted: events pace the I/O threads, which wait for copies, not the scan.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.backend().synchronize_event(self.raw)
    }

    /// The backend's handle.
    pub fn raw(&self) -> RawEvent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.gpu.backend().destroy_event(self.raw);
    }
}
