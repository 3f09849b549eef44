//! What the CUDA backend promises beyond what every device does: one backend a device, memory that is kept and given
//! back, kernels cached on disk, and a clear end after a sticky error.
//!
//! The tests run where there is a GPU, skip where there is none, and fail instead under `PARQUET_GPU_REQUIRE_GPU=1`.
//! `on_the_fake_driver` runs them all, anywhere, against `fakes/libcuda.c`, as far as that goes without kernels.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use parquet_gpu::device::cuda::{CudaBackend, devices, driver_version};
use parquet_gpu::device::{Backend, Device, DeviceChoice, Gpu, Stream};
use parquet_gpu::error::{Error, Result};
use parquet_gpu::kernels::Kernel;
use parquet_gpu::kernels::abi::ScatterArgs;
use parquet_gpu::sys::nvrtc::Nvrtc;

const MIB: u64 = 1 << 20;

/// Set in a child process to the name of the one test that it runs.
const CHILD: &str = "PARQUET_GPU_TEST_CHILD";

fn required() -> bool {
    std::env::var("PARQUET_GPU_REQUIRE_GPU").is_ok_and(|it| it == "1")
}

fn backend() -> Option<Arc<CudaBackend>> {
    match CudaBackend::open(0) {
        Ok(backend) => Some(backend),
        Err(error) if required() => panic!("PARQUET_GPU_REQUIRE_GPU is set, and there is no GPU: {error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn gpu() -> Option<(Gpu, Arc<CudaBackend>)> {
    backend().map(|it| (Gpu::new(it.clone()), it))
}

/// Whether kernels can be compiled; a real GPU under test has to have NVRTC.
fn nvrtc() -> bool {
    match Nvrtc::get(driver_version().ok().map(|it| it.0)) {
        Ok(_) => true,
        Err(error) if required() && !fake() => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

fn fake() -> bool {
    devices().is_ok_and(|it| it.iter().any(|it| it.product == "Fake GPU"))
}

/// Runs one test of this file in a process of its own and returns what it printed.
fn child(test: &str, environment: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(environment.iter().copied());
    command.output().unwrap()
}

fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|it| it == test)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs the rest of a test in a process of its own, since it looks at what the whole process keeps or breaks its GPU:
/// true in that process, false in the one that the test began in.
fn alone(test: &str) -> bool {
    if is_child(test) {
        return true;
    }
    let output = child(test, &[]);
    println!("{}", text(&output));
    assert!(output.status.success(), "{test} failed in its own process: {}", text(&output));
    false
}

fn pinned_copy(stream: &Stream, buffer: &parquet_gpu::device::DeviceBuffer) -> Vec<u8> {
    let mut pinned = stream.gpu().alloc_pinned(buffer.len() as usize).unwrap();
    // SAFETY: synchronised before the bytes are read.
    unsafe { stream.copy_to_host(&mut pinned, buffer, 0).unwrap() };
    stream.synchronize().unwrap();
    pinned.to_vec()
}

#[test]
fn devices_are_listed_without_opening_one() {
    match devices() {
        Ok(devices) => {
            let (major, _) = driver_version().unwrap();
            assert!(major >= 12);
            for (ordinal, device) in devices.iter().enumerate() {
                println!("{device:?}");
                assert_eq!(device.name, format!("cuda:{ordinal}"));
                assert_eq!(device.ordinal as usize, ordinal);
                assert!(device.capability.0 >= 5 && device.multiprocessors > 0 && device.memory > 64 * MIB);
                assert!(device.uuid.is_some_and(|it| it != [0; 16]));
                assert!(!device.host_addressable && !device.product.is_empty());
            }
        }
        Err(error) => {
            assert!(!required(), "{error}");
            println!("skipped: {error}");
            assert!(matches!(error, Error::Library { .. } | Error::Device { .. }));
        }
    }
}

#[test]
fn a_device_is_opened_once() {
    let Some(first) = backend() else { return };
    let others: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| CudaBackend::open(0).unwrap())).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(others.iter().all(|it| Arc::ptr_eq(&first, it)));
    let Device::Gpu(gpu) = Device::open(DeviceChoice::Auto).unwrap() else {
        panic!("auto is the GPU where there is one")
    };
    assert_eq!(gpu.properties(), first.properties());
    assert_eq!(gpu.properties(), &devices().unwrap()[0]);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let error = CudaBackend::open(u32::MAX).unwrap_err();
    if backend().is_some() {
        let message = error.to_string();
        assert!(matches!(error, Error::Device { .. }), "{message}");
        assert!(message.contains("cuda:4294967295") && message.contains("CUDA_VISIBLE_DEVICES"), "{message}");
    }
}

#[test]
fn slabs_are_aligned_kept_and_given_back() {
    if !alone("slabs_are_aligned_kept_and_given_back") {
        return;
    }
    let Some((gpu, backend)) = gpu() else { return };
    let released = Arc::new(Mutex::new(Vec::new()));
    let hook = released.clone();
    assert!(backend.keep_slabs(Box::new(move |address| hook.lock().unwrap().push(address))));
    let _stream = gpu.new_stream().unwrap();

    let slab = gpu.alloc_slab(3 * MIB + 5, "a test").unwrap();
    let first = slab.address();
    assert_eq!(first % 4096, 0);
    let other = gpu.alloc_slab(1, "a test").unwrap();
    assert!(other.address() % 4096 == 0 && other.address().abs_diff(first) >= 2 * MIB);
    drop(slab);
    assert_eq!(backend.statistics().kept_slab_bytes, 4 * MIB);

    // The same size again is the same memory, and nobody is told.
    let slab = gpu.alloc_slab(3 * MIB + 5, "a test").unwrap();
    assert_eq!(slab.address(), first);
    assert_eq!(backend.statistics().kept_slab_bytes, 0);
    drop(slab);
    drop(other);
    assert!(released.lock().unwrap().is_empty());

    // A larger one that fits no kept slab, and with them would be more than was ever in use.
    let large = gpu.alloc_slab(64 * MIB, "a test").unwrap();
    assert_eq!(large.address() % 4096, 0);
    assert!(released.lock().unwrap().contains(&first), "its owner has to hear before the memory goes");
    assert_eq!(backend.statistics().kept_slab_bytes, 0);
}

#[test]
fn memory_that_is_kept_is_given_back_when_it_is_short() {
    if !alone("memory_that_is_kept_is_given_back_when_it_is_short") {
        return;
    }
    let Some((gpu, backend)) = gpu() else { return };
    let stream = gpu.new_stream().unwrap();
    let free = gpu.free_memory().unwrap();
    let most = free / 10 * 6; // twice this does not fit

    // Kept slabs go for pooled memory, then the pool's reserve goes for a slab.
    drop(gpu.alloc_slab(most, "a test").unwrap());
    assert!(backend.statistics().kept_slab_bytes >= most);
    assert!(gpu.free_memory().unwrap() >= free / 10 * 9, "what is kept counts as free");
    let pooled = gpu.alloc(most, &stream, "a test").unwrap();
    assert_eq!(backend.statistics().kept_slab_bytes, 0);
    drop(pooled);
    stream.synchronize().unwrap();
    assert!(gpu.free_memory().unwrap() >= free / 10 * 9, "what the pool holds counts as free");
    drop(gpu.alloc_slab(most, "a test").unwrap());

    // What cannot be had is an error, which breaks nothing.
    let too_much = gpu.properties().memory * 2;
    let errors = [gpu.alloc(too_much, &stream, "a test").err(), gpu.alloc_slab(too_much, "a test").err()];
    for error in errors {
        let message = error.unwrap().to_string();
        assert!(message.contains("CUDA_ERROR_OUT_OF_MEMORY") && message.contains("free"), "{message}");
    }
    assert!(gpu.alloc_slab(u64::MAX, "a test").is_err() && gpu.alloc(u64::MAX, &stream, "a test").is_err());
    drop(gpu.alloc(MIB, &stream, "a test").unwrap());
    stream.synchronize().unwrap();
}

#[test]
fn a_slab_is_not_reused_before_the_work_on_it_is_done() {
    let Some((gpu, _)) = gpu() else { return };
    let (slow, fast) = (gpu.new_stream().unwrap(), gpu.new_stream().unwrap());
    let slab = gpu.alloc_slab(8 * MIB, "a test").unwrap();
    let ballast = gpu.alloc(32 * MIB, &slow, "a test").unwrap();
    let rounds = if fake() { 1 } else { 256 }; // some milliseconds of a GPU, against microseconds for what follows
    let mut seen = gpu.alloc_pinned(8 << 20).unwrap();
    slow.fill(&slab, 0, 8 << 20, 1).unwrap();
    for _ in 0..rounds {
        slow.fill(&ballast, 0, 32 << 20, 2).unwrap();
    }
    // SAFETY: `slow` is synchronised before the bytes are read; the slab's memory stays with the backend.
    unsafe { slow.copy_to_host(&mut seen, &slab, 0).unwrap() };
    drop(slab);
    let slab = gpu.alloc_slab(8 * MIB, "a test").unwrap();
    fast.fill(&slab, 0, 8 << 20, 3).unwrap();
    fast.synchronize().unwrap();
    slow.synchronize().unwrap();
    assert!(seen.iter().all(|it| *it == 1), "the slab was overwritten while a copy from it was queued");
    assert!(pinned_copy(&fast, &slab).iter().all(|it| *it == 3));
}

#[test]
fn pinned_memory_is_zeroed_and_kept() {
    if !alone("pinned_memory_is_zeroed_and_kept") {
        return;
    }
    let Some((gpu, backend)) = gpu() else { return };
    let mut first = gpu.alloc_pinned(5 << 20).unwrap();
    assert!(first.iter().all(|it| *it == 0));
    first.fill(7);
    let address = first.as_ptr();
    drop(first);
    assert_eq!(backend.statistics().kept_pinned_bytes, 5 * MIB);
    let again = gpu.alloc_pinned((5 << 20) - 100).unwrap();
    assert_eq!(again.as_ptr(), address);
    assert!(again.iter().all(|it| *it == 0), "what an earlier owner wrote shows");
    assert_eq!(backend.statistics().kept_pinned_bytes, 0);
    drop(again);
    let _large = gpu.alloc_pinned(32 << 20).unwrap();
    assert_eq!(backend.statistics().kept_pinned_bytes, 0, "more is kept than was ever in use");
    assert!(gpu.alloc_pinned(usize::MAX).is_err());
}

#[test]
fn threads_share_a_device() {
    let Some((gpu, _)) = gpu() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                let stream = gpu.new_stream().unwrap();
                let event = gpu.new_event().unwrap();
                for round in 0..32u8 {
                    let bytes = (usize::from(round) + 1) * 20_011;
                    let value = thread * 32 + round;
                    let slab = gpu.alloc_slab(bytes as u64, "a test").unwrap();
                    let pooled = gpu.alloc(bytes as u64, &stream, "a test").unwrap();
                    stream.fill(&slab, 0, bytes, value).unwrap();
                    // SAFETY: both buffers hold `bytes` bytes until the synchronisation below.
                    unsafe {
                        let (to, from) = (pooled.address(), slab.address());
                        gpu.backend().copy_on_device(stream.raw(), to, from, bytes).unwrap();
                    }
                    event.record(&stream).unwrap();
                    event.synchronize().unwrap();
                    assert!(pinned_copy(&stream, &pooled).iter().all(|it| *it == value));
                }
            });
        }
    });
}

#[test]
fn kernels_come_from_the_disk_the_second_time() {
    const TEST: &str = "kernels_come_from_the_disk_the_second_time";
    if is_child(TEST) {
        let (_, backend) = gpu().unwrap();
        backend.prepare(Kernel::ALL).unwrap();
        backend.prepare(Kernel::ALL).unwrap();
        let statistics = backend.statistics();
        println!("compiled {} cached {}.", statistics.modules_compiled, statistics.modules_from_cache);
        return;
    }
    if backend().is_none() || !nvrtc() {
        return;
    }
    let mut modules: Vec<_> = Kernel::ALL.iter().map(|it| it.module()).collect();
    modules.sort_unstable();
    modules.dedup();
    let all = modules.len();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kernels");
    let run = |compiled: usize, cached: usize| {
        let output = child(TEST, &[("PARQUET_GPU_CACHE_DIR", &cache)]);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(&format!("compiled {compiled} cached {cached}.")), "{text}");
    };
    run(all, 0);
    run(0, all);
    let torn = std::fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&torn).unwrap();
    std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
    run(1, all - 1);
    run(0, all);
}

#[test]
fn a_sticky_error_is_kept_and_repeated() {
    const TEST: &str = "a_sticky_error_is_kept_and_repeated";
    if !is_child(TEST) && (backend().is_none() || !nvrtc()) {
        return;
    }
    if !alone(TEST) {
        return;
    }
    let (gpu, backend) = gpu().unwrap();
    let (stream, event) = (gpu.new_stream().unwrap(), gpu.new_event().unwrap());
    let pooled = gpu.alloc(MIB, &stream, "a test").unwrap();
    let slab = gpu.alloc_slab(MIB, "a test").unwrap();
    let pinned = gpu.alloc_pinned(4096).unwrap();
    stream.synchronize().unwrap();

    // A table of entries where no memory can be.
    let args = ScatterArgs { entries: 64, count: 1 << 20 };
    // SAFETY: none, on purpose: the kernel's first load faults, in a process that ends with this test.
    let launched = unsafe { stream.launch(1, &args) };
    let first = launched.and_then(|()| stream.synchronize()).unwrap_err().to_string();
    for part in ["cuda:0", "CUDA_ERROR_ILLEGAL_ADDRESS", "pqgpu_scatter", "any more"] {
        assert!(first.contains(part), "{first}");
    }
    let raw = stream.raw();
    let later: Vec<(&str, Result<()>)> = vec![
        ("bind", backend.bind()),
        ("free_memory", gpu.free_memory().map(drop)),
        ("alloc", gpu.alloc(MIB, &stream, "a test").map(drop)),
        ("alloc_slab", gpu.alloc_slab(MIB, "a test").map(drop)),
        ("alloc_pinned", gpu.alloc_pinned(4096).map(drop)),
        ("new_stream", gpu.new_stream().map(drop)),
        ("new_event", gpu.new_event().map(drop)),
        ("synchronize", backend.synchronize(raw)),
        ("record", event.record(&stream)),
        ("wait", stream.wait(&event)),
        ("synchronize_event", event.synchronize()),
        ("fill", stream.fill(&pooled, 0, 16, 0)),
        ("prepare", backend.prepare(Kernel::ALL)),
        // SAFETY: nothing is launched on a device that is gone.
        ("launch", unsafe { stream.launch(1, &args) }),
        (
            "a thread",
            std::thread::spawn({
                let it = backend.clone();
                move || it.bind()
            })
            .join()
            .unwrap(),
        ),
        ("opening again", CudaBackend::open(0).unwrap().bind()),
    ];
    for (call, result) in later {
        assert_eq!(result.unwrap_err().to_string(), first, "{call}");
    }
    drop((pooled, slab, pinned, event, stream));
    assert_eq!(backend.bind().unwrap_err().to_string(), first);
}

#[test]
fn a_module_that_the_driver_refuses_is_an_error() {
    const TEST: &str = "a_module_that_the_driver_refuses_is_an_error";
    if is_child(TEST) {
        let (_, backend) = gpu().unwrap();
        let message = backend.prepare(&[Kernel::Scatter, Kernel::Utf8]).unwrap_err().to_string();
        for part in ["CUDA_ERROR_INVALID_IMAGE", "newer than the driver", "refused by the fake", ".cu"] {
            assert!(message.contains(part), "{message}");
        }
        backend.bind().unwrap();
    } else if fake() && nvrtc() {
        let output = child(TEST, &[("FAKE_CUDA_REFUSE", Path::new("200"))]);
        assert!(output.status.success(), "{}", text(&output));
    } else {
        println!("skipped: only the fake driver refuses on request; on_the_fake_driver runs this");
    }
}

/// Prints what opening says, for `opening_says_what_is_wrong`.
fn print_open_error() {
    for result in [CudaBackend::open(0).map(drop), devices().map(drop)] {
        println!("\n[{}]", result.map_or_else(|error| format!("{} {error}", error.kind()), |()| "open".into()));
    }
    assert!(Device::open(DeviceChoice::Auto).is_ok());
}

#[test]
fn opening_says_what_is_wrong() {
    const TEST: &str = "opening_says_what_is_wrong";
    if is_child(TEST) {
        return print_open_error();
    }
    if !fake() {
        let here = CudaBackend::open(0);
        assert!(here.is_ok() || !required());
        println!("{:?}; on_the_fake_driver tries the rest", here.map_err(|error| error.to_string()));
        return;
    }
    let cases: [(&str, &str, &[&str]); 5] = [
        ("FAKE_CUDA_VERSION", "11080", &["[library", "CUDA 11.8", "525"]),
        ("FAKE_CUDA_INIT", "100", &["[device", "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"]),
        ("FAKE_CUDA_INIT", "803", &["[device", "different versions", "reboot"]),
        ("FAKE_CUDA_DEVICES", "0", &["[device", "shows 0 device(s)", "nvidia-smi"]),
        ("LD_LIBRARY_PATH", "", &["[library", "libcuda.so.1", "--gpus all"]),
    ];
    for (name, value, parts) in cases {
        let output = child(TEST, &[(name, Path::new(value))]);
        let text = text(&output);
        assert!(output.status.success(), "{name}={value}: {text}");
        let open = text.lines().find(|it| it.starts_with('[')).unwrap_or_default();
        if name == "LD_LIBRARY_PATH" && open == "[open]" {
            println!("skipped: this machine has a real driver beside the fake");
            continue;
        }
        for part in parts {
            assert!(open.contains(part), "{name}={value}: {text}");
        }
    }
}

/// Builds the fake driver into `folder`; `None` where there is no C compiler, as on a machine that only runs tests.
fn build_fake(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("libcuda.c"), folder.join("libcuda.so"));
    std::fs::write(&source, include_str!("fakes/libcuda.c")).unwrap();
    let built =
        Command::new("cc").args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(&source).output();
    match built {
        Ok(output) => {
            assert!(output.status.success(), "{}", text(&output));
            Some(library)
        }
        Err(error) => {
            println!("skipped: no C compiler `cc`: {error}");
            None
        }
    }
}

#[test]
fn on_the_fake_driver() {
    if fake() {
        println!("this is the run on the fake driver");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    if build_fake(folder.path()).is_none() {
        return;
    }
    for (name, value) in [("FAKE_CUDA_MISALIGN", "0"), ("FAKE_CUDA_MISALIGN", "1")] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--nocapture", "--test-threads=2"]);
        command.env("LD_LIBRARY_PATH", folder.path()).env("PARQUET_GPU_REQUIRE_GPU", "1").env(name, value);
        command.env("PARQUET_GPU_CACHE_DIR", folder.path().join("kernels"));
        let output = command.output().unwrap();
        let text = text(&output);
        assert!(output.status.success(), "with {name}={value}: {text}");
        assert!(text.contains("this is the run on the fake driver"), "another driver was found first: {text}");
    }
}
