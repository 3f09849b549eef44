//! What the emulated device does beyond what `tests/device.rs` asks of every device: lateness, checks, failures.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;

use super::*;

// SAFETY: KERNEL in `kernels/simt_test.cc` defines both with this signature.
unsafe extern "C" {
    fn simt_test_places(args: *const c_void);
    fn simt_test_diverge(args: *const c_void);
}

const PLACES: Code = Code { name: "simt_test_places", body: simt_test_places, threads: 96 };
const DIVERGE: Code = Code { name: "simt_test_diverge", body: simt_test_diverge, threads: 64 };

fn launch(gpu: &EmulatedBackend, stream: RawStream, kernel: Code, output: u64, number: u64) -> Result<()> {
    gpu.launch_code(stream, kernel, 2, bytemuck::bytes_of(&[0, output, number]))
}

/// Runs a kernel that fails, and returns the device, a stream and what the stream said.
fn failed(seed: u64) -> (EmulatedBackend, RawStream, String) {
    let gpu = EmulatedBackend::open(seed);
    let stream = gpu.create_stream().unwrap();
    let output = gpu.alloc(512, stream).unwrap();
    let _ = launch(&gpu, stream, DIVERGE, output, 1);
    let message = gpu.synchronize(stream).unwrap_err().to_string();
    // SAFETY: nothing uses the block any more.
    unsafe { gpu.free(output, stream) };
    (gpu, stream, message)
}

#[test]
fn work_runs_when_somebody_waits_with_seed_0_and_may_run_before_with_others() {
    let ran_early = |seed: u64| {
        let gpu = EmulatedBackend::open(seed);
        let stream = gpu.create_stream().unwrap();
        let buffer = gpu.alloc_slab(8).unwrap();
        let mut seen = 0u64;
        // SAFETY: the buffer is freed after the last wait, and `seen` is read through its pointer alone until then.
        unsafe {
            gpu.fill(stream, buffer, 7, 8).unwrap();
            gpu.copy_to_host(stream, (&raw mut seen).cast(), buffer, 8).unwrap();
            let early = (&raw const seen).read_volatile() == 0x0707_0707_0707_0707;
            gpu.synchronize(stream).unwrap();
            assert_eq!((&raw const seen).read_volatile(), 0x0707_0707_0707_0707);
            gpu.free_slab(buffer);
            early
        }
    };
    assert!(!ran_early(0));
    let early = (1..=20).filter(|seed| ran_early(*seed)).count();
    assert!((1..20).contains(&early), "{early} of 20");
}

#[test]
fn a_missing_wait_between_streams_shows() {
    let right = |seed: u64, wait: bool| {
        let gpu = EmulatedBackend::open(seed);
        let (writer, reader) = (gpu.create_stream().unwrap(), gpu.create_stream().unwrap());
        let event = gpu.create_event().unwrap();
        let buffer = gpu.alloc_slab(8).unwrap();
        let mut seen = 0u64;
        // SAFETY: everything is waited for before the memory goes.
        unsafe {
            gpu.fill(writer, buffer, 7, 8).unwrap();
            gpu.record(event, writer).unwrap();
            if wait {
                gpu.wait(reader, event).unwrap();
            }
            gpu.copy_to_host(reader, (&raw mut seen).cast(), buffer, 8).unwrap();
            gpu.synchronize(reader).unwrap();
            gpu.free_slab(buffer);
        }
        seen == 0x0707_0707_0707_0707
    };
    assert!((0..20).all(|seed| right(seed, true)));
    assert!(!right(0, false), "the order that runs only what is waited for");
    assert!((1..20).any(|seed| !right(seed, false)), "and others");
}

#[test]
fn memory_is_never_zero_by_chance() {
    let gpu = EmulatedBackend::open(0);
    let stream = gpu.create_stream().unwrap();
    for _ in 0..3 {
        let (pooled, slab) = (gpu.alloc(1000, stream).unwrap(), gpu.alloc_slab(1000).unwrap());
        for address in [pooled, slab] {
            let mut seen = [0u8; 1000];
            // SAFETY: waited for before the memory is read or filled again.
            unsafe {
                gpu.copy_to_host(stream, seen.as_mut_ptr(), address, 1000).unwrap();
                gpu.synchronize(stream).unwrap();
                gpu.fill(stream, address, 0, 1000).unwrap();
            }
            assert!(seen.iter().all(|it| *it == UNDEFINED));
        }
        // SAFETY: nothing else uses them.
        unsafe {
            gpu.free(pooled, stream);
            gpu.free_slab(slab);
        }
    }
    assert_eq!(gpu.free_memory().unwrap(), gpu.properties().memory);
}

#[test]
fn a_copy_outside_allocated_memory_is_refused() {
    let gpu = EmulatedBackend::open(0);
    let stream = gpu.create_stream().unwrap();
    let buffer = gpu.alloc(100, stream).unwrap();
    let bytes = [1u8; 101];
    // SAFETY: what is refused touches nothing.
    unsafe {
        assert!(gpu.copy_to_device(stream, buffer, bytes.as_ptr(), 101).is_err());
        assert!(gpu.copy_to_device(stream, buffer + 1, bytes.as_ptr(), 100).is_err());
        assert!(gpu.copy_to_device(stream, 0, bytes.as_ptr(), 1).is_err());
        assert!(gpu.fill(stream, u64::MAX, 0, 1).is_err());
        assert!(gpu.copy_to_device(stream + 1000, buffer, bytes.as_ptr(), 1).is_err(), "no such stream");
        gpu.copy_to_device(stream, buffer, bytes.as_ptr(), 100).unwrap();
    }
    gpu.synchronize(stream).unwrap();
    // SAFETY: the block was allocated above.
    unsafe { gpu.free(buffer, stream) };
    gpu.synchronize(stream).unwrap();
}

#[test]
fn memory_that_is_freed_too_early_fails_the_copy() {
    let gpu = EmulatedBackend::open(0);
    let (owner, late) = (gpu.create_stream().unwrap(), gpu.create_stream().unwrap());
    let buffer = gpu.alloc(100, owner).unwrap();
    // SAFETY: the copy is refused when its turn comes, since the block is gone.
    unsafe {
        gpu.fill(late, buffer, 1, 100).unwrap();
        gpu.free(buffer, owner);
    }
    gpu.synchronize(owner).unwrap();
    let message = gpu.synchronize(late).unwrap_err().to_string();
    assert!(message.contains("100 bytes at") && message.contains("do not lie in device memory"), "{message}");
}

#[test]
#[cfg(not(sanitize_kernels))] // AddressSanitizer ends the process at the write itself
fn a_write_behind_a_block_is_found_when_it_is_freed() {
    let gpu = EmulatedBackend::open(0);
    let stream = gpu.create_stream().unwrap();
    // Two blocks of 96 threads write a word each; the last lands behind the block, in its red zone.
    let output = gpu.alloc(192 * 8 - 8, stream).unwrap();
    launch(&gpu, stream, PLACES, output, 0).unwrap();
    gpu.synchronize(stream).unwrap();
    // SAFETY: the block was allocated above.
    unsafe { gpu.free(output, stream) };
    let message = gpu.synchronize(stream).unwrap_err().to_string();
    assert!(message.contains("wrote behind a block of 1528 bytes"), "{message}");
}

#[test]
fn a_launch_that_fails_poisons_the_device_with_its_first_cause() {
    for seed in 0..6 {
        let (gpu, stream, message) = failed(seed);
        assert!(message.starts_with("emulated: kernel simt_test_diverge, block 1 of 2: not all threads"), "{message}");
        let later = [
            gpu.synchronize(stream).unwrap_err(),
            gpu.create_stream().unwrap_err(),
            gpu.create_event().unwrap_err(),
            gpu.alloc(1, stream).unwrap_err(),
            gpu.alloc_slab(1).unwrap_err(),
            gpu.alloc_pinned(1).unwrap_err(),
            gpu.free_memory().unwrap_err(),
            gpu.bind().unwrap_err(),
            launch(&gpu, stream, PLACES, 0, 0).unwrap_err(),
        ];
        for error in later {
            assert_eq!((error.kind(), error.to_string()), ("device", message.clone()));
        }
        // Another device is not affected.
        EmulatedBackend::open(seed).create_stream().unwrap();
    }
}

#[test]
fn after_a_failure_memory_is_given_back_and_nobody_is_left_waiting() {
    let gpu = EmulatedBackend::open(0);
    let (stream, other) = (gpu.create_stream().unwrap(), gpu.create_stream().unwrap());
    let event = gpu.create_event().unwrap();
    let output = gpu.alloc(512, stream).unwrap();
    launch(&gpu, stream, DIVERGE, output, 1).unwrap();
    gpu.record(event, stream).unwrap();
    gpu.wait(other, event).unwrap();
    // SAFETY: nothing is queued on it after this.
    unsafe { gpu.free(output, stream) };
    gpu.synchronize(other).unwrap_err();
    gpu.synchronize_event(event).unwrap_err();
    gpu.destroy_stream(stream);
    assert_eq!(lock(&gpu.state).used, 0);
}

#[test]
fn a_launch_of_the_wrong_shape_is_refused() {
    let gpu = EmulatedBackend::open(0);
    let stream = gpu.create_stream().unwrap();
    assert!(gpu.launch_code(stream, PLACES, 1, &[0; 16]).is_err(), "argument size");
    assert!(gpu.launch_code(stream, Code { threads: 64, ..PLACES }, 1, &[0; 24]).is_err(), "block size");
    assert!(gpu.launch_code(stream, Code { name: "unknown", ..PLACES }, 1, &[0; 24]).is_err());
    assert!(gpu.launch_code(stream, PLACES, 0, &[0; 24]).is_err());
    assert!(gpu.launch_code(stream, PLACES, 1 << 31, &[0; 24]).is_err());
    gpu.synchronize(stream).unwrap();
}
