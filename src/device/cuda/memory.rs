//! Device memory from a pool, slabs that other libraries may register, and page-locked memory.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use cudarc::driver::sys::{
    self, CUdevice_attribute, CUevent, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation,
    CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUstream,
};

use super::blocks::{Block, Blocks};
use super::context::{Context, call};
use super::driver::{Code, OUT_OF_MEMORY};
use crate::device::{RawEvent, RawStream, SlabHook};
use crate::error::Result;

/// Slabs are whole 2 MiB pages, the unit in which the driver maps device memory: two slabs share none, so registering
/// one with cuFile (which pins GPU pages of 64 KiB) never touches another.
const SLAB_UNIT: u64 = 2 << 20;
/// The alignment that `alloc_slab` promises.
const SLAB_ALIGN: u64 = 4096;

/// The memory of one device.
pub(super) struct Memory {
    pool: CUmemoryPool,
    /// Each kept slab with the events that say when the work queued before its release is done.
    slabs: Mutex<Blocks<Vec<CUevent>>>,
    pinned: Mutex<Blocks<()>>,
    /// Every stream of this backend, for those events.
    streams: Mutex<BTreeSet<RawStream>>,
    events: Mutex<Vec<CUevent>>, // free ones
    hooks: RwLock<Vec<SlabHook>>,
}

// SAFETY: pool and event handles may be used from any thread; everything mutable is locked.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// No code here leaves a value half changed by a panic, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Makes the pool.
    pub fn new(context: &Context) -> Result<Self> {
        let supported = context
            .driver
            .attribute(context.device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
            .map_err(|code| context.driver.error(&context.name, "cuDeviceGetAttribute", code))?;
        if supported == 0 {
            let why = "the device or its driver mode has no stream-ordered memory pools, which this needs; a vGPU or an \
                       old driver may be the reason";
            return Err(context.error(why.into()));
        }
        context.bind()?;
        let properties = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device },
            win32SecurityAttributes: std::ptr::null_mut(),
            reserved: [0; 64],
        };
        let mut pool: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: the properties are filled as cuda.h asks, reserved bytes zeroed; the function writes one handle.
        unsafe { call!(context, cuMemPoolCreate(&mut pool, &properties))? };
        // What is freed stays mapped for the next batch; `release_kept` gives it back when something else needs it.
        let mut threshold = u64::MAX;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is live and this attribute is a cuuint64_t, which the function reads.
        let set = unsafe { call!(context, cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast())) };
        if let Err(error) = set {
            // SAFETY: the pool is live and nothing was allocated from it.
            unsafe { (context.driver.functions.cuMemPoolDestroy)(pool) };
            return Err(error);
        }
        Ok(Self {
            pool,
            slabs: Mutex::default(),
            pinned: Mutex::default(),
            streams: Mutex::default(),
            events: Mutex::default(),
            hooks: RwLock::default(),
        })
    }

    /// Registers a stream of this backend.
    pub fn add_stream(&self, stream: RawStream) {
        lock(&self.streams).insert(stream);
    }

    /// Forgets a stream that is about to be destroyed.
    pub fn remove_stream(&self, stream: RawStream) {
        lock(&self.streams).remove(&stream);
    }

    /// Registers whom to tell before a slab is given back.
    pub fn add_hook(&self, hook: SlabHook) {
        self.hooks.write().unwrap_or_else(PoisonError::into_inner).push(hook);
    }

    /// Bytes that are held but free: in the pool, and in kept slabs. The context is bound.
    pub fn idle(&self, context: &Context) -> Result<u64> {
        let read = |attribute| {
            let mut value = 0u64;
            // SAFETY: the pool is live and the attribute is a cuuint64_t, which the function writes.
            unsafe { call!(context, cuMemPoolGetAttribute(self.pool, attribute, (&raw mut value).cast()))? };
            Ok(value)
        };
        let reserved: u64 = read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used: u64 = read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        Ok(reserved.saturating_sub(used) + lock(&self.slabs).kept_bytes())
    }

    /// Bytes of slabs and of page-locked memory that are kept for reuse.
    pub fn kept_bytes(&self) -> (u64, u64) {
        (lock(&self.slabs).kept_bytes(), lock(&self.pinned).kept_bytes())
    }

    /// Pooled memory for work on `stream`.
    pub fn alloc(&self, context: &Context, bytes: u64, stream: RawStream) -> Result<u64> {
        context.bind()?;
        let size = to_size(context, bytes)?;
        self.retrying(context, "cuMemAllocFromPoolAsync", bytes, || {
            let mut address = 0;
            // SAFETY: pool and stream are live handles of this device; the function writes one address.
            let code = unsafe {
                (context.driver.functions.cuMemAllocFromPoolAsync)(&mut address, size, self.pool, stream as CUstream)
            };
            (code, address)
        })
    }

    /// Gives pooled memory back in the order of `stream`.
    ///
    /// # Safety
    /// As `Backend::free`.
    pub unsafe fn free(&self, context: &Context, address: u64, stream: RawStream) {
        if context.bind().is_ok() {
            // SAFETY: the caller's promise. A failure is kept if it is sticky; there is nobody to tell otherwise.
            let _ = unsafe { call!(context, cuMemFreeAsync(address, stream as CUstream)) };
        }
    }

    /// A slab, kept or new.
    pub fn alloc_slab(&self, context: &Context, bytes: u64) -> Result<u64> {
        context.bind()?;
        let bytes = bytes
            .checked_next_multiple_of(SLAB_UNIT)
            .ok_or_else(|| context.error(format!("a slab of {bytes} bytes is more than there can be")))?;
        let reused = lock(&self.slabs).reuse(bytes);
        if let Some((block, fence)) = reused {
            let waited = self.await_fence(context, fence);
            if waited.is_err() {
                lock(&self.slabs).release(block.address);
            }
            return waited.map(|()| block.address);
        }
        let gone = lock(&self.slabs).make_room(bytes);
        self.give_back(context, gone);
        let mut block = self.new_slab(context, bytes)?;
        if block.address % SLAB_ALIGN != 0 {
            // The driver promises 256 bytes only, though whole 2 MiB pages have always been aligned.
            // SAFETY: the memory is new, so nothing uses it.
            let _ = unsafe { call!(context, cuMemFree_v2(block.base)) };
            let larger = self.new_slab(context, bytes.saturating_add(SLAB_UNIT))?;
            block = Block { address: larger.base.next_multiple_of(SLAB_ALIGN), base: larger.base, bytes };
        }
        lock(&self.slabs).use_block(block);
        Ok(block.address)
    }

    fn new_slab(&self, context: &Context, bytes: u64) -> Result<Block> {
        let size = to_size(context, bytes)?;
        let base = self.retrying(context, "cuMemAlloc", bytes, || {
            let mut address = 0;
            // SAFETY: the context is current; the function writes one address.
            let code = unsafe { (context.driver.functions.cuMemAlloc_v2)(&mut address, size) };
            (code, address)
        })?;
        Ok(Block { address: base, base, bytes })
    }

    /// Keeps a slab for reuse after the work that is queued now.
    ///
    /// # Safety
    /// As `Backend::free_slab`.
    pub unsafe fn free_slab(&self, context: &Context, address: u64) {
        let Some(block) = lock(&self.slabs).release(address) else { return };
        if context.bind().is_err() {
            return; // The context is dead and its memory with it.
        }
        match self.fence(context) {
            Ok(fence) => lock(&self.slabs).keep(block, fence),
            Err(_) => self.give_back(context, vec![(block, Vec::new())]),
        }
    }

    /// Events behind all work that is queued on this backend's streams now.
    fn fence(&self, context: &Context) -> Result<Vec<CUevent>> {
        let streams = lock(&self.streams); // held, so that no stream is destroyed meanwhile
        let mut fence = Vec::with_capacity(streams.len());
        for stream in streams.iter() {
            let free = lock(&self.events).pop();
            let event = match free {
                Some(event) => event,
                None => create_event(context)? as CUevent,
            };
            fence.push(event);
            // SAFETY: both handles are live: the stream is listed until just before its destruction.
            let recorded = unsafe { call!(context, cuEventRecord(event, *stream as CUstream)) };
            if let Err(error) = recorded {
                lock(&self.events).append(&mut fence);
                return Err(error);
            }
        }
        Ok(fence)
    }

    /// Waits for a fence. It was recorded when the slab was freed, so it has nearly always been reached.
    fn await_fence(&self, context: &Context, mut fence: Vec<CUevent>) -> Result<()> {
        // SAFETY: the events are live and owned by the fence.
        let waited = fence.iter().try_for_each(|it| unsafe { call!(context, cuEventSynchronize(*it)) });
        lock(&self.events).append(&mut fence);
        waited
    }

    /// Gives kept slabs back to the driver, once the work that may use them is done.
    fn give_back(&self, context: &Context, slabs: Vec<(Block, Vec<CUevent>)>) {
        for (block, fence) in slabs {
            if self.await_fence(context, fence).is_err() {
                return; // Only a sticky error fails here, and the memory is gone with the context.
            }
            let hooks = self.hooks.read().unwrap_or_else(PoisonError::into_inner);
            hooks.iter().for_each(|hook| hook(block.address));
            // SAFETY: nothing uses the slab: its owner freed it and the fence was reached. cuMemFree also waits itself.
            let _ = unsafe { call!(context, cuMemFree_v2(block.base)) };
        }
    }

    /// Gives back all device memory that is held but free. The context is bound.
    fn release_kept(&self, context: &Context) -> Result<()> {
        let slabs = lock(&self.slabs).drain();
        self.give_back(context, slabs);
        // SAFETY: the context is current. Frees that are still queued leave nothing to trim, so wait for them.
        unsafe { call!(context, cuCtxSynchronize())? };
        // SAFETY: the pool is live; memory in use is not touched.
        unsafe { call!(context, cuMemPoolTrimTo(self.pool, 0)) }
    }

    /// Tries an allocation; where memory is short, gives back what is kept and tries again.
    fn retrying(
        &self,
        context: &Context,
        name: &str,
        bytes: u64,
        mut alloc: impl FnMut() -> (Code, u64),
    ) -> Result<u64> {
        let (mut code, mut address) = alloc();
        if code == OUT_OF_MEMORY {
            self.release_kept(context)?;
            (code, address) = alloc();
        }
        if code == OUT_OF_MEMORY {
            let free = free_memory(context).map_or_else(|error| error.to_string(), |it| it.to_string());
            let what = context.driver.describe(code);
            return Err(context.error(format!("{name} failed with {what}: {bytes} bytes asked for, {free} free")));
        }
        context.check(name, code).map(|()| address)
    }

    /// Page-locked memory, kept or new, zeroed either way: the emulated device's is, and no data of an earlier scan
    /// shows in a later one. Zeroing costs 0.1 ms a MiB, pinning several times that.
    pub fn alloc_pinned(&self, context: &Context, bytes: usize) -> Result<NonNull<u8>> {
        context.bind()?;
        let size = pinned_class(bytes)
            .ok_or_else(|| context.error(format!("{bytes} bytes of page-locked memory are more than there can be")))?;
        let reused = lock(&self.pinned).reuse(size as u64);
        let address = match reused {
            Some((block, ())) => block.address,
            None => {
                let gone = lock(&self.pinned).make_room(size as u64);
                self.unpin(context, gone);
                let mut pointer: *mut c_void = std::ptr::null_mut();
                // PORTABLE: page-locked for every context of the process. Not WRITECOMBINED, which the CPU reads slowly.
                // SAFETY: the context is current; the function writes one pointer.
                unsafe { call!(context, cuMemHostAlloc(&mut pointer, size, sys::CU_MEMHOSTALLOC_PORTABLE))? };
                let address = pointer as u64;
                lock(&self.pinned).use_block(Block { address, base: address, bytes: size as u64 });
                address
            }
        };
        let address = NonNull::new(address as *mut u8)
            .ok_or_else(|| context.error("cuMemHostAlloc returned a null pointer".into()))?;
        // SAFETY: the block holds at least `bytes` bytes and belongs to nobody else.
        unsafe { address.as_ptr().write_bytes(0, bytes) };
        Ok(address)
    }

    /// Keeps page-locked memory for reuse.
    ///
    /// # Safety
    /// As `Backend::free_pinned`.
    pub unsafe fn free_pinned(&self, address: NonNull<u8>) {
        let mut pinned = lock(&self.pinned);
        if let Some(block) = pinned.release(address.as_ptr() as u64) {
            pinned.keep(block, ());
        }
    }

    fn unpin(&self, context: &Context, blocks: Vec<(Block, ())>) {
        for (block, ()) in blocks {
            // SAFETY: the block came from cuMemHostAlloc and its owner freed it.
            let _ = unsafe { call!(context, cuMemFreeHost(block.base as *mut c_void)) };
        }
    }
}

/// Bytes that the driver calls free. The context is bound.
pub(super) fn free_memory(context: &Context) -> Result<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the context is current; the function writes two sizes.
    unsafe { call!(context, cuMemGetInfo_v2(&mut free, &mut total))? };
    Ok(free as u64)
}

/// A new event without timing. A host thread that waits for it sleeps instead of spinning: the waits are those of I/O
/// threads for copies of a few MiB, with a second buffer in hand, so the 10 to 50 µs of a wake-up cost no throughput,
/// and a spinning core would be taken from the threads that read.
pub(super) fn create_event(context: &Context) -> Result<RawEvent> {
    use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
    let mut event: CUevent = std::ptr::null_mut();
    let flags = CU_EVENT_DISABLE_TIMING as u32 | CU_EVENT_BLOCKING_SYNC as u32;
    // SAFETY: the context is current; the function writes one handle.
    unsafe { call!(context, cuEventCreate(&mut event, flags))? };
    Ok(event as RawEvent)
}

/// Half the address space at most: the driver rounds sizes up, and a sum near the end would wrap.
fn to_size(context: &Context, bytes: u64) -> Result<usize> {
    isize::try_from(bytes)
        .map(isize::unsigned_abs)
        .map_err(|_| context.error(format!("{bytes} bytes are more than there can be")))
}

/// Rounds up to a power of two or one of three steps between two of them, from 4 KiB: few classes, so that a freed block
/// fits the next request, and at most a quarter more than was asked for.
fn pinned_class(bytes: usize) -> Option<usize> {
    const PAGE: usize = 4096;
    let step = (bytes.max(1).checked_next_power_of_two()? / 8).max(PAGE);
    bytes.max(1).checked_next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::pinned_class;

    #[test]
    fn pinned_classes_are_few_and_waste_at_most_a_quarter() {
        assert_eq!(pinned_class(1), Some(4096));
        assert_eq!(pinned_class(4096), Some(4096));
        assert_eq!(pinned_class(4097), Some(8192));
        assert_eq!(pinned_class(4 << 20), Some(4 << 20));
        assert_eq!(pinned_class((4 << 20) + 1), Some(5 << 20));
        assert_eq!(pinned_class((7 << 20) + 1), Some(8 << 20));
        assert_eq!(pinned_class(usize::MAX), None);
        for bytes in (1..1 << 20).step_by(997) {
            let class = pinned_class(bytes).expect("far below the limit");
            assert!(class >= bytes && class.is_multiple_of(4096), "{bytes}");
            assert!(class - bytes <= (bytes / 4).max(4095), "{bytes} in {class}");
        }
    }
}
