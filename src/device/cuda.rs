//! CUDA devices; the only user of cudarc.
//!
//! | file | what |
//! |---|---|
//! | `driver.rs` | the driver's functions, devices and their properties |
//! | `context.rs` | the primary context: current on a thread, dead after a sticky error |
//! | `memory.rs`, `blocks.rs` | pooled memory, slabs, page-locked memory |
//! | `modules.rs` | kernels: compiled or cached, loaded on first use |
//!
//! A process has one backend a device, kept until it ends: pools and compiled kernels are shared by all scans. It uses
//! the device's primary context, so that addresses are valid for the CUDA runtime and for other libraries.

mod blocks;
mod context;
mod driver;
mod memory;
mod modules;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUevent, CUstream, CUstream_flags};

use self::context::{Context, call};
use self::driver::Driver;
pub use self::driver::{devices, driver_version};
use self::memory::Memory;
use self::modules::Modules;
use super::cache::KernelCache;
use super::{Backend, Properties, RawEvent, RawStream, SlabHook};
use crate::error::{Error, Result};
use crate::kernels::Kernel;

/// A CUDA device.
pub struct CudaBackend {
    properties: Properties,
    memory: Memory,
    modules: Modules,
    context: Context,
}

impl fmt::Debug for CudaBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBackend").field("properties", &self.properties).finish_non_exhaustive()
    }
}

/// What a backend keeps and has compiled so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of freed slabs that are kept for reuse.
    pub kept_slab_bytes: u64,
    /// Bytes of freed page-locked memory that are kept for reuse.
    pub kept_pinned_bytes: u64,
    /// Modules that were compiled.
    pub modules_compiled: u64,
    /// Modules that came from the cache on disk.
    pub modules_from_cache: u64,
}

/// The open devices. Never emptied: other libraries may use the contexts, and a process that is ending has no safe
/// moment to release them.
static OPEN: Mutex<BTreeMap<u32, Arc<CudaBackend>>> = Mutex::new(BTreeMap::new());

impl CudaBackend {
    /// The backend of a device, by the ordinal that the driver gives it (`CUDA_VISIBLE_DEVICES` renumbers). The first
    /// call makes the device's context unless the process has one, in 0.1 to 0.5 s; later calls return the same backend.
    ///
    /// # Errors
    /// [`Error::Library`] without a driver, or with one older than 12.0; [`Error::Device`] without such a device. Each
    /// says what to do.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = open.get(&ordinal) {
            return Ok(backend.clone());
        }
        let backend = Arc::new(Self::create(ordinal)?);
        open.insert(ordinal, backend.clone());
        Ok(backend)
    }

    fn create(ordinal: u32) -> Result<Self> {
        let driver = Driver::get()?;
        driver.initialise()?;
        let count = driver.count()?;
        if ordinal >= count {
            return Err(Error::Device {
                device: format!("cuda:{ordinal}"),
                message: format!(
                    "the driver shows {count} device(s), numbered from 0; see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES"
                ),
            });
        }
        let (device, properties) = driver.device(ordinal)?;
        let context = Context::retain(driver, device, &properties.name)?;
        let memory = Memory::new(&context)?;
        let modules = Modules::new(driver_version()?.0, properties.capability, KernelCache::from_environment());
        Ok(Self { properties, memory, modules, context })
    }

    /// What it keeps and has compiled so far.
    pub fn statistics(&self) -> Statistics {
        let (kept_slab_bytes, kept_pinned_bytes) = self.memory.kept_bytes();
        let (modules_compiled, modules_from_cache) = self.modules.counts();
        Statistics { kept_slab_bytes, kept_pinned_bytes, modules_compiled, modules_from_cache }
    }
}

impl Backend for CudaBackend {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn bind(&self) -> Result<()> {
        self.context.bind()
    }

    /// What the driver calls free, and what is held here for reuse.
    fn free_memory(&self) -> Result<u64> {
        self.context.bind()?;
        Ok(memory::free_memory(&self.context)?.saturating_add(self.memory.idle(&self.context)?))
    }

    fn alloc(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        self.memory.alloc(&self.context, bytes, stream)
    }

    unsafe fn free(&self, address: u64, stream: RawStream) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.free(&self.context, address, stream) }
    }

    fn alloc_slab(&self, bytes: u64) -> Result<u64> {
        self.memory.alloc_slab(&self.context, bytes)
    }

    unsafe fn free_slab(&self, address: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.free_slab(&self.context, address) }
    }

    fn keep_slabs(&self, released: SlabHook) -> bool {
        self.memory.add_hook(released);
        true
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        self.memory.alloc_pinned(&self.context, bytes)
    }

    unsafe fn free_pinned(&self, address: NonNull<u8>, _bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.memory.free_pinned(address) }
    }

    fn create_stream(&self) -> Result<RawStream> {
        self.context.bind()?;
        let mut stream: CUstream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; the function writes one handle.
        unsafe { call!(&self.context, cuStreamCreate(&mut stream, flags))? };
        self.memory.add_stream(stream as RawStream);
        Ok(stream as RawStream)
    }

    fn destroy_stream(&self, stream: RawStream) {
        self.memory.remove_stream(stream);
        if self.context.bind().is_ok() {
            // SAFETY: the handle is live and its owner gives it up; queued work still completes.
            let _ = unsafe { call!(&self.context, cuStreamDestroy_v2(stream as CUstream)) };
        }
    }

    fn synchronize(&self, stream: RawStream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the handle is live.
        unsafe { call!(&self.context, cuStreamSynchronize(stream as CUstream)) }
    }

    fn create_event(&self) -> Result<RawEvent> {
        self.context.bind()?;
        memory::create_event(&self.context)
    }

    fn destroy_event(&self, event: RawEvent) {
        if self.context.bind().is_ok() {
            // SAFETY: the handle is live and its owner gives it up.
            let _ = unsafe { call!(&self.context, cuEventDestroy_v2(event as CUevent)) };
        }
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles are live.
        unsafe { call!(&self.context, cuEventRecord(event as CUevent, stream as CUstream)) }
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both handles are live; 0 is the default flag.
        unsafe { call!(&self.context, cuStreamWaitEvent(stream as CUstream, event as CUevent, 0)) }
    }

    fn synchronize_event(&self, event: RawEvent) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the handle is live.
        unsafe { call!(&self.context, cuEventSynchronize(event as CUevent)) }
    }

    unsafe fn copy_to_device(&self, stream: RawStream, target: u64, source: *const u8, bytes: usize) -> Result<()> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the ranges are the caller's promise.
        unsafe {
            call!(&self.context, cuMemcpyHtoDAsync_v2(target, source.cast::<c_void>(), bytes, stream as CUstream))
        }
    }

    unsafe fn copy_to_host(&self, stream: RawStream, target: *mut u8, source: u64, bytes: usize) -> Result<()> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the ranges are the caller's promise.
        unsafe {
            call!(&self.context, cuMemcpyDtoHAsync_v2(target.cast::<c_void>(), source, bytes, stream as CUstream))
        }
    }

    unsafe fn copy_on_device(&self, stream: RawStream, target: u64, source: u64, bytes: usize) -> Result<()> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the ranges are the caller's promise.
        unsafe { call!(&self.context, cuMemcpyDtoDAsync_v2(target, source, bytes, stream as CUstream)) }
    }

    unsafe fn fill(&self, stream: RawStream, target: u64, value: u8, bytes: usize) -> Result<()> {
        self.context.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is the caller's promise.
        unsafe { call!(&self.context, cuMemsetD8Async(target, value, bytes, stream as CUstream)) }
    }

    fn prepare(&self, kernels: &[Kernel]) -> Result<()> {
        self.context.bind()?;
        self.modules.prepare(&self.context, kernels)
    }

    unsafe fn launch(&self, stream: RawStream, kernel: Kernel, blocks: u32, args: &[u8]) -> Result<()> {
        self.context.bind()?;
        // The limit of a grid's x in the CUDA programming guide.
        if blocks == 0 || blocks > i32::MAX as u32 {
            let what = format!("{} cannot run over {blocks} blocks", kernel.symbol());
            return Err(self.context.error(what));
        }
        let function = self.modules.function(&self.context, kernel)?;
        // One parameter: a pointer to the struct, whose bytes the driver copies before it returns.
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        self.context.note(kernel);
        // SAFETY: the function takes one struct by value, and `args` is its type by the caller's promise.
        unsafe {
            call!(
                &self.context,
                cuLaunchKernel(
                    function,
                    blocks,
                    1,
                    1,
                    kernel.threads(),
                    1,
                    1,
                    0,
                    stream as CUstream,
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            )
        }
    }
}
