//! Direct reads: cuFile's driver, files and buffers, and the operations of a batch, with the proof of their path.
//!
//! A process has one driver, opened by the first direct range. One batch is read at a time for each GPU of a process: it
//! uses all its threads anyway, and cuFile counts by GPU, so that what lies between two snapshots is that batch's alone.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::ledger::{Count, Ledger, Reads, Snapshot};
use super::posix;
use super::source::Source;
use crate::device::{DeviceBuffer, Gpu};
use crate::error::{Error, Result};
use crate::options::IoOptions;
use crate::plan::RangePlan;
use crate::sys::cufile::{self as sys, CuFile, Status};

/// The opened driver. It stays open until the process ends: closing it earlier would end the counters and others' files.
#[derive(Debug)]
struct Driver {
    library: CuFile,
    /// Whether level-3 statistics are counted.
    counts: bool,
    /// Why operations are likely to cross CPU memory, when they are.
    no_nvfs: Option<&'static str>,
}

// SAFETY: libcufile's functions may be called from any thread; the rest are plain values.
unsafe impl Sync for Driver {}
// SAFETY: as above.
unsafe impl Send for Driver {}

static DRIVER: OnceLock<Result<Driver, (c_int, String)>> = OnceLock::new();

/// Closes the driver at the process's end.
extern "C" fn close() {
    if let Some(Ok(driver)) = DRIVER.get() {
        // SAFETY: it takes nothing. Readers that are still alive then belong to threads that the process abandons.
        unsafe { (driver.library.functions.cuFileDriverClose)() };
    }
}

/// Whether cuFile was told to use PCIe peer to peer, by its variable or in `cufile.json`.
fn peer_to_peer_is_configured() -> bool {
    if std::env::var("CUFILE_USE_PCIP2PDMA").is_ok_and(|it| it.eq_ignore_ascii_case("true") || it == "1") {
        return true;
    }
    let path = std::env::var_os("CUFILE_ENV_PATH_JSON").unwrap_or_else(|| "/etc/cufile.json".into());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // Comments are allowed there, so no JSON parser reads it; a line is enough.
    text.lines().map(|it| it.replace([' ', '\t'], "")).any(|it| it.starts_with("\"use_pci_p2pdma\":true"))
}

/// What is known of reads that crossed CPU memory although nvidia-fs is there.
const NVFS_UNUSED: &str =
    "nvidia-fs is loaded, but cuFile did not use it for this file; the log that CUFILE_LOGFILE_PATH names says why";

/// Why nvidia-fs cannot be used, if so: containers often see the module of their host without its device nodes.
fn no_nvfs(root: &Path) -> Option<&'static str> {
    if !root.join("proc/driver/nvidia-fs").exists() {
        return Some("nvidia-fs is not loaded");
    }
    let mut nodes = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    let found = nodes.any(|it| it.file_name().to_string_lossy().starts_with("nvidia-fs"));
    (!found).then_some("nvidia-fs is loaded, but /dev/nvidia-fs* is missing")
}

type Turn = Arc<Mutex<()>>;

/// What is held while a batch is read to the GPU with this UUID, so that its counters between two snapshots are that
/// batch's.
fn turn(gpu: Option<[u8; 16]>) -> Turn {
    static TURNS: Mutex<BTreeMap<Option<[u8; 16]>, Turn>> = Mutex::new(BTreeMap::new());
    TURNS.lock().unwrap_or_else(PoisonError::into_inner).entry(gpu).or_default().clone()
}

impl Driver {
    /// The process's driver. A failure is kept: trying again would cost as much and fail alike.
    fn get(named: Option<&Path>) -> Result<&'static Self> {
        DRIVER.get_or_init(|| Self::open(named)).as_ref().map_err(|(code, message)| match code {
            0 => Error::Library { library: sys::LIBRARY, message: message.clone() },
            code => Error::CuFile { call: "cuFileDriverOpen", code: *code, message: message.clone() },
        })
    }

    fn open(named: Option<&Path>) -> Result<Self, (c_int, String)> {
        let library = CuFile::find(named).map_err(|error| match error {
            Error::Library { message, .. } => (0, message),
            other => (0, other.to_string()),
        })?;
        if sys::hangs_without_modules(library.version()) && !Path::new("/proc/modules").exists() {
            let message = "/proc/modules is not there, and this libcufile waits for it for ever; mount /proc";
            return Err((0, message.into()));
        }
        if std::env::var_os("CUFILE_LOGFILE_PATH").is_none() {
            // Without it, libcufile writes cufile.log into the working directory.
            // SAFETY: Rust's own readers of the environment are locked out, and it happens once in a process. C code that
            // reads the environment on another thread just then is not: whoever has such code sets the variable first.
            unsafe { std::env::set_var("CUFILE_LOGFILE_PATH", "/dev/null") };
        }
        let functions = &library.functions;
        // Before opening: a driver that is open already may lack the counters of a higher level.
        if let Some(set) = functions.cuFileSetStatsLevel {
            // SAFETY: it takes a level.
            unsafe { set(3) };
        }
        // SAFETY: it takes nothing; a CUDA context is current where the device has one.
        let status = unsafe { (functions.cuFileDriverOpen)() };
        if status.code != 0 {
            return Err((status.code, describe(status)));
        }
        let mut level = 0;
        if let Some(get) = functions.cuFileGetStatsLevel {
            // SAFETY: it writes one int.
            unsafe { get(&mut level) };
        }
        let counts = level >= 3 && library.version() >= 1150 && functions.cuFileGetStatsL3.is_some();
        // libcufile 1.15 crashes when its own destructors find the driver open at the process's end. This handler is
        // registered after the library was loaded, so it runs before they do.
        // SAFETY: `close` is a plain function that may be called at any time.
        unsafe { libc::atexit(close) };
        Ok(Self { library, counts, no_nvfs: no_nvfs(Path::new("/")) })
    }

    /// Whether O_DIRECT descriptors are worth it: nvidia-fs and PCIe peer to peer need them, while cuFile's own POSIX path
    /// reads past the page cache with them, at the disk's speed.
    fn wants_o_direct(&self) -> bool {
        self.no_nvfs.is_none() || peer_to_peer_is_configured()
    }

    /// Reads counted so far; `None` when the library does not say. In host memory, real libraries know no GPU and have no
    /// row: nothing is proven then.
    fn reads(&self) -> Option<Snapshot> {
        let get = self.library.functions.cuFileGetStatsL3.filter(|_| self.counts)?;
        // u64s, so that the structure is aligned as C has it.
        let mut buffer = vec![0u64; sys::STATISTICS_BUFFER / 8];
        // SAFETY: the buffer is larger than the structure of any version, and zeroed: tails are left untouched.
        let status = unsafe { get(buffer.as_mut_ptr().cast()) };
        if status.code != 0 {
            return None;
        }
        let bytes: &[u8] = bytemuck::cast_slice(&buffer);
        let layout = sys::Layout::of(self.library.version());
        let gpus: u32 = bytemuck::pod_read_unaligned(&bytes[layout.gpus..layout.gpus + 4]);
        let word = |row: &[u8], at: usize| bytemuck::pod_read_unaligned::<u64>(&row[at..at + 8]);
        let mut snapshot = Snapshot::default();
        for row in bytes[layout.rows..].chunks_exact(sys::GPU_ROW).take((gpus as usize).min(sys::GPU_ROWS)) {
            let reads = Reads {
                total: word(row, sys::ROW_READS),
                nvfs: word(row, sys::ROW_NVFS),
                p2p: word(row, sys::ROW_P2P),
                posix: word(row, sys::ROW_POSIX),
            };
            snapshot.add(bytemuck::pod_read_unaligned(&row[..16]), reads);
        }
        Some(snapshot)
    }
}

/// A failed status in words.
pub fn describe(status: Status) -> String {
    match status.code {
        sys::CUDA_DRIVER_ERROR => format!("{}, CUresult {}", sys::describe(status.code), status.cuda),
        code if code >= sys::BASE => sys::describe(code).into(),
        code => std::io::Error::from_raw_os_error(code.abs()).to_string(),
    }
}

/// Reads ranges of one local file into device memory through cuFile.
#[derive(Debug)]
pub struct DirectReader {
    driver: &'static Driver,
    file: RegisteredFile,
    gpu: Gpu,
    name: String,
    threads: usize,
    registered: Option<Registered>,
}

/// The slab that was last shown to cuFile.
#[derive(Debug, Clone, Copy)]
struct Registered {
    address: u64,
    /// Whether the registration is ours to end: it is not where it failed, or where somebody else made it.
    ours: bool,
}

/// A file that cuFile knows.
#[derive(Debug)]
struct RegisteredFile {
    driver: &'static Driver,
    handle: sys::Handle,
    _file: File, // cuFile reads its descriptor
}

// SAFETY: cuFile's handles may be used from any thread, several at a time.
unsafe impl Send for RegisteredFile {}
// SAFETY: as above.
unsafe impl Sync for RegisteredFile {}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        // SAFETY: the handle came from cuFileHandleRegister, and no read is in flight.
        unsafe { (self.driver.library.functions.cuFileHandleDeregister)(self.handle) };
    }
}

impl RegisteredFile {
    /// Registers a file, with O_DIRECT where that helps, else or when that is refused as a plain descriptor, which is all
    /// that some file systems take.
    fn open(driver: &'static Driver, source: &Source) -> Result<Self> {
        let file = source.file().ok_or_else(|| Error::Argument("cuFile reads local files alone".into()))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if driver.wants_o_direct() {
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
            if let Ok(file) = direct.map_err(drop).and_then(|file| Self::register(driver, file).map_err(drop)) {
                return Ok(file);
            }
        }
        let plain = File::open(&path).map_err(|error| Error::io(source.name(), error))?;
        Self::register(driver, plain)
    }

    fn register(driver: &'static Driver, file: File) -> Result<Self> {
        let mut descriptor = sys::Descriptor {
            kind: sys::HANDLE_TYPE_FD,
            fd: sys::FdOrPointer { pointer: std::ptr::null_mut() },
            operations: std::ptr::null(),
        };
        descriptor.fd.fd = file.as_raw_fd();
        let mut handle: sys::Handle = std::ptr::null_mut();
        // SAFETY: both structures live through the call; the descriptor lives as long as the handle.
        let status = unsafe { (driver.library.functions.cuFileHandleRegister)(&mut handle, &mut descriptor) };
        if status.code == 0 {
            return Ok(Self { driver, handle, _file: file });
        }
        let hint = match status.code {
            sys::HANDLE_NOT_REGISTERED => {
                "; on ext4 and XFS, cuFile asks udev for the block device (/run/udev/data/bMAJOR:MINOR with \
                 E:ID_FS_USAGE=filesystem), which containers and bare machines often lack: bind-mount /run/udev"
            }
            _ => "",
        };
        let message = format!("{}{hint}", describe(status));
        Err(Error::CuFile { call: "cuFileHandleRegister", code: status.code, message })
    }
}

impl DirectReader {
    /// Opens the driver, once in a process, and registers the file.
    ///
    /// # Errors
    /// Why cuFile refused: [`Error::Library`], [`Error::CuFile`], [`Error::Device`].
    pub fn open(source: &Source, options: &IoOptions, gpu: &Gpu) -> Result<Self> {
        gpu.backend().bind()?;
        let driver = Driver::get(options.cufile_library.as_deref())?;
        let file = RegisteredFile::open(driver, source)?;
        let threads = posix::threads(options);
        Ok(Self { driver, file, gpu: gpu.clone(), name: source.name().into(), threads, registered: None })
    }

    /// Reads every operation of `ranges` to its place in `slab`, on several threads, and enters them into the ledger.
    ///
    /// # Errors
    /// [`Error::CuFile`] and [`Error::Io`] naming the operation; nothing is in flight when it returns.
    pub fn read(&mut self, ranges: &[&RangePlan], slab: &DeviceBuffer, ledger: &Ledger) -> Result<()> {
        self.gpu.backend().bind()?;
        self.register(slab, ledger);
        let tasks: Vec<(u64, u64, u64)> = ranges
            .iter()
            .flat_map(|range| {
                let base = range.slab_offset.unwrap_or(0);
                let start = range.read.start;
                range.tasks.iter().map(move |task| (task.start, task.end - task.start, base + (task.start - start)))
            })
            .collect();
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (ops, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || -> Result<()> {
            self.gpu.backend().bind()?;
            while !failed.load(Ordering::Relaxed) {
                let Some(&task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                self.read_task(task, slab.address(), &ops, &bytes)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };

        let uuid = self.gpu.properties().uuid;
        let turn = turn(uuid);
        let alone = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.driver.reads();
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads = self.threads.min(tasks.len()).max(1);
            // A thread that the system refuses is one thread less: this one alone gets everything done.
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..threads).map_while(spawn).collect();
            let own = work();
            let joined = others
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|_| Err(Error::Argument("a reading thread panicked".into()))));
            [own].into_iter().chain(joined).collect()
        });
        let after = self.driver.reads();
        drop(alone);

        let ours = Count { ops: ops.into_inner(), bytes: bytes.into_inner() };
        let counted = before.zip(after).and_then(|(before, after)| after.since(&before, uuid));
        if ours.ops > 0 {
            ledger.direct(&self.gpu.name(), ours, counted);
        }
        if counted.is_none() {
            ledger
                .remark(format!("libcufile {} does not count reads by path here", self.driver.library.version_text()));
        } else if counted.is_some_and(|it| it.posix > 0) {
            ledger.remark(self.driver.no_nvfs.unwrap_or(NVFS_UNUSED));
        }
        outcomes.into_iter().collect()
    }

    /// One operation, continued after short reads. The end of the file may lie inside it only where the plan widened it,
    /// and the plan cuts at the file's end: then the source has shrunk.
    fn read_task(
        &self,
        (offset, length, place): (u64, u64, u64),
        slab: u64,
        ops: &AtomicU64,
        bytes: &AtomicU64,
    ) -> Result<()> {
        let mut done = 0;
        while done < length {
            let (size, from, to) = ((length - done) as usize, (offset + done) as i64, (place + done) as i64);
            // SAFETY: the plan keeps `to + size` inside the slab, which the caller holds; the handle is registered.
            let got = unsafe {
                (self.driver.library.functions.cuFileRead)(self.file.handle, slab as *mut c_void, size, from, to)
            };
            ops.fetch_add(1, Ordering::Relaxed);
            match u64::try_from(got) {
                Ok(0) => {
                    let what = format!("{size} bytes at {from} of {}", self.name);
                    return Err(Error::io(what, "the file ended early: it is being changed"));
                }
                Ok(got) => {
                    bytes.fetch_add(got, Ordering::Relaxed);
                    done += got.min(length - done);
                }
                Err(_) => return Err(self.read_error(got, size, from)),
            }
        }
        Ok(())
    }

    /// cuFileRead fails in two ways: -1 with errno, which may be a cuFile code, or a cuFile code below zero.
    fn read_error(&self, got: isize, size: usize, from: i64) -> Error {
        let code = match got {
            -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
            other => c_int::try_from(-other).unwrap_or(0),
        };
        let what = format!("{size} bytes at {from} of {}", self.name);
        if code < sys::BASE {
            return Error::io(what, std::io::Error::from_raw_os_error(code));
        }
        Error::CuFile { call: "cuFileRead", code, message: format!("{} ({what})", sys::describe(code)) }
    }

    /// Registers the slab, once. A failure costs a copy inside cuFile and is noted.
    fn register(&mut self, slab: &DeviceBuffer, ledger: &Ledger) {
        let address = slab.address();
        if self.registered.is_some_and(|it| it.address == address) {
            return;
        }
        self.release();
        let register = self.driver.library.functions.cuFileBufRegister;
        // SAFETY: the slab is memory of the device; it is deregistered before it is freed.
        let status = unsafe { register(address as *const c_void, slab.len() as usize, 0) };
        if status.code != 0 && status.code != sys::MEMORY_ALREADY_REGISTERED {
            ledger.remark(format!("the slab could not be registered ({})", describe(status)));
        }
        self.registered = Some(Registered { address, ours: status.code == 0 });
    }

    /// Ends the registration of the slab, before it is freed.
    pub fn release(&mut self) {
        if let Some(Registered { address, ours: true }) = self.registered.take() {
            // SAFETY: the address was registered by `register`, and no read is in flight.
            unsafe { (self.driver.library.functions.cuFileBufDeregister)(address as *const c_void) };
        }
    }
}

impl Drop for DirectReader {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_fs_needs_its_module_and_its_nodes() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(no_nvfs(root.path()), Some("nvidia-fs is not loaded"));
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia-fs")).expect("a folder");
        assert!(no_nvfs(root.path()).is_some_and(|it| it.contains("/dev/nvidia-fs* is missing")));
        std::fs::create_dir_all(root.path().join("dev")).expect("a folder");
        std::fs::write(root.path().join("dev/nvidia-fs0"), "").expect("a file");
        assert_eq!(no_nvfs(root.path()), None);
    }
}
