//! Direct and host ranges of one fetch, through the fake libcufile, which reads at once what a stream may still use.
//! One test: a process opens cuFile once.
#![cfg(feature = "emulated")]
#![allow(clippy::unwrap_used)]

mod fakes;

use std::io::Write;
use std::sync::Arc;

use parquet_gpu::device::emulated::EmulatedBackend;
use parquet_gpu::device::{DeviceBuffer, Gpu, Stream};
use parquet_gpu::io::Source;
use parquet_gpu::io::fetch::Fetcher;
use parquet_gpu::io::ledger::Ledger;
use parquet_gpu::plan::{RangePlan, Route, RouteReason};
use parquet_gpu::sys::cufile::CuFile;
use parquet_gpu::{CompatMode, IoOptions};

const BYTES: usize = 1 << 20;
const UNTOUCHED: u8 = 0xa7;
/// `CU_FILE_MEMORY_NOT_REGISTERED`.
const MEMORY_NOT_REGISTERED: i32 = 5024;

fn range(read: std::ops::Range<u64>, route: Route, task_size: u64) -> RangePlan {
    let starts = (read.start..read.end).step_by(task_size as usize);
    let tasks = starts.map(|start| start..read.end.min(start + task_size)).collect();
    let slab_offset = Some(read.start);
    RangePlan { bytes: read.clone(), read, wasted: 0, route, reason: RouteReason::Eligible, slab_offset, tasks }
}

/// The slab as it is now, without waiting for anything: the emulated device's memory is the process's.
fn peek(slab: &DeviceBuffer) -> Vec<u8> {
    let address = std::ptr::with_exposed_provenance::<u8>(slab.address() as usize);
    // SAFETY: the slab is this long and initialised, and nothing runs beside this.
    unsafe { std::slice::from_raw_parts(address, slab.len() as usize) }.to_vec()
}

fn filled(stream: &Stream) -> DeviceBuffer {
    let slab = stream.gpu().alloc_slab(BYTES as u64, "a test").unwrap();
    stream.fill(&slab, 0, BYTES, UNTOUCHED).unwrap();
    slab
}

#[test]
fn direct_and_host_ranges_of_one_fetch() {
    // SAFETY: no other thread has been started.
    unsafe { std::env::set_var("FAKE_CUFILE_SCRIPT", "version=1.15;reads=nvfs*24,error:5022,nvfs") };
    let data: Vec<u8> = (0..BYTES as u64).map(|it| (it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let mut file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.write_all(&data).unwrap();
    let source = Arc::new(Source::open(file.path().to_str().unwrap()).unwrap());
    let options = IoOptions::default().with_compat_mode(CompatMode::Off).with_cufile_library(fakes::cufile());
    // Large on the host, two small ones that are scattered, and the rest direct: 4 operations.
    let ranges = [
        range(0..200_000, Route::Host, 8192),
        range(200_000..201_000, Route::Host, 8192),
        range(201_000..202_000, Route::Host, 8192),
        range(202_000..BYTES as u64, Route::Direct, 256 << 10),
    ];
    let others = CuFile::load(fakes::cufile()).unwrap();
    for seed in 0..6 {
        let gpu = Gpu::new(EmulatedBackend::new(seed));
        let stream = gpu.new_stream().unwrap();
        let slab = filled(&stream);
        let mut before = vec![0; BYTES];
        // SAFETY: synchronised before `before` is read.
        unsafe { stream.copy_to_host(&mut before, &slab, 0).unwrap() };
        let ledger = Arc::new(Ledger::default());
        // SAFETY: the slab is memory until the test ends its registration.
        let register = || unsafe { (others.functions.cuFileBufRegister)(slab.address() as *const _, BYTES, 0).code };
        // SAFETY: nothing reads into the slab any more.
        let deregister = || unsafe { (others.functions.cuFileBufDeregister)(slab.address() as *const _).code };
        let somebody_registered_it = seed % 2 == 1;
        if somebody_registered_it {
            assert_eq!(register(), 0);
        }
        let mut fetcher = Fetcher::new(source.clone(), options.clone(), Some(gpu), ledger.clone());
        fetcher.fetch(&ranges, Some((&slab, &stream))).unwrap();
        stream.synchronize().unwrap();
        assert!(before.iter().all(|it| *it == UNTOUCHED), "seed {seed}: the slab was still in use");
        assert!(peek(&slab) == data, "seed {seed}");
        let report = ledger.report();
        assert_eq!((report.nvfs.ops, report.host.ops, report.unaccounted.ops), (4, 25 + 2, 0));
        assert_eq!(report.remarks, [""; 0]);
        fetcher.release_slab();
        // A registration that somebody else made is theirs to end; ours has ended.
        assert_eq!(deregister(), if somebody_registered_it { 0 } else { MEMORY_NOT_REGISTERED });
    }

    // The operation after those fails; host reads under way end, and nothing of them comes later.
    for seed in 0..6 {
        let gpu = Gpu::new(EmulatedBackend::new(seed));
        let stream = gpu.new_stream().unwrap();
        let slab = filled(&stream);
        let mut fetcher = Fetcher::new(source.clone(), options.clone(), Some(gpu), Arc::default());
        let outcome = fetcher.fetch(&ranges, Some((&slab, &stream)));
        assert_eq!(outcome.is_err(), seed == 0, "seed {seed}: {outcome:?}");
        if let Err(error) = outcome {
            assert_eq!(error.kind(), "cufile", "{error}");
            let seen = peek(&slab);
            drop(fetcher);
            stream.synchronize().unwrap();
            assert!(peek(&slab) == seen, "something was written after the error");
        } else {
            stream.synchronize().unwrap();
            assert!(peek(&slab) == data);
            fetcher.release_slab();
        }
    }
}
