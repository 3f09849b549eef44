//! cuFile: the command reads through a scripted fake and through NVIDIA's own libraries, each in a process of its own,
//! and accounts for every operation.
//!
//! `PARQUET_GPU_CUFILE_WHEELS` names the folder that `.ci/cufile-wheels` filled; without it the real libraries are
//! skipped, with a line that says so.
#![cfg(all(feature = "cli", feature = "emulated"))]
#![allow(clippy::unwrap_used)]

mod fakes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use fakes::cufile as fake;
use serde_json::Value;

/// The command, where `/proc/modules` exists: without it some versions hang, and none of those is opened.
fn command() -> Command {
    let wrapper = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/with-proc-modules");
    let mut command = Command::new(wrapper);
    command.arg(env!("CARGO_BIN_EXE_pqgpu"));
    command.env_remove("PARQUET_GPU_COMPAT").env_remove("KVIKIO_COMPAT_MODE");
    command
}

/// Reads a file raw. Exit status, and the JSON object.
fn read(library: &Path, script: &str, file: &Path, arguments: &[&str]) -> (i32, Value) {
    let output = command()
        .args(["read", "--device", "emulated", "--json"])
        .arg(file)
        .args(arguments)
        .env("PARQUET_GPU_CUFILE_LIBRARY", library)
        .env("FAKE_CUFILE_SCRIPT", script)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), value)
}

fn ops(value: &Value, path: &str) -> u64 {
    value["paths"][path]["ops"].as_u64().unwrap()
}

/// A file of random bytes in tmpfs, which every version reads.
fn file(bytes: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let mut state = 1u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(bytes)
    .collect();
    file.write_all(&content).unwrap();
    file
}

/// 9 MiB and a bit: three operations, the last with an end that is no edge.
const BYTES: usize = (9 << 20) + 123;

/// What holds of every library, real or not: the bytes are right and each operation is accounted for once.
fn every_library(library: &Path, script: &str) -> Value {
    let file = file(BYTES);
    let (status, value) = read(library, script, file.path(), &["--verify", "--compat", "off"]);
    assert_eq!(status, 0, "{value}");
    assert_eq!(value["verified"], true, "{value}");
    let cufile: u64 = ["nvfs", "p2p", "cufile_posix", "unknown"].iter().map(|it| ops(&value, it)).sum();
    assert_eq!((cufile, ops(&value, "host"), ops(&value, "unaccounted")), (3, 0, 0), "{value}");
    value
}

#[test]
fn every_version_of_the_fake() {
    for version in ["1.15", "1.18", "1.19", "1.20"] {
        let value = every_library(fake(), &format!("version={version};reads=nvfs,p2p,posix"));
        assert_eq!(
            (ops(&value, "nvfs"), ops(&value, "p2p"), ops(&value, "cufile_posix")),
            (1, 1, 1),
            "{version} {value}"
        );
        assert_eq!(value["verdict"], "mixed");
    }
    // Before 1.15 there are no statistics: never called direct.
    let value = every_library(fake(), "version=1.14;reads=nvfs");
    assert_eq!((ops(&value, "unknown"), &value["verdict"]), (3, &"unknown".into()));
}

#[test]
fn the_libraries_from_pypi() {
    let Some(wheels) = std::env::var_os("PARQUET_GPU_CUFILE_WHEELS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CUFILE_WHEELS is not set");
        return;
    };
    for version in ["1.18.1.6", "1.20.0.107"] {
        let library = wheels.join(version).join("nvidia/cu13/lib/libcufile.so.0");
        let value = every_library(&library, "");
        // In host memory they count no GPU's reads, so the path is not proven.
        assert_eq!(value["verdict"], "unknown", "{value}");
    }
}

#[test]
fn a_gibibyte_is_256_operations() {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(1 << 30).unwrap(); // sparse: what counts here are operations
    let (status, value) = read(fake(), "version=1.15;reads=nvfs", file.path(), &["--require-gds"]);
    assert_eq!((status, ops(&value, "nvfs"), ops(&value, "cufile_posix")), (0, 256, 0), "{value}");
    assert_eq!((ops(&value, "unaccounted"), &value["verdict"]), (0, &"direct".into()));
    assert_eq!(value["paths"]["nvfs"]["bytes"], 1u64 << 30);

    let (status, value) = read(fake(), "version=1.20;reads=nvfs*253,posix*3,nvfs", file.path(), &["--require-gds"]);
    assert_eq!((status, ops(&value, "nvfs"), ops(&value, "cufile_posix")), (3, 253, 3), "{value}");
    assert_eq!((ops(&value, "unaccounted"), &value["verdict"]), (0, &"mixed".into()));
}

#[test]
fn short_reads_continue_and_an_early_end_is_an_error() {
    let file = file(BYTES);
    let (status, value) = read(fake(), "version=1.15;reads=short,short,nvfs", file.path(), &["--verify"]);
    assert_eq!((status, &value["verified"]), (0, &true.into()), "{value}");
    assert_eq!((ops(&value, "nvfs"), ops(&value, "unaccounted")), (5, 0), "{value}");
    let (status, value) = read(fake(), "version=1.15;reads=eof", file.path(), &[]);
    assert_eq!((status, &value["error"]["kind"]), (1, &"io".into()), "{value}");
}

#[test]
fn both_forms_of_errors_are_named() {
    let file = file(BYTES);
    for (script, name) in [
        ("reads=error:5011", "CU_FILE_CUDA_DRIVER_ERROR"),
        ("reads=errno:5022", "CU_FILE_INVALID_VALUE"),
        ("reads=nvfs,error:5016", "CU_FILE_INVALID_MAPPING_SIZE"),
        ("reads=errno:5", "os error 5"),
        ("reads=error:13", "os error 13"),
    ] {
        let (status, value) = read(fake(), &format!("version=1.15;{script}"), file.path(), &[]);
        assert_eq!(status, 1, "{value}");
        assert!(value["error"]["message"].as_str().unwrap().contains(name), "{value}");
    }
}

#[test]
fn refusals_fall_back_or_fail_by_compat_mode() {
    let file = file(BYTES);
    for (script, why) in [
        ("open=5001", "CU_FILE_DRIVER_NOT_INITIALIZED"),
        ("handle=5027", "/run/udev/data"),
        ("handle=5008", "CU_FILE_IO_NOT_SUPPORTED"),
    ] {
        let script = format!("version=1.15;{script}");
        let (status, value) = read(fake(), &script, file.path(), &["--verify"]);
        assert_eq!((status, ops(&value, "host"), &value["verified"]), (0, 3, &true.into()), "{value}");
        let (reason, count) = value["fallbacks"].as_object().unwrap().iter().next().unwrap();
        assert!(reason.contains(why) && *count == 3, "{value}");
        let (status, _) = read(fake(), &script, file.path(), &["--require-gds"]);
        assert_eq!(status, 3);
        let (status, value) = read(fake(), &script, file.path(), &["--compat", "off"]);
        assert!(status == 1 && value["error"]["message"].as_str().unwrap().contains(why), "{value}");
        // `on` never opens the driver, so nothing is refused.
        let (status, value) = read(fake(), &script, file.path(), &["--compat", "on"]);
        assert_eq!((status, ops(&value, "host"), &value["fallbacks"]), (0, 3, &serde_json::json!({})), "{value}");
    }
    let (status, value) = read(Path::new("/nonexistent/libcufile.so"), "", file.path(), &["--compat", "off"]);
    assert_eq!((status, &value["error"]["kind"]), (1, &"library".into()), "{value}");
}

#[test]
fn a_descriptor_without_o_direct_is_tried_next() {
    let file = file(BYTES);
    let output = command()
        .args(["read", "--device", "emulated", "--json", "--verify", "--compat", "off"])
        .arg(file.path())
        .env("CUFILE_USE_PCIP2PDMA", "true") // O_DIRECT is tried first then
        .env("PARQUET_GPU_CUFILE_LIBRARY", fake())
        .env("FAKE_CUFILE_SCRIPT", "version=1.15;reads=posix;direct=5018")
        .output()
        .unwrap();
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&value["verified"], &value["verdict"]), (&true.into(), &"cpu_memory".into()), "{value}");
}

#[test]
fn memory_that_cannot_be_registered_is_read_into_and_noted() {
    let value = every_library(fake(), "version=1.15;reads=nvfs;buffer=5036");
    assert!(value["remarks"][0].as_str().unwrap().contains("CU_FILE_GPU_MEMORY_PINNING_FAILED"), "{value}");
    assert_eq!(value["verdict"], "direct");
}

#[test]
fn reads_of_others_are_unaccounted_and_ours_are_not_called_direct() {
    let file = file(BYTES);
    let (status, value) = read(fake(), "version=1.20;reads=posix,nvfs;foreign=1", file.path(), &["--require-gds"]);
    assert_eq!((status, ops(&value, "unaccounted"), &value["verdict"]), (3, 3, &"unaccounted".into()), "{value}");
    assert_eq!((ops(&value, "cufile_posix"), ops(&value, "nvfs")), (1, 2), "{value}");
    // Reads that cuFile does not know of.
    let (_, value) = read(fake(), "version=1.20;reads=uncounted,nvfs", file.path(), &[]);
    assert_eq!((ops(&value, "nvfs"), ops(&value, "unaccounted")), (2, 1), "{value}");
}

#[test]
fn statistics_that_somebody_turned_off_prove_nothing() {
    let file = file(BYTES);
    let (status, value) = read(fake(), "version=1.20;reads=nvfs;level=0", file.path(), &["--require-gds"]);
    assert_eq!((status, ops(&value, "unknown"), &value["verdict"]), (3, 3, &"unknown".into()), "{value}");
}

#[test]
fn the_row_of_our_gpu_counts() {
    let file = file(BYTES);
    let uuid: String = b"pqgpu-emulated\0\0".iter().map(|it| format!("{it:02x}")).collect();
    for version in ["1.18", "1.19"] {
        // Meanwhile somebody reads to another GPU, through CPU memory.
        let script = format!("version={version};reads=nvfs;gpus=2;other=5;uuid={uuid}");
        let (status, value) = read(fake(), &script, file.path(), &["--require-gds"]);
        assert_eq!((status, ops(&value, "nvfs"), &value["verdict"]), (0, 3, &"direct".into()), "{value}");
        assert_eq!((ops(&value, "cufile_posix"), ops(&value, "unaccounted")), (0, 0), "{value}");
        // No row is ours by name: whose reads were whose is not known, and ours may be those through CPU memory.
        let script = format!("version={version};reads=nvfs;gpus=2;other=5");
        let (status, value) = read(fake(), &script, file.path(), &["--require-gds"]);
        assert_eq!((status, &value["verdict"]), (3, &"unaccounted".into()), "{value}");
    }
}

/// A file of several row groups in which large chunks lie between small ones, each too far from the next to be read
/// along.
fn large_and_small_chunks() -> tempfile::NamedTempFile {
    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    let file = tempfile::Builder::new().suffix(".parquet").tempfile_in("/dev/shm").unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(3000));
    let mut writer = None;
    for group in 0..4i64 {
        // 24 KB a large chunk, 12 KB a small one.
        let large =
            |salt: i64| Arc::new(Int64Array::from_iter_values((0..3000).map(|it| it * salt + group))) as ArrayRef;
        let small = |salt: i32| {
            Arc::new(Int32Array::from_iter_values((0..3000).map(|it| it ^ (salt + group as i32)))) as ArrayRef
        };
        let columns = [
            ("a", large(7)),
            ("b", small(1)),
            ("skipped", large(9)),
            ("c", small(2)),
            ("gap", small(3)),
            ("d", large(11)),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let writer = writer.get_or_insert_with(|| {
            ArrowWriter::try_new(file.reopen().unwrap(), batch.schema(), Some(properties.clone().build())).unwrap()
        });
        writer.write(&batch).unwrap();
        writer.flush().unwrap();
    }
    writer.unwrap().close().unwrap();
    file
}

#[test]
fn direct_and_host_ranges_of_one_batch_share_a_slab_with_the_batch_before() {
    let file = large_and_small_chunks();
    for seed in 0..6 {
        let output = command()
            .args(["scan", "--json", "--verify", "--compat", "off", "--columns", "a,c,d", "--batch-rows", "3000"])
            .args(["--merge-gap", "0", "--device", &format!("emulated:{seed}")])
            .arg(file.path())
            .env("PARQUET_GPU_CUFILE_LIBRARY", fake())
            .env("FAKE_CUFILE_SCRIPT", "version=1.15;reads=nvfs")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!((output.status.code(), &value["verified"]), (Some(0), &true.into()), "{value}");
        assert_eq!((ops(&value, "nvfs"), ops(&value, "host"), ops(&value, "unaccounted")), (8, 4, 0), "{value}");
    }
}

/// The libraries under test: name, file, and what to script of the fake.
fn libraries() -> Vec<(&'static str, PathBuf, &'static str)> {
    let mut libraries = vec![
        ("fake 1.18", fake().to_path_buf(), "version=1.18;gpus=0"),
        ("fake 1.20", fake().to_path_buf(), "version=1.20;gpus=0"),
    ];
    match std::env::var_os("PARQUET_GPU_CUFILE_WHEELS").map(PathBuf::from) {
        Some(wheels) => libraries.extend(
            ["1.18.1.6", "1.20.0.107"]
                .map(|version| (version, wheels.join(version).join("nvidia/cu13/lib/libcufile.so.0"), "")),
        ),
        None => println!("skipped the real libraries: PARQUET_GPU_CUFILE_WHEELS is not set"),
    }
    libraries
}

/// Misuse fails alike in the fake and in the real libraries, and their statistics behave alike. Each is tried in a process
/// of its own, which is this test again.
#[test]
fn misuse_fails_alike() {
    const LIBRARY: &str = "PARQUET_GPU_TEST_MISUSE";
    if let Some(library) = std::env::var_os(LIBRARY) {
        return misuse(Path::new(&library));
    }
    for (name, library, script) in libraries() {
        let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/with-proc-modules"))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "misuse_fails_alike", "--nocapture"])
            .env(LIBRARY, &library)
            .env("FAKE_CUFILE_SCRIPT", script)
            .env("CUFILE_LOGFILE_PATH", "/dev/null")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}{complaint}");
    }
}

fn misuse(path: &Path) {
    use parquet_gpu::sys::cufile::{
        CuFile, Descriptor, FdOrPointer, HANDLE_TYPE_FD, Layout, STATISTICS_BUFFER, Status,
    };
    use std::os::fd::AsRawFd;
    let library = CuFile::load(path).unwrap();
    let functions = &library.functions;
    let file = file(1000);
    let mut memory = vec![0u8; 4096];
    let address = memory.as_mut_ptr();
    let describe = |kind, fd| {
        let mut descriptor =
            Descriptor { kind, fd: FdOrPointer { pointer: std::ptr::null_mut() }, operations: std::ptr::null() };
        descriptor.fd.fd = fd;
        descriptor
    };
    let mut handle = std::ptr::null_mut();
    let mut other = std::ptr::null_mut();
    let errno = || std::io::Error::last_os_error().raw_os_error();
    let mut words = vec![u64::MAX; STATISTICS_BUFFER / 8];
    // SAFETY: the structures and the memory live through the calls, reads fit the memory, and the buffer of words is
    // larger than any structure of statistics.
    unsafe {
        let stop = libloading::Library::new(path).unwrap();
        let stop = stop.get::<unsafe extern "C" fn() -> Status>("cuFileStatsStop\0").unwrap();
        let (set, level) = (functions.cuFileSetStatsLevel.unwrap(), functions.cuFileGetStatsLevel.unwrap());
        let (level1, level3) = (functions.cuFileGetStatsL1.unwrap(), functions.cuFileGetStatsL3.unwrap());

        // Before the driver is open.
        assert_eq!((functions.cuFileDriverClose)().code, 5001);
        assert_eq!((functions.cuFileBufDeregister)(address.cast()).code, 5006);
        assert_eq!((set(4).code, set(3).code), (5022, 0));
        assert_eq!(level3(words.as_mut_ptr().cast()).code, 5001);
        assert_eq!((functions.cuFileDriverOpen)().code, 0);

        assert_eq!((functions.cuFileBufRegister)(address.cast(), 4096, 0).code, 0);
        assert_eq!((functions.cuFileBufRegister)(address.cast(), 4096, 0).code, 5023);
        assert_eq!((functions.cuFileBufDeregister)(address.cast()).code, 0);
        assert_eq!((functions.cuFileBufDeregister)(address.cast()).code, 5024);
        assert_eq!((functions.cuFileBufRegister)(std::ptr::null(), 4096, 0).code, 5022);
        assert_eq!((functions.cuFileBufRegister)(address.cast(), 0, 0).code, 5022);
        assert_eq!((functions.cuFileBufDeregister)(std::ptr::null()).code, 5022);

        let mut descriptor = describe(HANDLE_TYPE_FD, file.as_file().as_raw_fd());
        assert_eq!((functions.cuFileHandleRegister)(&mut handle, &mut descriptor).code, 0);
        assert_eq!((functions.cuFileHandleRegister)(&mut other, &mut descriptor).code, 5028);
        assert_eq!((functions.cuFileHandleRegister)(&mut other, &mut describe(HANDLE_TYPE_FD, 1 << 20)).code, 5022);
        assert_eq!((functions.cuFileHandleRegister)(&mut other, &mut describe(7, descriptor.fd.fd)).code, 5008);
        let folder = std::fs::File::open("/dev/shm").unwrap();
        let mut no_file = describe(HANDLE_TYPE_FD, folder.as_raw_fd());
        assert_eq!((functions.cuFileHandleRegister)(&mut other, &mut no_file).code, 5018);

        assert_eq!(((functions.cuFileRead)(handle, std::ptr::null_mut(), 10, 0, 0), errno()), (-1, Some(libc::EINVAL)));
        assert_eq!(((functions.cuFileRead)(other, address.cast(), 10, 0, 0), errno()), (-1, Some(libc::EINVAL)));
        assert_eq!(((functions.cuFileRead)(handle, address.cast(), 10, -1, 0), errno()), (-1, Some(5022)));
        let unknown = 0x1234 as *mut _;
        assert_eq!(((functions.cuFileRead)(unknown, address.cast(), 10, 0, 0), errno()), (-1, Some(5027)));
        let write_only = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        let mut writes = describe(HANDLE_TYPE_FD, write_only.as_raw_fd());
        assert_eq!((functions.cuFileHandleRegister)(&mut other, &mut writes).code, 0);
        assert_eq!(((functions.cuFileRead)(other, address.cast(), 10, 0, 0), errno()), (-1, Some(5019)));
        (functions.cuFileHandleDeregister)(other);
        // Outside registered memory. Where it is not registered, nothing is checked.
        assert_eq!((functions.cuFileBufRegister)(address.cast(), 4096, 0).code, 0);
        assert_eq!(((functions.cuFileRead)(handle, address.cast(), 10, 0, -1), errno()), (-1, Some(5030)));
        assert_eq!(((functions.cuFileRead)(handle, address.cast(), 4096, 0, 4096), errno()), (-1, Some(5017)));
        assert_eq!((functions.cuFileBufDeregister)(address.cast()).code, 0);

        // The end of the file, before it and at it.
        assert_eq!((functions.cuFileRead)(handle, address.cast(), 4096, 0, 0), 1000);
        assert_eq!((functions.cuFileRead)(handle, address.cast(), 4096, 1000, 0), 0);
        assert_eq!(memory[..1000], std::fs::read(file.path()).unwrap()[..]);

        // Statistics: setting the level again keeps what was counted, stopping loses it; tails stay as they were.
        assert_eq!((set(3).code, level1(words.as_mut_ptr().cast()).code), (0, 0));
        assert_eq!(words[0], 2, "reads that went well, the one at the end among them");
        words.fill(u64::MAX);
        assert_eq!(level3(words.as_mut_ptr().cast()).code, 0);
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        let end = Layout::of(library.version()).gpus + 4;
        assert_eq!(bytes[end - 4..end], [0; 4], "no GPU reads into host memory");
        assert!(bytes[end..].iter().all(|it| *it == 0xff), "rows of no GPU stay untouched");
        assert_eq!((set(1).code, level3(words.as_mut_ptr().cast()).code), (0, 5022));
        let mut now = -1;
        assert_eq!((stop().code, level(&mut now).code, now), (0, 0, 0));
        assert_eq!(level1(words.as_mut_ptr().cast()).code, 5022);

        (functions.cuFileHandleDeregister)(handle);
        assert_eq!((functions.cuFileDriverClose)().code, 0);
    }
}

/// A GPU's row in the fake lies where cuFile 1.20 has it, by numbers that are not the crate's own; nothing behind it is
/// touched.
#[test]
fn the_fake_writes_rows_where_they_belong() {
    use parquet_gpu::sys::cufile::{CuFile, Descriptor, FdOrPointer, HANDLE_TYPE_FD};
    use std::os::fd::AsRawFd;
    let library = CuFile::load(fake()).unwrap();
    let functions = &library.functions;
    let file = file(1000);
    let mut memory = vec![0u8; 4096];
    let mut handle = std::ptr::null_mut();
    let mut descriptor = Descriptor {
        kind: HANDLE_TYPE_FD,
        fd: FdOrPointer { pointer: std::ptr::null_mut() },
        operations: std::ptr::null(),
    };
    descriptor.fd.fd = file.as_file().as_raw_fd();
    let mut words = vec![u64::MAX; 1024];
    // SAFETY: the structures and the memory live through the calls, the read fits the memory, and the buffer of words is
    // larger than the structure of statistics.
    unsafe {
        assert_eq!(functions.cuFileSetStatsLevel.unwrap()(3).code, 0);
        assert_eq!((functions.cuFileHandleRegister)(&mut handle, &mut descriptor).code, 0, "it opens the driver");
        assert_eq!((functions.cuFileRead)(handle, memory.as_mut_ptr().cast(), 4096, 0, 0), 1000);
        assert_eq!(functions.cuFileGetStatsL3.unwrap()(words.as_mut_ptr().cast()).code, 0);
        (functions.cuFileHandleDeregister)(handle);
        assert_eq!((functions.cuFileDriverClose)().code, 0);
    }
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    assert_eq!((bytes[1136], bytes[1144 + 48], bytes[1144 + 72]), (1, 1, 1), "one GPU, one read, by POSIX");
    assert!(bytes[1144 + 248..].iter().all(|it| *it == 0xff), "rows behind the last stay untouched");
}
