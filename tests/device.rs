//! What every device promises, on each device under test: the emulated one in several orders, and a GPU where there is
//! one. `PARQUET_GPU_REQUIRE_GPU=1` makes a missing GPU a failure.
#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet_gpu::Error;
use parquet_gpu::device::{DeviceBuffer, Gpu, Stream, staging::Staging};
use parquet_gpu::kernels::abi::{ZeroArgs, ZeroEntry};

/// The devices under test, opened anew, so that a failure of one test cannot poison another's.
fn devices() -> Vec<(String, Gpu)> {
    let mut devices = Vec::new();
    #[cfg(feature = "emulated")]
    for seed in 0..6 {
        let backend = parquet_gpu::device::emulated::EmulatedBackend::new(seed);
        devices.push((format!("emulated:{seed}"), Gpu::new(backend)));
    }
    #[cfg(feature = "cuda")]
    match parquet_gpu::device::cuda::CudaBackend::open(0) {
        Ok(backend) => devices.push(("cuda:0".into(), Gpu::new(backend))),
        Err(error) if std::env::var("PARQUET_GPU_REQUIRE_GPU").is_ok_and(|it| it == "1") => {
            panic!("PARQUET_GPU_REQUIRE_GPU is set, and there is no GPU: {error}")
        }
        Err(error) => println!("skipped on cuda:0: {error}"),
    }
    if devices.is_empty() {
        println!("skipped: no device under test in this build");
    }
    devices
}

fn on_each_device(test: impl Fn(&Gpu)) {
    for (name, gpu) in devices() {
        println!("on {name}");
        test(&gpu);
    }
}

/// Bytes that differ from their neighbours and between salts.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|it| ((it + salt * 977).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn upload(stream: &Stream, bytes: &[u8]) -> DeviceBuffer {
    let buffer = stream.gpu().alloc(bytes.len() as u64, stream, "a test").unwrap();
    // SAFETY: synchronised before `bytes` goes.
    unsafe { stream.copy_to_device(&buffer, 0, bytes).unwrap() };
    stream.synchronize().unwrap();
    buffer
}

fn download(stream: &Stream, buffer: &DeviceBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len() as usize];
    // SAFETY: synchronised before `bytes` is read.
    unsafe { stream.copy_to_host(&mut bytes, buffer, 0).unwrap() };
    stream.synchronize().unwrap();
    bytes
}

#[test]
fn a_device_says_what_it_is() {
    on_each_device(|gpu| {
        let properties = gpu.properties();
        assert!(gpu.name() == "emulated" || gpu.name() == format!("cuda:{}", properties.ordinal));
        assert!(!properties.product.is_empty());
        assert_eq!(properties.host_addressable, gpu.name() == "emulated");
        assert!(properties.memory > 0 && properties.multiprocessors > 0);
        assert!(gpu.free_memory().unwrap() <= properties.memory);
        gpu.backend().bind().unwrap();
    });
}

#[test]
fn bytes_come_back_as_they_went() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        for len in [1, 15, 16, 4096, (1 << 20) + 3] {
            let bytes = pattern(len, len as u64);
            assert!(download(&stream, &upload(&stream, &bytes)) == bytes, "{len} bytes");
        }
    });
}

#[test]
fn copies_reach_the_offsets_that_they_name_and_nothing_else() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let buffer = upload(&stream, &pattern(1000, 1));
        let part = pattern(100, 2);
        // SAFETY: synchronised before `part` goes; the ranges lie in the buffer and do not overlap.
        unsafe {
            stream.copy_to_device(&buffer, 33, &part).unwrap();
            let target = buffer.address() + 801;
            gpu.backend().copy_on_device(stream.raw(), target, buffer.address() + 33, 100).unwrap();
        }
        stream.synchronize().unwrap();
        let mut expected = pattern(1000, 1);
        expected[33..133].copy_from_slice(&part);
        expected[801..901].copy_from_slice(&part);
        assert!(download(&stream, &buffer) == expected);

        let mut middle = vec![0; 50];
        // SAFETY: synchronised before `middle` is read.
        unsafe { stream.copy_to_host(&mut middle, &buffer, 60).unwrap() };
        stream.synchronize().unwrap();
        assert!(middle == expected[60..110]);
    });
}

#[test]
fn fill_writes_one_value_into_its_range() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let buffer = upload(&stream, &pattern(4096, 3));
        stream.fill(&buffer, 1, 1029, 0x5a).unwrap();
        stream.fill(&buffer, 2048, 2048, 0).unwrap();
        stream.fill(&buffer, 4096, 0, 9).unwrap();
        let mut expected = pattern(4096, 3);
        expected[1..1030].fill(0x5a);
        expected[2048..].fill(0);
        assert!(download(&stream, &buffer) == expected);
    });
}

#[test]
fn a_range_outside_a_buffer_is_refused() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let buffer = upload(&stream, &pattern(64, 0));
        let refused = |act: &dyn Fn()| catch_unwind(AssertUnwindSafe(act)).is_err();
        assert!(refused(&|| stream.fill(&buffer, 64, 1, 0).unwrap()));
        assert!(refused(&|| stream.fill(&buffer, u64::MAX, 2, 0).unwrap()));
        // SAFETY: refused before anything is queued.
        assert!(refused(&|| unsafe { stream.copy_to_device(&buffer, 60, &[0; 5]).unwrap() }));
        assert!(download(&stream, &buffer) == pattern(64, 0));
    });
}

#[test]
fn nothing_is_allocated_or_copied_for_zero_bytes() {
    on_each_device(|gpu| {
        let gpu = gpu.with_budget(0);
        let stream = gpu.new_stream().unwrap();
        let buffer = gpu.alloc(0, &stream, "nothing").unwrap();
        let slab = gpu.alloc_slab(0, "nothing").unwrap();
        assert!(buffer.is_empty() && slab.is_empty());
        assert_eq!((buffer.address(), slab.address()), (0, 0));
        assert!(gpu.alloc_pinned(0).unwrap().is_empty());
        // SAFETY: no byte is touched.
        unsafe {
            stream.copy_to_device(&buffer, 0, &[]).unwrap();
            stream.copy_to_host(&mut [], &buffer, 0).unwrap();
        }
        stream.fill(&buffer, 0, 0, 1).unwrap();
        stream.synchronize().unwrap();
    });
}

#[test]
fn memory_is_aligned_and_blocks_do_not_overlap() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let mut ranges = Vec::new();
        let mut buffers = Vec::new();
        for len in [1u64, 255, 256, 257, 5000, 1 << 20] {
            let pooled = gpu.alloc(len, &stream, "a test").unwrap();
            let slab = gpu.alloc_slab(len, "a test").unwrap();
            assert_eq!(pooled.address() % 256, 0);
            assert_eq!(slab.address() % 4096, 0);
            for buffer in [pooled, slab] {
                assert_eq!(buffer.len(), len);
                ranges.push((buffer.address(), buffer.address() + len));
                buffers.push(buffer);
            }
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|it| it[0].1 <= it[1].0), "{ranges:x?}");
    });
}

#[test]
fn pinned_memory_starts_zeroed_and_serves_copies() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        for _ in 0..3 {
            let mut pinned = gpu.alloc_pinned(10_000).unwrap();
            assert!(pinned.iter().all(|it| *it == 0));
            let bytes = pattern(10_000, 5);
            let buffer = upload(&stream, &bytes);
            // SAFETY: synchronised before the memory is read.
            unsafe { stream.copy_to_host(&mut pinned, &buffer, 0).unwrap() };
            stream.synchronize().unwrap();
            assert!(pinned[..] == bytes[..]);
        }
    });
}

#[test]
fn work_on_one_stream_runs_in_order() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let (first, second) = (pattern(5000, 1), pattern(5000, 2));
        let buffer = gpu.alloc(5000, &stream, "a test").unwrap();
        let (mut seen_first, mut seen_second) = (vec![0; 5000], vec![0; 5000]);
        // SAFETY: synchronised before the host memory is read or goes.
        unsafe {
            stream.copy_to_device(&buffer, 0, &first).unwrap();
            stream.copy_to_host(&mut seen_first, &buffer, 0).unwrap();
            stream.copy_to_device(&buffer, 0, &second).unwrap();
            stream.copy_to_host(&mut seen_second, &buffer, 0).unwrap();
        }
        stream.synchronize().unwrap();
        assert!(seen_first == first && seen_second == second);
    });
}

#[test]
fn an_event_orders_two_streams() {
    on_each_device(|gpu| {
        let (writer, reader) = (gpu.new_stream().unwrap(), gpu.new_stream().unwrap());
        let buffer = gpu.alloc_slab(1 << 16, "a test").unwrap();
        let (written, read) = (gpu.new_event().unwrap(), gpu.new_event().unwrap());
        let rounds: Vec<_> = (0..8).map(|round| pattern(1 << 16, round)).collect();
        let mut seen = vec![vec![0; 1 << 16]; rounds.len()];
        for (bytes, seen) in rounds.iter().zip(&mut seen) {
            // SAFETY: synchronised before the host memory is read or goes.
            unsafe {
                writer.wait(&read).unwrap(); // not recorded in the first round: holds nothing up
                writer.copy_to_device(&buffer, 0, bytes).unwrap();
                written.record(&writer).unwrap();
                reader.wait(&written).unwrap();
                reader.copy_to_host(seen, &buffer, 0).unwrap();
                read.record(&reader).unwrap();
            }
        }
        reader.synchronize().unwrap();
        assert!(seen == rounds);
        writer.synchronize().unwrap();
    });
}

#[test]
fn a_wait_is_for_the_last_record_before_it() {
    on_each_device(|gpu| {
        let (writer, reader) = (gpu.new_stream().unwrap(), gpu.new_stream().unwrap());
        let event = gpu.new_event().unwrap();
        let (early, late) = (upload(&writer, &pattern(100, 1)), upload(&writer, &pattern(100, 2)));
        event.record(&writer).unwrap();
        writer.fill(&early, 0, 100, 7).unwrap();
        event.record(&writer).unwrap();
        reader.wait(&event).unwrap();
        writer.fill(&late, 0, 100, 8).unwrap();
        event.record(&writer).unwrap(); // the reader does not wait for this one
        let mut seen = vec![0; 100];
        // SAFETY: synchronised before `seen` is read.
        unsafe { reader.copy_to_host(&mut seen, &early, 0).unwrap() };
        reader.synchronize().unwrap();
        assert_eq!(seen, [7; 100]);
        event.synchronize().unwrap();
        assert_eq!(download(&reader, &late), [8; 100]);
    });
}

#[test]
fn waiting_for_an_event_waits_for_the_work_before_it() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let event = gpu.new_event().unwrap();
        event.synchronize().unwrap(); // never recorded
        let bytes = pattern(1 << 18, 4);
        let buffer = upload(&stream, &bytes);
        let mut seen = vec![0; bytes.len()];
        // SAFETY: the event is waited for before `seen` is read.
        unsafe { stream.copy_to_host(&mut seen, &buffer, 0).unwrap() };
        event.record(&stream).unwrap();
        event.synchronize().unwrap();
        assert!(seen == bytes);
    });
}

#[test]
fn freed_memory_serves_work_that_was_queued_before() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let mut seen = vec![vec![0; 4096]; 20];
        for (round, seen) in seen.iter_mut().enumerate() {
            let buffer = gpu.alloc(4096, &stream, "a test").unwrap();
            stream.fill(&buffer, 0, 4096, round as u8).unwrap();
            // SAFETY: synchronised before `seen` is read.
            unsafe { stream.copy_to_host(seen, &buffer, 0).unwrap() };
        }
        stream.synchronize().unwrap();
        for (round, seen) in seen.iter().enumerate() {
            assert!(seen.iter().all(|it| *it == round as u8), "round {round}");
        }
    });
}

#[test]
fn a_destroyed_stream_completes_its_work() {
    on_each_device(|gpu| {
        let other = gpu.new_stream().unwrap();
        let slab = gpu.alloc_slab(4096, "a test").unwrap();
        let event = gpu.new_event().unwrap();
        let stream = gpu.new_stream().unwrap();
        stream.fill(&slab, 0, 4096, 0x77).unwrap();
        event.record(&stream).unwrap();
        drop(stream);
        other.wait(&event).unwrap();
        assert!(download(&other, &slab).iter().all(|it| *it == 0x77));
    });
}

#[test]
fn the_budget_bounds_what_is_held() {
    on_each_device(|gpu| {
        let gpu = gpu.with_budget(10_000);
        let stream = gpu.new_stream().unwrap();
        let first = gpu.alloc(6000, &stream, "the first").unwrap();
        match gpu.alloc_slab(4001, "the second") {
            Err(Error::Budget { what, needed: 4001, left: 4000 }) => assert_eq!(what, "the second"),
            other => panic!("{other:?}"),
        }
        let second = gpu.alloc_slab(4000, "the second").unwrap();
        assert!(gpu.alloc(1, &stream, "the third").is_err());
        drop(first);
        let third = gpu.alloc(5000, &stream, "the third").unwrap();
        assert_eq!(gpu.budget().peak(), 10_000);
        drop((second, third));
        drop(gpu.alloc(10_000, &stream, "all of it").unwrap());
    });
}

#[test]
fn more_memory_than_there_is_is_an_error_and_nothing_else() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        for bytes in [gpu.properties().memory + 1, 1 << 60, u64::MAX] {
            assert_eq!(gpu.alloc(bytes, &stream, "too much").unwrap_err().kind(), "device");
            assert_eq!(gpu.alloc_slab(bytes, "too much").unwrap_err().kind(), "device");
        }
        let bytes = pattern(100, 9);
        assert!(download(&stream, &upload(&stream, &bytes)) == bytes);
    });
}

#[test]
fn staged_arrays_lie_aligned_with_their_values() {
    on_each_device(|gpu| {
        let stream = gpu.new_stream().unwrap();
        let bytes = pattern(13, 1);
        let words: Vec<u64> = (0..1000).map(|it| it * 3).collect();
        let halves = [1u16, 2, 3];
        let mut staging = Staging::default();
        let slots = [staging.push(&bytes), staging.push(&words), staging.push::<u32>(&[]), staging.push(&halves)];
        let staged = staging.upload(&stream, "a test").unwrap();
        let addresses = slots.map(|it| staged.address(it));
        assert!(addresses.iter().all(|it| it % 16 == 0));
        let read = |address: u64, len: usize| {
            let mut seen = vec![0u8; len];
            // SAFETY: the range lies in the staged arrays; synchronised before `seen` is read.
            unsafe { gpu.backend().copy_to_host(stream.raw(), seen.as_mut_ptr(), address, len).unwrap() };
            stream.synchronize().unwrap();
            seen
        };
        assert_eq!(read(addresses[0], 13), bytes);
        assert_eq!(read(addresses[1], 8000), words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>());
        assert_eq!(read(addresses[3], 6), halves.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>());
        drop(Staging::default().upload(&stream, "nothing").unwrap());
    });
}

#[test]
fn a_kernel_runs_between_the_copies_around_it() {
    on_each_device(|gpu| {
        let gpu = gpu.with_budget(1 << 20);
        let stream = gpu.new_stream().unwrap();
        let buffer = upload(&stream, &pattern(5000, 6));
        let ranges = [(3u64, 5u64), (8, 0), (17, 1000), (2048, 2048), (4999, 1)];
        let entries: Vec<_> =
            ranges.iter().map(|(at, bytes)| ZeroEntry { target: buffer.address() + at, bytes: *bytes }).collect();
        let mut staging = Staging::default();
        let slot = staging.push(&entries);
        let staged = staging.upload(&stream, "a test").unwrap();
        let args = ZeroArgs { entries: staged.address(slot), count: entries.len() as u64 };
        let (launches, syncs) = (gpu.counters().launches(), gpu.counters().syncs());
        // SAFETY: the entries and what they name live until the download below has waited.
        unsafe {
            stream.launch(0, &args).unwrap(); // no blocks: not a launch
            stream.launch(entries.len() as u32, &args).unwrap();
        }
        let seen = download(&stream, &buffer);
        assert_eq!(gpu.counters().launches() - launches, 1);
        assert_eq!(gpu.counters().syncs() - syncs, 1);
        let mut expected = pattern(5000, 6);
        for (at, bytes) in ranges {
            expected[at as usize..(at + bytes) as usize].fill(0);
        }
        assert!(seen == expected);
    });
}

#[test]
fn threads_with_a_stream_each_do_not_disturb_each_other() {
    on_each_device(|gpu| {
        let slab = gpu.alloc_slab(8 << 12, "a test").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let slab = &slab;
                scope.spawn(move || {
                    let stream = gpu.new_stream().unwrap();
                    let event = gpu.new_event().unwrap();
                    let mut pinned = gpu.alloc_pinned(1 << 12).unwrap();
                    for round in 0..20 {
                        let bytes = pattern(1 << 12, thread * 100 + round);
                        pinned.copy_from_slice(&bytes);
                        let mut seen = vec![0; 1 << 12];
                        let scratch = gpu.alloc(1 << 12, &stream, "a test").unwrap();
                        let own = slab.address() + (thread << 12);
                        // SAFETY: each thread has its own range; the event is waited for before the memory is touched.
                        unsafe {
                            stream.copy_to_device(&scratch, 0, &pinned).unwrap();
                            let backend = gpu.backend();
                            backend.copy_on_device(stream.raw(), own, scratch.address(), 1 << 12).unwrap();
                            stream.copy_to_host(&mut seen, slab, thread << 12).unwrap();
                        }
                        event.record(&stream).unwrap();
                        event.synchronize().unwrap();
                        assert!(seen == bytes, "thread {thread}, round {round}");
                    }
                });
            }
        });
    });
}
