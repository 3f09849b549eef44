//! Memory, streams, events and launches, the same for CUDA and for the kernels on the CPU; nothing here knows Parquet.
//!
//! Three layers: [`Backend`] is the raw device (handles and addresses, one method a driver call), implemented by
//! `cuda.rs` and `emulated.rs`; [`Gpu`] counts and budgets; [`Stream`], [`DeviceBuffer`] and [`PinnedBuffer`] own.

mod buffer;
#[cfg(feature = "cuda")]
pub mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "emulated")]
pub mod emulated;
#[cfg(feature = "emulated")]
pub(crate) mod simt;
pub mod staging;
mod stream;

use std::fmt;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use buffer::{DeviceBuffer, PinnedBuffer};
pub use stream::{Event, Stream};

use crate::error::{Error, Result};
use crate::kernels::Kernel;

/// Where a scan's arrays end up.
#[derive(Debug, Clone)]
pub enum Device {
    /// Host memory, decoded by arrow-rs.
    Cpu,
    /// A device that runs kernels.
    Gpu(Gpu),
}

/// A device by name: `auto`, `cpu`, `cuda:N`, `emulated` or `emulated:SEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first CUDA device where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A CUDA device by ordinal.
    Cuda(u32),
    /// The kernels on the CPU; the seed varies the order in which threads run.
    Emulated(u64),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
        let parse = |number: &str| number.parse::<u64>().map_err(|_| format!("`{number}` is not a number"));
        match (name, number) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("cuda" | "gpu", number) => {
                u32::try_from(parse(number.unwrap_or("0"))?).map(Self::Cuda).map_err(|error| error.to_string())
            }
            ("emulated", number) => Ok(Self::Emulated(parse(number.unwrap_or("0"))?)),
            _ => Err(format!("unknown device `{text}`: auto, cpu, cuda:N or emulated")),
        }
    }
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Error::Device`] when a device that was named is not there, or this build lacks its feature. `Auto` never fails.
    pub fn open(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Cpu => Ok(Self::Cpu),
            #[cfg(feature = "cuda")]
            DeviceChoice::Auto => Ok(cuda::CudaBackend::open(0).map_or(Self::Cpu, |it| Self::Gpu(Gpu::new(it)))),
            #[cfg(not(feature = "cuda"))]
            DeviceChoice::Auto => Ok(Self::Cpu),
            #[cfg(feature = "cuda")]
            DeviceChoice::Cuda(ordinal) => Ok(Self::Gpu(Gpu::new(cuda::CudaBackend::open(ordinal)?))),
            #[cfg(not(feature = "cuda"))]
            DeviceChoice::Cuda(ordinal) => Err(Error::Device {
                device: format!("cuda:{ordinal}"),
                message: "this build lacks the feature `cuda`".into(),
            }),
            #[cfg(feature = "emulated")]
            DeviceChoice::Emulated(seed) => Ok(Self::Gpu(Gpu::new(emulated::EmulatedBackend::new(seed)))),
            #[cfg(not(feature = "emulated"))]
            DeviceChoice::Emulated(_) => Err(Error::Device {
                device: "emulated".into(),
                message: "this build lacks the feature `emulated`: cargo build --features emulated".into(),
            }),
        }
    }

    /// The device's name: `cpu`, `cuda:0`, `emulated`.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu => "cpu".into(),
            Self::Gpu(gpu) => gpu.name(),
        }
    }
}

/// What a device is; constant while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    /// `cuda:0` or `emulated`.
    pub name: String,
    /// The product, such as `NVIDIA H200`.
    pub product: String,
    /// Device ordinal.
    pub ordinal: u32,
    /// Whether device addresses are addresses of this process, as on the emulated device.
    pub host_addressable: bool,
    /// The UUID by which cuFile's statistics name a GPU.
    pub uuid: Option<[u8; 16]>,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Device memory in bytes.
    pub memory: u64,
}

/// A stream of a backend.
pub type RawStream = u64;
/// An event of a backend.
pub type RawEvent = u64;
/// Told the address of a slab whose memory is about to be given back. It may not call the backend.
pub type SlabHook = Box<dyn Fn(u64) + Send + Sync>;

/// The raw device. Addresses are device addresses; asynchronous calls are ordered by stream.
///
/// Every method binds the device to the calling thread as needed. After a sticky failure each method returns the first
/// cause again.
pub trait Backend: Send + Sync + fmt::Debug {
    /// What the device is.
    fn properties(&self) -> &Properties;
    /// Makes the device current on the calling thread, for foreign libraries such as cuFile.
    fn bind(&self) -> Result<()>;
    /// Bytes of device memory that are free now.
    fn free_memory(&self) -> Result<u64>;
    /// Pooled memory, aligned to at least 256 bytes, usable by work queued on `stream` from now on. `bytes > 0`.
    fn alloc(&self, bytes: u64, stream: RawStream) -> Result<u64>;
    /// Frees pooled memory once all work queued on `stream` so far is done.
    ///
    /// # Safety
    /// `address` came from `alloc` and no work outside what is ordered before this call on `stream` uses it.
    unsafe fn free(&self, address: u64, stream: RawStream);
    /// Memory that other libraries may register (not from a pool), aligned to at least 4 KiB.
    fn alloc_slab(&self, bytes: u64) -> Result<u64>;
    /// Frees a slab. Waits for the device where needed.
    ///
    /// # Safety
    /// `address` came from `alloc_slab` and nothing uses it.
    unsafe fn free_slab(&self, address: u64);
    /// Asks the backend to keep freed slabs for reuse, and to call `released` with a slab's address before its memory is
    /// really given back. `true`: it does, and a registration of a slab with another library (cuFile) may outlive
    /// [`free_slab`](Self::free_slab) until that call. `false`: slabs go back at once, so end the registration first.
    fn keep_slabs(&self, released: SlabHook) -> bool {
        drop(released);
        false
    }
    /// Page-locked host memory that the CPU reads at full speed, zeroed.
    fn alloc_pinned(&self, bytes: usize) -> Result<NonNull<u8>>;
    /// Frees page-locked memory.
    ///
    /// # Safety
    /// `address` and `bytes` are those of one `alloc_pinned` call, and nothing uses the memory.
    unsafe fn free_pinned(&self, address: NonNull<u8>, bytes: usize);
    /// A new stream, not ordered with the legacy default stream.
    fn create_stream(&self) -> Result<RawStream>;
    /// Destroys a stream; work queued on it still completes.
    fn destroy_stream(&self, stream: RawStream);
    /// Waits until all work queued on `stream` is done, and reports its failure.
    fn synchronize(&self, stream: RawStream) -> Result<()>;
    /// A new event without timing.
    fn create_event(&self) -> Result<RawEvent>;
    /// Destroys an event.
    fn destroy_event(&self, event: RawEvent);
    /// Marks the work queued on `stream` so far.
    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Makes later work on `stream` wait for `event`.
    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()>;
    /// Blocks the calling thread until `event` is reached.
    fn synchronize_event(&self, event: RawEvent) -> Result<()>;
    /// Queues a copy from host memory.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done; `source` is not written until then.
    unsafe fn copy_to_device(&self, stream: RawStream, target: u64, source: *const u8, bytes: usize) -> Result<()>;
    /// Queues a copy to host memory.
    ///
    /// # Safety
    /// Both ranges are valid, and `target` is not touched, until the copy is done.
    unsafe fn copy_to_host(&self, stream: RawStream, target: *mut u8, source: u64, bytes: usize) -> Result<()>;
    /// Queues a copy between two ranges of the device that do not overlap.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done.
    unsafe fn copy_on_device(&self, stream: RawStream, target: u64, source: u64, bytes: usize) -> Result<()>;
    /// Queues a fill with one byte value.
    ///
    /// # Safety
    /// The range is valid until the fill is done.
    unsafe fn fill(&self, stream: RawStream, target: u64, value: u8, bytes: usize) -> Result<()>;
    /// Makes kernels ready to launch, compiled in parallel where they have to be. Without it each is made ready by its
    /// first launch.
    fn prepare(&self, kernels: &[Kernel]) -> Result<()> {
        let _ = kernels;
        Ok(())
    }
    /// Queues a kernel over `blocks` blocks of the kernel's own size. `args` is the kernel's one argument struct.
    ///
    /// # Safety
    /// `args` has the type that the kernel takes, and every address in it is valid until the kernel is done.
    unsafe fn launch(&self, stream: RawStream, kernel: Kernel, blocks: u32, args: &[u8]) -> Result<()>;
}

/// How much device memory a scan may hold, and what it holds.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The most bytes that were held at one time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or says what is missing. Public so that host memory of a size that a file dictates can be charged.
    pub fn reserve(&self, bytes: u64, what: &'static str) -> Result<()> {
        let used = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|total| *total <= self.limit)
            })
            .map_err(|used| Error::Budget {
                what: what.into(),
                needed: bytes,
                left: self.limit.saturating_sub(used),
            })?;
        self.peak.fetch_max(used + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives `bytes` back.
    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Launches and host waits since a [`Gpu`] handle was made.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) launches: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

impl Counters {
    /// Kernel launches.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Times that the host waited for the device.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }
}

/// A device that runs kernels: a shared backend with a budget and counters of its own.
#[derive(Debug, Clone)]
pub struct Gpu {
    backend: Arc<dyn Backend>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

impl Gpu {
    /// A handle without a limit.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, budget: Arc::new(Budget::new(u64::MAX)), counters: Arc::default() }
    }

    /// A handle on the same device whose allocations count against a budget of their own, and with its own counters.
    pub fn with_budget(&self, bytes: u64) -> Self {
        Self { backend: self.backend.clone(), budget: Arc::new(Budget::new(bytes)), counters: Arc::default() }
    }

    /// What the device is.
    pub fn properties(&self) -> &Properties {
        self.backend.properties()
    }

    /// `cuda:0` or `emulated`.
    pub fn name(&self) -> String {
        self.properties().name.clone()
    }

    /// The budget of this handle.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Launches and waits through this handle.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The raw device, for the owners in this module and for foreign libraries.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Bytes of device memory that are free now.
    pub fn free_memory(&self) -> Result<u64> {
        self.backend.free_memory()
    }
}
