//! `pqgpu doctor`: what this machine offers, what each finding means, and how to fix it. It changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parquet_gpu::Result;
use parquet_gpu::sys::nvrtc::Nvrtc;
use parquet_gpu::sys::search;
use parquet_gpu::sys::{self, cufile::CuFile};
use serde_json::json;

use crate::Status;
use crate::args::Doctor;
use crate::report;

/// Opening cuFile takes 0.1 to 0.5 s; some versions never return.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// One finding.
struct Finding {
    state: State,
    name: &'static str,
    found: String,
    /// What it means and how to fix it; empty when all is well.
    advice: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    Warning,
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warn",
            Self::Missing => "missing",
        }
    }
}

fn finding(state: State, name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { state, name, found: found.into(), advice: advice.into() }
}

pub fn run(args: &Doctor) -> Result<Status> {
    let path = fs::canonicalize(&args.path).map_err(|error| parquet_gpu::Error::NotFound {
        source_name: args.path.display().to_string(),
        cause: error.into(),
    })?;
    let mut findings = vec![modules(), driver()];
    findings.extend(gpus());
    findings.extend([
        bar1(),
        cufile(),
        opened(),
        nvidia_fs(),
        configuration(),
        file_system(&path),
        udev(&path),
        nvrtc(),
        nvcomp(),
        cache(),
    ]);
    if args.json {
        let list: Vec<_> = findings
            .iter()
            .map(|it| json!({ "state": it.state.word(), "name": it.name, "found": it.found, "advice": it.advice }))
            .collect();
        println!("{}", json!({ "path": path, "findings": list }));
        return Ok(Status::Done);
    }
    for it in &findings {
        println!("{}", report::line(&format!("{:<8} {:<14} {}", it.state.word(), it.name, it.found)));
        for line in wrapped(&it.advice, 56) {
            println!("{:24}{line}", "");
        }
    }
    Ok(Status::Done)
}

/// The hidden subcommand: opens cuFile in this process, on this process's GPU where there is one.
pub fn open_cufile() -> Result<Status> {
    #[cfg(feature = "cuda")]
    if let Ok(backend) = parquet_gpu::device::cuda::CudaBackend::open(0) {
        use parquet_gpu::device::Backend;
        backend.bind()?;
    }
    let library = CuFile::find(None)?;
    // SAFETY: it takes nothing; doctor looked for /proc/modules before it started this process, and waits for it in vain
    // for ten seconds at the most.
    let status = unsafe { (library.functions.cuFileDriverOpen)() };
    if status.code == 0 {
        return Ok(Status::Done);
    }
    println!("{}: {}", status.code, parquet_gpu::io::cufile::describe(status));
    Ok(Status::Failed)
}

fn modules() -> Finding {
    match Path::new("/proc/modules").exists() {
        true => finding(State::Ok, "/proc/modules", "present", ""),
        false => finding(
            State::Missing,
            "/proc/modules",
            "absent",
            "libcufile from 1.16 waits for it for ever and is not opened; mount /proc",
        ),
    }
}

#[cfg(feature = "cuda")]
fn driver() -> Finding {
    match parquet_gpu::device::cuda::driver_version() {
        Ok((major, minor)) => finding(State::Ok, "CUDA driver", format!("CUDA {major}.{minor}"), ""),
        Err(error) => finding(State::Missing, "CUDA driver", "not usable", format!("scans run on the CPU; {error}")),
    }
}

#[cfg(feature = "cuda")]
fn gpus() -> Vec<Finding> {
    match parquet_gpu::device::cuda::devices() {
        Ok(devices) if !devices.is_empty() => devices
            .iter()
            .map(|it| {
                let (major, minor) = it.capability;
                let found = format!("{}: {}, sm_{major}{minor}, {}", it.name, it.product, report::size(it.memory));
                finding(State::Ok, "GPU", found, "")
            })
            .collect(),
        Ok(_) => vec![finding(State::Missing, "GPU", "none", "the driver sees no GPU; look at CUDA_VISIBLE_DEVICES")],
        Err(_) => vec![finding(State::Missing, "GPU", "none", "it takes the driver to see one")],
    }
}

#[cfg(not(feature = "cuda"))]
fn driver() -> Finding {
    finding(State::Missing, "CUDA driver", "not looked for", "this build lacks the feature `cuda`")
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> Vec<Finding> {
    Vec::new()
}

/// BAR1 is the window through which storage writes into GPU memory; the driver's NVML tells its size.
fn bar1() -> Finding {
    match nvml_bar1() {
        Ok(bytes) => finding(State::Ok, "BAR1", report::size(bytes), ""),
        Err(why) => {
            finding(State::Warning, "BAR1", "unknown", format!("{why}; GPUDirect Storage maps GPU memory through it"))
        }
    }
}

fn nvml_bar1() -> Result<u64, String> {
    /// `nvmlBAR1Memory_t`.
    #[repr(C)]
    #[derive(Default)]
    struct Bar1 {
        total: u64,
        free: u64,
        used: u64,
    }
    type Init = unsafe extern "C" fn() -> i32;
    type Handle = unsafe extern "C" fn(u32, *mut *mut std::ffi::c_void) -> i32;
    type Memory = unsafe extern "C" fn(*mut std::ffi::c_void, *mut Bar1) -> i32;
    // SAFETY: NVML's constructors do nothing; the signatures are those of nvml.h.
    unsafe {
        let nvml = libloading::Library::new("libnvidia-ml.so.1").map_err(|_| "libnvidia-ml.so.1 is not there")?;
        let missing = |_| "libnvidia-ml.so.1 lacks a function";
        let init: libloading::Symbol<'_, Init> = nvml.get("nvmlInit_v2\0").map_err(missing)?;
        let handle: libloading::Symbol<'_, Handle> = nvml.get("nvmlDeviceGetHandleByIndex_v2\0").map_err(missing)?;
        let memory: libloading::Symbol<'_, Memory> = nvml.get("nvmlDeviceGetBAR1MemoryInfo\0").map_err(missing)?;
        let (mut device, mut bar1) = (std::ptr::null_mut(), Bar1::default());
        if init() != 0 || handle(0, &mut device) != 0 || memory(device, &mut bar1) != 0 {
            return Err("NVML does not tell".into());
        }
        Ok(bar1.total)
    }
}

fn cufile() -> Finding {
    match CuFile::find(None) {
        Ok(library) => {
            let found = format!("{} at {}", library.version_text(), library.path().display());
            match library.version() {
                1150.. => finding(State::Ok, "libcufile", found, ""),
                _ => finding(
                    State::Warning,
                    "libcufile",
                    found,
                    "before 1.15 it does not count reads by path: they stay unknown",
                ),
            }
        }
        Err(error) => finding(State::Missing, "libcufile", "not found", format!("reads go through the host; {error}")),
    }
}

/// Whether cuFile opens: tried in a process of its own, since some versions hang and all of them leave threads behind.
fn opened() -> Finding {
    let name = "cuFile opens";
    let hangs = |it: CuFile| sys::cufile::hangs_without_modules(it.version()) && !Path::new("/proc/modules").exists();
    if CuFile::find(None).map_or(true, hangs) {
        return finding(State::Missing, name, "not tried", "it takes libcufile and /proc/modules");
    }
    let child = std::env::current_exe().and_then(|path| {
        Command::new(path)
            .arg("open-cufile")
            .env("CUFILE_LOGFILE_PATH", "/dev/null")
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    });
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return finding(State::Warning, name, "not tried", error.to_string()),
    };
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if start.elapsed() < OPEN_LIMIT => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill(); // it may have ended just now
                let _ = child.wait();
                return finding(
                    State::Missing,
                    name,
                    "hangs",
                    format!("no answer in {} s: use --compat on", OPEN_LIMIT.as_secs()),
                );
            }
            Ok(Some(status)) => {
                let output = child.wait_with_output().map(|it| [it.stdout, it.stderr].concat()).unwrap_or_default();
                let text = String::from_utf8_lossy(&output).trim().to_string();
                return match status.success() {
                    true => finding(State::Ok, name, format!("in {:.2} s", start.elapsed().as_secs_f64()), ""),
                    false => finding(State::Missing, name, "no", format!("reads go through the host; {text}")),
                };
            }
            Err(error) => return finding(State::Warning, name, "unknown", error.to_string()),
        }
    }
}

fn nvidia_fs() -> Finding {
    let loaded = Path::new("/proc/driver/nvidia-fs").exists();
    let device = fs::read_dir("/dev").into_iter().flatten().flatten();
    let device = device.filter(|it| it.file_name().to_string_lossy().starts_with("nvidia-fs")).count();
    match (loaded, device) {
        (true, 1..) => finding(State::Ok, "nvidia-fs", format!("loaded, {device} device files"), ""),
        (true, 0) => finding(
            State::Warning,
            "nvidia-fs",
            "loaded, but /dev/nvidia-fs* is missing",
            "cuFile crosses CPU memory without the device files: bind-mount them into the container",
        ),
        (false, _) => finding(
            State::Missing,
            "nvidia-fs",
            "not loaded",
            "without it cuFile reads through CPU memory, unless PCIe P2P works; modprobe nvidia-fs on the host",
        ),
    }
}

fn configuration() -> Finding {
    let named = std::env::var_os("CUFILE_ENV_PATH_JSON").map(PathBuf::from);
    let path = named.unwrap_or_else(|| "/etc/cufile.json".into());
    match fs::read_to_string(&path) {
        Ok(text) => {
            let compat = !text.replace([' ', '\t'], "").contains("\"allow_compat_mode\":false");
            let found = format!("{}, allow_compat_mode {compat}", path.display());
            finding(State::Ok, "cufile.json", found, "")
        }
        Err(_) => finding(
            State::Warning,
            "cufile.json",
            format!("{} cannot be read", path.display()),
            "cuFile uses its defaults",
        ),
    }
}

/// The mount that holds a path, and its file system.
fn mount_of(path: &Path) -> Option<(String, String)> {
    let table = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, folder, kind) = (fields.next()?, fields.next()?.replace("\\040", " "), fields.next()?);
        path.starts_with(&folder).then(|| (folder, kind.to_string()))
    });
    mounts.max_by_key(|(folder, _)| folder.len())
}

fn file_system(path: &Path) -> Finding {
    let name = "file system";
    match mount_of(path) {
        Some((folder, kind)) => {
            let found = format!("{kind} on {folder}");
            match kind.as_str() {
                "ext4" | "xfs" | "nfs" | "nfs4" | "lustre" | "wekafs" | "gpfs" | "beegfs" => {
                    finding(State::Ok, name, found, "")
                }
                "tmpfs" | "overlay" => {
                    finding(State::Warning, name, found, "cuFile has no direct path from it and may refuse its files")
                }
                _ => finding(State::Warning, name, found, "cuFile may have no direct path from it"),
            }
        }
        None => finding(State::Warning, name, "unknown", "/proc/self/mounts does not tell"),
    }
}

fn udev(path: &Path) -> Finding {
    let name = "udev record";
    let Ok(metadata) = fs::metadata(path) else {
        return finding(State::Warning, name, "unknown", "the path cannot be read");
    };
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let record = format!("/run/udev/data/b{major}:{minor}");
    match fs::read_to_string(&record) {
        Ok(text) if text.contains("E:ID_FS_USAGE=filesystem") => finding(State::Ok, name, record, ""),
        _ => finding(
            State::Warning,
            name,
            format!("{record} does not say ID_FS_USAGE=filesystem"),
            "cuFile refuses files of ext4 and XFS with 5027 without it: bind-mount /run/udev from the host",
        ),
    }
}

fn nvrtc() -> Finding {
    match Nvrtc::get(None) {
        Ok(library) => {
            let (major, minor) = library.version();
            finding(State::Ok, "NVRTC", format!("{major}.{minor} at {}", library.path().display()), "")
        }
        Err(error) => finding(State::Missing, "NVRTC", "not found", format!("kernels cannot be compiled; {error}")),
    }
}

fn nvcomp() -> Finding {
    let names = ["libnvcomp.so.6", "libnvcomp.so.5", "libnvcomp.so.4", "libnvcomp.so"];
    let wheels = ["nvidia/libnvcomp/lib64", "nvidia/nvcomp", "nvidia/cu13/lib"];
    let found = search::candidates(&names, &wheels).into_iter().find(|it| {
        // SAFETY: nvCOMP's constructors register its kernels and touch no GPU.
        unsafe { libloading::Library::new(it) }.is_ok()
    });
    match found {
        Some(path) => finding(
            State::Ok,
            "nvCOMP",
            path.display().to_string(),
            "not used yet: ZSTD and GZIP are decompressed on the CPU",
        ),
        None => {
            finding(State::Missing, "nvCOMP", "not found", "not used yet: ZSTD and GZIP are decompressed on the CPU")
        }
    }
}

fn cache() -> Finding {
    let set = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let folder = set("PARQUET_GPU_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|it| it.join("parquet-gpu")))
        .or_else(|| set("HOME").map(|it| it.join(".cache/parquet-gpu")));
    match folder {
        Some(folder) => finding(State::Ok, "kernel cache", folder.display().to_string(), ""),
        None => finding(
            State::Warning,
            "kernel cache",
            "none",
            "kernels are compiled in every process; set PARQUET_GPU_CACHE_DIR",
        ),
    }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.chars().take(width).collect()),
        }
    }
    lines
}
