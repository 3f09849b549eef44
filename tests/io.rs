//! Ranges of a source into device and host memory: every byte in its place, every operation in the ledger.
#![allow(clippy::unwrap_used)]

mod devices;

use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use bytes::Bytes;
use parquet::file::reader::ChunkReader;
use parquet_gpu::device::{DeviceBuffer, Gpu, Stream};
use parquet_gpu::io::fetch::Fetcher;
use parquet_gpu::io::ledger::{Count, Ledger, PathReport};
use parquet_gpu::plan::{RangePlan, Route, RouteReason};
use parquet_gpu::{CompatMode, Error, IoOptions, io::Source};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// What the slab holds where no range lands.
const UNTOUCHED: u8 = 0xa7;

/// Bytes that differ from their neighbours.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|it| (it.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn open(file: &tempfile::NamedTempFile) -> Arc<Source> {
    Arc::new(Source::open(file.path().to_str().unwrap()).unwrap())
}

fn range(read: Range<u64>, slab_offset: Option<u64>, task_size: u64) -> RangePlan {
    let starts = (read.start..read.end).step_by(usize::try_from(task_size).unwrap());
    let tasks = starts.map(|start| start..read.end.min(start + task_size)).collect();
    let reason = if slab_offset.is_some() { RouteReason::CompatOn } else { RouteReason::CpuDecode("a test".into()) };
    RangePlan { bytes: read.clone(), read, wasted: 0, route: Route::Host, reason, slab_offset, tasks }
}

/// A slab that shows what was written to it.
fn slab(bytes: u64, stream: &Stream) -> DeviceBuffer {
    let slab = stream.gpu().alloc_slab(bytes, "a test").unwrap();
    stream.fill(&slab, 0, bytes as usize, UNTOUCHED).unwrap();
    slab
}

fn download(slab: &DeviceBuffer, stream: &Stream) -> Vec<u8> {
    let mut bytes = vec![0; slab.len() as usize];
    // SAFETY: synchronised before `bytes` is read.
    unsafe { stream.copy_to_host(&mut bytes, slab, 0).unwrap() };
    stream.synchronize().unwrap();
    bytes
}

/// Reads the ranges twice with one fetcher, compares every byte of the slab and of the host's ranges, and returns the
/// account of both reads.
fn read_and_compare(
    source: &Arc<Source>,
    data: &[u8],
    ranges: &[RangePlan],
    options: &IoOptions,
    gpu: &Gpu,
) -> PathReport {
    let slab_bytes = ranges.iter().filter_map(|it| Some(it.slab_offset? + it.read.end - it.read.start)).max();
    let ledger = Arc::new(Ledger::default());
    let stream = gpu.new_stream().unwrap();
    let mut fetcher = Fetcher::new(source.clone(), options.clone(), Some(gpu.clone()), ledger.clone());
    for _ in 0..2 {
        let slab = slab(slab_bytes.unwrap_or(0) + 37, &stream);
        let host = fetcher.fetch(ranges, Some((&slab, &stream))).unwrap();
        let mut expected = vec![UNTOUCHED; slab.len() as usize];
        for it in ranges {
            let bytes = &data[it.read.start as usize..it.read.end as usize];
            match it.slab_offset {
                Some(offset) => expected[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes),
                None if bytes.is_empty() => {}
                None => assert!(host.get_bytes(it.read.start, bytes.len()).unwrap() == bytes, "{it:?}"),
            }
        }
        let seen = download(&slab, &stream);
        let difference = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
        assert_eq!(difference, None, "byte of the slab");
        fetcher.release_slab();
    }
    ledger.report()
}

/// Gap in the file, length, gap in the slab, and whether it goes to the slab.
type Part = (u64, u64, u64, bool);

/// A batch as a plan may have it: ranges that do not overlap, with gaps between them in file and slab; task size,
/// threshold, threads, and whether the source is a local file.
fn batch() -> impl Strategy<Value = (Vec<Part>, u64, u64, usize, bool)> {
    let one = (0u64..300, prop_oneof![0u64..40, 0u64..5000, 0u64..60_000], 0u64..70, prop::bool::weighted(0.8));
    let task_size = prop_oneof![Just(4097u64), Just(1 << 12), Just(1 << 14), Just(1000u64), Just(1 << 22)];
    let threshold = prop_oneof![Just(0u64), Just(1000u64), Just(16 << 10), Just(u64::MAX)];
    (prop::collection::vec(one, 0..24), task_size, threshold, 1usize..9, any::<bool>())
}

#[test]
fn every_byte_of_every_range_lands_in_its_place_and_nowhere_else() {
    for (seed, cases) in [(0, 40), (1, 20), (2, 20), (5, 20)] {
        for gpu in devices::devices(seed) {
            let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(cases) });
            let checked = runner.run(&batch(), |(parts, task_size, threshold, threads, local)| {
                let (mut at, mut place, mut ranges) = (0, 0, Vec::new());
                for (gap, length, slab_gap, to_slab) in parts {
                    at += gap;
                    place += slab_gap;
                    ranges.push(range(at..at + length, to_slab.then_some(place), task_size));
                    (at, place) = (at + length, place + length);
                }
                let data = pattern(at as usize + 11);
                let file = file(&data);
                let source =
                    if local { open(&file) } else { Arc::new(Source::from_bytes("memory", data.clone().into())) };
                let options =
                    IoOptions::default().with_task_size(task_size).with_gds_threshold(threshold).with_threads(threads);
                let report = read_and_compare(&source, &data, &ranges, &options, &gpu);
                let ops: u64 = ranges.iter().map(|it| it.tasks.len() as u64).sum();
                let bytes: u64 = ranges.iter().map(|it| it.read.end - it.read.start).sum();
                prop_assert_eq!(report.host, Count { ops: 2 * ops, bytes: 2 * bytes });
                Ok(())
            });
            checked.unwrap();
        }
    }
}

#[test]
fn tasks_of_a_single_byte() {
    let data = pattern(300);
    let file = file(&data);
    let ranges = [range(3..203, Some(5), 1), range(210..300, None, 1)];
    for gpu in devices::devices_with(&[0, 1, 2]) {
        for threads in 1..=8 {
            let options = IoOptions::default().with_task_size(1).with_threads(threads).with_gds_threshold(0);
            let report = read_and_compare(&open(&file), &data, &ranges, &options, &gpu);
            assert_eq!(report.host, Count { ops: 2 * 290, bytes: 2 * 290 });
        }
    }
}

#[test]
fn a_plan_made_with_larger_tasks_is_cut_into_ours() {
    let data = pattern(100_000);
    let ranges = [range(0..100_000, Some(0), 1 << 20)];
    for gpu in devices::devices(2) {
        let options = IoOptions::default().with_task_size(1000);
        let report = read_and_compare(&open(&file(&data)), &data, &ranges, &options, &gpu);
        assert_eq!(report.host.ops, 2 * 100);
    }
}

#[test]
fn small_ranges_travel_in_one_launch() {
    let data = pattern(64 << 10);
    let file = file(&data);
    let ranges: Vec<_> =
        (0..64).map(|it| range(it * 1024..it * 1024 + 1 + it * 15, Some(it * 1024 + it % 17), 4096)).collect();
    for gpu in devices::devices_with(&[0, 1, 2]) {
        let gpu = gpu.with_budget(u64::MAX); // with counters that no other test moves
        let before = gpu.counters().launches();
        read_and_compare(&open(&file), &data, &ranges, &IoOptions::default(), &gpu);
        assert_eq!(gpu.counters().launches() - before, 2, "one a fetch");
        let before = gpu.counters().launches();
        read_and_compare(&open(&file), &data, &ranges[..1], &IoOptions::default(), &gpu);
        assert_eq!(gpu.counters().launches() - before, 0, "a range alone needs no kernel");
    }
}

#[test]
fn small_ranges_that_the_budget_cannot_hold_twice_still_arrive() {
    let data = pattern(8 << 10);
    let file = file(&data);
    let ranges: Vec<_> = (0..8).map(|it| range(it * 1024..it * 1024 + 1000, Some(it * 1024 + 3), 4096)).collect();
    for gpu in devices::devices_with(&[0, 1, 2]) {
        let gpu = gpu.with_budget(10 << 10);
        read_and_compare(&open(&file), &data, &ranges, &IoOptions::default(), &gpu);
        assert_eq!(gpu.counters().launches(), 0);
    }
}

#[test]
fn bytes_land_after_the_work_that_still_uses_the_slab() {
    let data = pattern(40_000);
    let file = file(&data);
    // One through bounce buffers, two that are scattered.
    let ranges = [
        range(0..30_000, Some(0), 8192),
        range(30_000..35_000, Some(30_000), 8192),
        range(35_000..40_000, Some(35_000), 8192),
    ];
    for gpu in devices::devices_with(&[0, 1, 2, 4, 5]) {
        let stream = gpu.new_stream().unwrap();
        let slab = slab(40_000, &stream);
        let mut fetcher = Fetcher::new(open(&file), IoOptions::default(), Some(gpu.clone()), Arc::default());
        let mut copy = vec![0; 40_000];
        // SAFETY: synchronised before `copy` is read.
        unsafe { stream.copy_to_host(&mut copy, &slab, 0).unwrap() };
        fetcher.fetch(&ranges, Some((&slab, &stream))).unwrap();
        assert!(download(&slab, &stream) == data);
        assert!(copy.iter().all(|it| *it == UNTOUCHED), "the slab was read before the fetch was queued");
    }
}

#[test]
fn host_memory_needs_no_device() {
    let data = pattern(100_000);
    let file = file(&data);
    let ledger = Arc::new(Ledger::default());
    let options = IoOptions::default().with_task_size(4097);
    for source in [open(&file), Arc::new(Source::from_bytes("memory", data.clone().into()))] {
        let mut fetcher = Fetcher::new(source, options.clone(), None, ledger.clone());
        let ranges = [range(0..10, None, 4097), range(50..99_999, None, 4097)];
        let host = fetcher.fetch(&ranges, None).unwrap();
        assert!(host.get_bytes(1, 9).unwrap() == data[1..10]);
        assert!(host.get_bytes(50, 99_949).unwrap() == data[50..99_999]);
        host.get_bytes(9, 2).expect_err("beyond the range");
        host.get_bytes(20, 1).expect_err("between ranges");
        assert!(fetcher.fetch(&[], None).unwrap().get_bytes(0, 1).is_err());
    }
    let expected = Count { ops: 2 * 26, bytes: 2 * 99_959 };
    let report = ledger.report();
    assert_eq!((report.host, report.reasons["decoded on the CPU: a test"]), (expected, expected));
}

#[test]
fn a_file_that_shrinks_is_an_error_and_the_fetcher_stays_usable() {
    let data = pattern(1 << 20);
    for gpu in devices::devices_with(&[0, 1, 2]) {
        let file = file(&data);
        let source = open(&file);
        let stream = gpu.new_stream().unwrap();
        let slab = slab(1 << 20, &stream);
        let options = IoOptions::default().with_task_size(4096).with_threads(4);
        let ledger = Arc::new(Ledger::default());
        let mut fetcher = Fetcher::new(source, options, Some(gpu.clone()), ledger.clone());
        file.as_file().set_len(600_000).unwrap();
        for target in [Some(0), None] {
            let error = fetcher.fetch(&[range(0..1 << 20, target, 4096)], Some((&slab, &stream))).unwrap_err();
            assert_eq!(error.kind(), "io");
            let text = error.to_string();
            assert!(text.contains("ended") && text.contains(file.path().to_str().unwrap()), "{text}");
        }
        let small = [range(599_000..599_999, Some(0), 4096), range(599_999..600_001, Some(2000), 4096)];
        assert_eq!(fetcher.fetch(&small, Some((&slab, &stream))).unwrap_err().kind(), "io");
        assert_eq!(ledger.report().host.ops, 0, "what failed is not in the account");
        fetcher.fetch(&[range(0..600_000, Some(0), 4096)], Some((&slab, &stream))).unwrap();
        assert!(download(&slab, &stream)[..600_000] == data[..600_000]);
    }
}

#[test]
fn ranges_outside_source_or_slab_are_refused() {
    let file = file(&pattern(1000));
    for gpu in devices::devices(0) {
        let stream = gpu.new_stream().unwrap();
        let slab = slab(500, &stream);
        let mut fetcher = Fetcher::new(open(&file), IoOptions::default(), Some(gpu.clone()), Arc::default());
        let mut gap = range(0..10, Some(0), 5);
        gap.tasks[1].start = 6;
        let mut short = range(0..10, Some(0), 5);
        short.tasks.pop();
        let wrong = [
            range(0..1001, None, 4096),
            range(2000..2001, None, 4096),
            range(0..501, Some(0), 4096),
            range(0..10, Some(491), 4096),
            range(0..10, Some(u64::MAX), 4096),
            RangePlan { route: Route::Direct, ..range(0..10, None, 4096) },
            gap,
            short,
        ];
        for range in wrong {
            let error = fetcher.fetch(std::slice::from_ref(&range), Some((&slab, &stream))).unwrap_err();
            assert_eq!(error.kind(), "argument", "{range:?}: {error}");
        }
        let error = fetcher.fetch(&[range(0..10, Some(0), 4096)], None).unwrap_err();
        assert_eq!(error.kind(), "argument", "{error}");
        assert!(download(&slab, &stream).iter().all(|it| *it == UNTOUCHED));
    }
}

#[test]
fn direct_ranges_fall_back_by_compat_mode() {
    let data = pattern(50_000);
    let file = file(&data);
    let mut direct = range(0..50_000, Some(0), 8192);
    (direct.route, direct.reason) = (Route::Direct, RouteReason::Eligible);
    for gpu in devices::devices(1).into_iter().filter(|it| it.name() == "emulated") {
        // A library that is none: refused before anything is read.
        let options = IoOptions::default().with_cufile_library("/dev/null").with_task_size(8192);
        let report = read_and_compare(&open(&file), &data, std::slice::from_ref(&direct), &options, &gpu);
        assert_eq!((report.host.ops, report.gpus.len()), (14, 0));
        assert_eq!(report.fallbacks.values().sum::<u64>(), 14);

        let on = options.clone().with_compat_mode(CompatMode::On);
        let report = read_and_compare(&open(&file), &data, std::slice::from_ref(&direct), &on, &gpu);
        assert_eq!((report.host.ops, report.fallbacks.len()), (14, 0));
        assert_eq!(report.reasons[&RouteReason::CompatOn.to_string()].ops, 14);

        let off = options.with_compat_mode(CompatMode::Off);
        let stream = gpu.new_stream().unwrap();
        let slab = slab(50_000, &stream);
        let mut fetcher = Fetcher::new(open(&file), off, Some(gpu.clone()), Arc::default());
        let error = fetcher.fetch(std::slice::from_ref(&direct), Some((&slab, &stream))).unwrap_err();
        assert!(matches!(error, Error::Library { .. } | Error::CuFile { .. }), "{error}");
        assert!(download(&slab, &stream).iter().all(|it| *it == UNTOUCHED));
    }
}

#[test]
fn sources_that_are_no_files_are_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    let fifo = std::ffi::CString::new(path("fifo")).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    for (name, why) in [("", "directory"), ("fifo", "not a regular file"), ("missing", "No such file")] {
        let error = Source::open(&path(name)).unwrap_err();
        assert_eq!(error.kind(), "not_found");
        assert!(error.to_string().contains(why), "{error}");
    }
    std::fs::write(path("file"), b"bytes").unwrap();
    symlink(path("file"), path("link")).unwrap();
    let source = Source::open(&path("link")).unwrap();
    assert_eq!((source.len(), source.name(), source.file().is_some()), (5, path("link").as_str(), true));
}

#[test]
fn reads_past_the_end_are_errors() {
    let file = file(b"0123456789");
    let memory = Source::from_bytes("memory", Bytes::from_static(b"0123456789"));
    for source in [&*open(&file), &memory] {
        let mut target = [0; 4];
        source.read_at(6, &mut target).unwrap();
        assert_eq!(&target, b"6789");
        for offset in [7, 10, 11, u64::MAX] {
            let error = source.read_at(offset, &mut target).unwrap_err();
            assert_eq!(error.kind(), "io", "{error}");
        }
        source.read_at(10, &mut []).unwrap();
    }
    assert!(Source::from_bytes("empty", Bytes::new()).is_empty());
}
