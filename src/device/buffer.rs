//! Owned device and page-locked memory.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Gpu, Stream};
use crate::error::Result;

/// Device memory. Counted against the budget of the [`Gpu`] that made it, freed on drop.
#[derive(Debug)]
pub struct DeviceBuffer {
    gpu: Gpu,
    address: u64,
    len: u64,
    /// The stream that orders the free of pooled memory; a slab has none.
    stream: Option<Stream>,
    /// Whether the budget still counts it.
    counted: bool,
}

impl Gpu {
    /// Pooled memory for work on `stream`, freed in the order of that stream. Zero bytes allocate nothing.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) naming `what`, or [`Error::Device`](crate::Error::Device).
    pub fn alloc(&self, bytes: u64, stream: &Stream, what: &'static str) -> Result<DeviceBuffer> {
        self.alloc_with(bytes, what, Some(stream.clone()), |it| self.backend().alloc(it, stream.raw()))
    }

    /// Memory aligned to 4 KiB that foreign libraries may register. Zero bytes allocate nothing.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_slab(&self, bytes: u64, what: &'static str) -> Result<DeviceBuffer> {
        self.alloc_with(bytes, what, None, |it| self.backend().alloc_slab(it))
    }

    fn alloc_with(
        &self,
        bytes: u64,
        what: &'static str,
        stream: Option<Stream>,
        alloc: impl FnOnce(u64) -> Result<u64>,
    ) -> Result<DeviceBuffer> {
        if bytes == 0 {
            return Ok(DeviceBuffer { gpu: self.clone(), address: 0, len: 0, stream, counted: false });
        }
        self.budget().reserve(bytes, what)?;
        match alloc(bytes) {
            Ok(address) => Ok(DeviceBuffer { gpu: self.clone(), address, len: bytes, stream, counted: true }),
            Err(error) => {
                self.budget().release(bytes);
                Err(error)
            }
        }
    }

    /// Page-locked host memory, not counted against the device budget.
    pub fn alloc_pinned(&self, bytes: usize) -> Result<PinnedBuffer> {
        let address = if bytes == 0 { NonNull::dangling() } else { self.backend().alloc_pinned(bytes)? };
        Ok(PinnedBuffer { gpu: self.clone(), address, len: bytes })
    }
}

impl DeviceBuffer {
    /// The device address; 0 for an empty buffer.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Stops counting it against the budget: whoever holds it now is no longer the scan.
    pub fn hand_over(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.gpu.budget().release(self.len);
        }
    }

    pub(super) fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|it| it <= self.len), "{bytes} bytes at {offset} of a buffer of {}", self.len);
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        match &self.stream {
            // SAFETY: the address came from `alloc` on this backend; work that uses it is ordered on this stream.
            Some(stream) => unsafe { self.gpu.backend().free(self.address, stream.raw()) },
            // SAFETY: the address came from `alloc_slab`, and its owner waited for all work on it.
            None => unsafe { self.gpu.backend().free_slab(self.address) },
        }
        self.hand_over();
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub struct PinnedBuffer {
    gpu: Gpu,
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory that this value alone owns.
unsafe impl Send for PinnedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for PinnedBuffer {}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: backends hand out initialised (zeroed) memory of this length, or it is dangling and empty.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: address and length are those of one `alloc_pinned` call.
            unsafe { self.gpu.backend().free_pinned(self.address, self.len) }
        }
    }
}
