//! The launcher and the prelude, by the small kernels of `kernels/simt_test.cc`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::*;

// SAFETY: KERNEL in `kernels/simt_test.cc` defines each with this signature.
unsafe extern "C" {
    fn simt_test_scan(args: *const c_void);
    fn simt_test_places(args: *const c_void);
    fn simt_test_warp(args: *const c_void);
    fn simt_test_masks(args: *const c_void);
    fn simt_test_barriers(args: *const c_void);
    fn simt_test_atomics(args: *const c_void);
    fn simt_test_bits(args: *const c_void);
    fn simt_test_race(args: *const c_void);
    fn simt_test_no_race(args: *const c_void);
    fn simt_test_block_race(args: *const c_void);
    fn simt_test_lost_update(args: *const c_void);
    fn simt_test_undefined(args: *const c_void);
    fn simt_test_diverge(args: *const c_void);
    fn simt_test_copy(args: *const c_void);
    fn simt_test_loads(args: *const c_void);
    fn simt_test_fault(args: *const c_void);
}

const SEEDS: std::ops::Range<u64> = 0..20;

/// Launches a kernel of `simt_test.cc` with the block size that it states; all of them take the same arguments.
macro_rules! run {
    ($kernel:ident, $blocks:expr, $input:expr, $output:expr, $number:expr, $seed:expr) => {{
        let (threads, args_bytes) = declared(stringify!($kernel)).unwrap();
        assert_eq!(args_bytes, 24);
        let args = [$input.as_ptr() as u64, $output.as_mut_ptr() as u64, $number];
        // SAFETY: each test passes the memory that its kernel touches.
        unsafe { launch(stringify!($kernel), $kernel, $blocks, threads, &args, $seed) }
    }};
}

/// Values that look like nothing in particular.
fn values(count: u64, salt: u64) -> Vec<u64> {
    (1..=count).map(|it| (it + salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(salt as u32)).collect()
}

#[test]
fn every_thread_of_every_block_runs_once_in_its_place() {
    for seed in SEEDS {
        for blocks in [1u32, 2, 7, 30] {
            let mut output = vec![0u64; 96 * blocks as usize];
            run!(simt_test_places, blocks, [0u64; 0], output, 0, seed).unwrap();
            for (index, place) in (0u64..).zip(&output) {
                let (block, thread) = (index / 96, index % 96);
                let expected = block << 32 | (thread / 32) << 16 | (thread % 32) << 8 | u64::from(blocks);
                assert_eq!(*place, expected, "block {block} of {blocks}, thread {thread}, seed {seed}");
            }
        }
    }
}

#[test]
fn scans_add_up_the_threads_before() {
    for seed in SEEDS {
        let input = values(256, seed);
        let mut output = [0u64; 256 + 4];
        run!(simt_test_scan, 1, input, output, 0, seed).unwrap();
        let mut sum = 0u64;
        for (thread, value) in input.iter().enumerate() {
            assert_eq!(output[thread], sum, "thread {thread}, seed {seed}");
            sum = sum.wrapping_add(*value);
        }
        let (greatest, smallest) = (*input.iter().max().unwrap(), *input.iter().min().unwrap());
        assert_eq!(output[256..], [sum, greatest, smallest, 1], "total, greatest, smallest, 32 bits and sum");
    }
}

#[test]
fn warp_functions_do_what_the_cuda_guide_says() {
    for seed in SEEDS {
        let input = values(64, seed);
        let mut output = vec![0u64; 64 * 17];
        run!(simt_test_warp, 1, input, output, 0, seed).unwrap();
        for thread in 0..64 {
            let lane = thread % 32;
            let wide = &input[thread - lane..][..32];
            let narrow: Vec<u64> = wide.iter().map(|it| it & 0xffff_ffff).collect();
            let signed = narrow.iter().map(|it| *it as u32 as i32);
            let bits = |test: &dyn Fn(usize) -> bool| (0..32).fold(0u64, |bits, it| bits | u64::from(test(it)) << it);
            let expected = [
                wide[wide[lane] as usize % 32],
                narrow[3],
                wide[if lane < 3 { lane } else { lane - 3 }],
                narrow[if lane + 5 < 32 { lane + 5 } else { lane }],
                wide[lane ^ 9],
                narrow[if lane % 8 == 0 { lane } else { lane - 1 }],
                narrow[if lane % 16 + 2 < 16 { lane + 2 } else { lane }],
                narrow[lane / 4 * 4 + 1],
                bits(&|it| wide[it] % 2 == 1),
                u64::from(thread < 32),
                u64::from(thread < 32),
                bits(&|it| narrow[it] % 3 == narrow[lane] % 3),
                narrow.iter().sum::<u64>() & 0xffff_ffff,
                *narrow.iter().min().unwrap(),
                *narrow.iter().max().unwrap(),
                i64::from(signed.min().unwrap()) as u64,
                narrow.iter().fold(0, |all, it| all ^ it),
            ];
            for (row, expected) in expected.iter().enumerate() {
                assert_eq!(output[row * 64 + thread], *expected, "row {row}, thread {thread}, seed {seed}");
            }
        }
    }
}

#[test]
fn parts_of_a_warp_go_their_own_ways() {
    for seed in SEEDS {
        let mut output = [0u64; 64];
        run!(simt_test_masks, 1, [0u64; 0], output, 0, seed).unwrap();
        for thread in 0..64u64 {
            let lane = thread % 32;
            let rounds = if lane < 16 { 3 } else { 7 };
            let mut expected: u64 = (0..rounds).map(|round| (lane ^ 1) + round).sum();
            expected += 16_000 + if lane % 4 == 0 { 800_000 } else { 0 };
            assert_eq!(output[thread as usize], expected, "thread {thread}, seed {seed}");
        }
    }
}

#[test]
fn barriers_hold_until_all_have_come_and_carry_predicates() {
    for seed in SEEDS {
        let mut output = [0u64; 128 * 4];
        run!(simt_test_barriers, 1, [0u64; 0], output, 0, seed).unwrap();
        for (thread, results) in output.chunks(4).enumerate() {
            assert_eq!(results, [50, 43, 2, 2], "rounds, count, or, and: thread {thread}, seed {seed}");
        }
    }
}

#[test]
fn atomics_lose_nothing_between_threads_and_blocks() {
    const THREADS: u64 = 5 * 64;
    for seed in SEEDS {
        let mut output = [0u64; 14];
        output[1] = u64::MAX;
        output[4] = u64::MAX;
        output[9] = u64::MAX;
        output[11] = 0;
        run!(simt_test_atomics, 5, [0u64; 0], output, 0, seed).unwrap();
        let all = THREADS * (THREADS - 1) / 2;
        assert_eq!(output[..3], [all, 5, THREADS - 1]);
        assert_eq!(output[3..6], [u64::MAX, u64::MAX << 61, (0..THREADS).fold(0, |all, it| all ^ it)]);
        assert_eq!(output[6..9], [THREADS, all, 0], "numbers by compare-and-swap, each once; no exchange sees itself");
        assert!(output[9] < THREADS);
        let narrow: Vec<u32> = output[10..].iter().flat_map(|it| [*it as u32, (*it >> 32) as u32]).collect();
        let expected = [3 * 320, 0u32.wrapping_sub(320), (-100i32) as u32, 319, all as u32, 320];
        assert_eq!(narrow[..6], expected, "seed {seed}");
    }
}

#[test]
fn bit_functions_do_what_the_cuda_guide_says() {
    let mut input = values(32, 3);
    input[..4].copy_from_slice(&[0, u64::MAX, 1 << 63, 1]);
    let mut output = [0u64; 32 * 16];
    run!(simt_test_bits, 1, input, output, 0, 0).unwrap();
    for (value, results) in input.iter().copied().zip(output.chunks(16)) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        let bytes = value.to_le_bytes();
        let first_set = |zeros: u32, bits: u32| if zeros == bits { 0 } else { u64::from(zeros) + 1 };
        let sign = |byte: u8| if byte & 128 == 0 { 0 } else { 255 };
        let expected = [
            low.count_ones().into(),
            value.count_ones().into(),
            first_set(low.trailing_zeros(), 32),
            first_set(value.trailing_zeros(), 64),
            low.leading_zeros().into(),
            value.leading_zeros().into(),
            low.reverse_bits().into(),
            value.reverse_bits(),
            u32::from_le_bytes([bytes[1], bytes[4], bytes[3], bytes[6]]).into(),
            u32::from_le_bytes([bytes[7], sign(bytes[7]), sign(bytes[0]), bytes[0]]).into(),
            (value >> 13) & 0xffff_ffff,
            (value << 13 >> 32) & 0xffff_ffff,
            ((u128::from(value) * u128::from(value)) >> 64) as u64,
            u64::from(low.min(high)) + 2 * u64::from(low.max(high)),
            i64::from((low as i32).min(5)) as u64,
            low.into(),
        ];
        assert_eq!(results, expected, "{value:#x}");
    }
}

#[test]
fn some_orders_expose_a_missing_barrier() {
    let right: Vec<u64> = (0..64).collect();
    let seeds_that_are_right = |kernel: &dyn Fn(&mut [u64; 64], u64)| -> Vec<u64> {
        let is_right = |seed: &u64| {
            let mut output = [0; 64];
            kernel(&mut output, *seed);
            output[..] == right
        };
        SEEDS.filter(is_right).collect()
    };
    let racing = seeds_that_are_right(&|output, seed| run!(simt_test_race, 1, [0u64; 0], output, 0, seed).unwrap());
    let ordered = seeds_that_are_right(&|output, seed| run!(simt_test_no_race, 1, [0u64; 0], output, 0, seed).unwrap());
    assert_eq!(racing, [0], "the natural order hides the race, every other shows it");
    assert_eq!(ordered, SEEDS.collect::<Vec<_>>());
}

#[test]
fn some_orders_expose_reliance_on_the_order_of_blocks() {
    let right: Vec<u64> = (0..=50).collect();
    let run = |seed: u64| {
        let mut output = vec![0u64; 51];
        run!(simt_test_block_race, 50, [0u64; 0], output, 0, seed).unwrap();
        output
    };
    assert_eq!(run(0), right);
    assert!(SEEDS.skip(1).filter(|seed| run(*seed) != right).count() >= 10);
}

#[test]
fn some_orders_expose_an_update_that_is_not_atomic() {
    let run = |seed: u64| {
        let mut output = [0u64; 2];
        run!(simt_test_lost_update, 1, [0u64; 0], output, 0, seed).unwrap();
        assert_eq!(output[1], 64);
        output[0]
    };
    assert_eq!(run(0), 64);
    assert!(SEEDS.skip(1).filter(|seed| run(*seed) != 64).count() >= 10);
}

#[test]
fn one_seed_is_one_order() {
    for seed in SEEDS {
        let run = || {
            let mut output = [0u64; 64 + 32];
            run!(simt_test_race, 1, [0u64; 0], output[..64], 0, seed).unwrap();
            run!(simt_test_undefined, 1, [0u64; 0], output[64..], 0, seed).unwrap();
            output
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn shared_memory_starts_with_a_pattern_in_every_block() {
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let mut output = [0u64; 32];
        run!(simt_test_undefined, 2, [0u64; 0], output, 0, seed).unwrap();
        for word in output {
            assert!(word.to_le_bytes().iter().all(|it| *it != 0), "{word:#x}");
            seen.insert(word);
        }
    }
    assert!(seen.len() >= 15, "it varies with the seed");
}

#[test]
fn threads_that_miss_each_other_are_an_error_that_says_where_they_stand() {
    let cases: [(u64, &[&str]); 8] = [
        (1, &["of 64 threads, 63 wait at a block barrier", "1 have returned", "thread 3 has returned"]),
        (2, &["different barriers", "waits at __syncthreads in simt_test.cc:"]),
        (3, &["different barriers", "waits at __syncthreads_or in simt_test.cc:"]),
        (4, &["31 at a warp function", "33 have returned", "waits at a shuffle with mask ffffffff"]),
        (5, &["the mask does not name the caller", "waits at a ballot with mask fffffffe"]),
        (6, &["different warp functions", "waits at __syncwarp", "waits at a ballot"]),
        (7, &["64 at a warp function", "mask 0001ffff", "mask ffff8000"]),
        (8, &["33 wait at a block barrier, 31 at a warp function", "thread 33 waits at __syncwarp"]),
    ];
    for (case, parts) in cases {
        for seed in SEEDS {
            let mut output = [0u64; 64];
            let message = run!(simt_test_diverge, 3, [0u64; 0], output, case, seed).unwrap_err();
            assert!(message.starts_with("kernel simt_test_diverge, block 1 of 3: "), "{message}");
            for part in parts {
                assert!(message.contains(part), "case {case}, seed {seed}: `{part}` is not in: {message}");
            }
            // The next launch starts afresh.
            run!(simt_test_diverge, 3, [0u64; 0], output, 0, seed).unwrap();
            run!(simt_test_no_race, 1, [0u64; 0], output, 0, seed).unwrap();
            assert!(output.iter().copied().eq(0..64));
        }
    }
}

#[test]
fn a_warp_function_may_not_name_lanes_that_the_block_lacks() {
    let mut output = [0u64; 64];
    let args = [0, output.as_mut_ptr() as u64, 0];
    // SAFETY: the kernel writes a word a thread.
    let message = unsafe { launch("narrow", simt_test_masks, 1, 48, &args, 0) }.unwrap_err();
    assert!(message.starts_with("kernel narrow, block 0 of 1: "), "{message}");
    assert!(message.contains("32 have returned") || message.contains("the block does not have"), "{message}");
    // SAFETY: refused before it runs.
    let message = unsafe { launch("wide", simt_test_masks, 1, 1025, &args, 0) }.unwrap_err();
    assert!(message.contains("blocks of 1025 threads"), "{message}");
}

#[test]
fn copies_move_every_byte_at_every_alignment_and_no_other() {
    let source: Vec<u8> = (0..400u32).map(|it| (it * 7 + 1) as u8).collect();
    for bytes in [0usize, 1, 5, 15, 16, 17, 31, 47, 64, 100, 255] {
        for from in 0..17 {
            for to in 0..17 {
                // Exact blocks, so that AddressSanitizer sees a read past either end.
                let input = source[..from + bytes].to_vec().into_boxed_slice();
                let mut output = vec![0xee_u8; to + bytes].into_boxed_slice();
                let args = [
                    input.as_ptr() as u64 + from as u64,
                    output.as_mut_ptr() as u64 + to as u64,
                    (bytes as u64) << 16 | [1, 7, 64][(from + to) % 3],
                ];
                // SAFETY: the kernel copies `bytes` bytes between the ranges.
                unsafe { launch("copy", simt_test_copy, 1, 64, &args, (from * to) as u64).unwrap() };
                assert!(output[..to].iter().all(|it| *it == 0xee));
                assert!(output[to..] == input[from..], "{bytes} bytes from {from} to {to}");
            }
        }
    }
}

#[test]
fn loads_take_any_alignment_and_stop_at_the_last_byte() {
    let bytes: Box<[u8]> = (0..39u8).map(|it| it.wrapping_mul(37) ^ 0x80).collect();
    let mut output = [0u64; 32 * 3];
    let args = [bytes.as_ptr() as u64, output.as_mut_ptr() as u64, 0];
    // SAFETY: thread t reads eight bytes at t.
    unsafe { launch("loads", simt_test_loads, 1, 32, &args, 0).unwrap() };
    for (thread, results) in output.chunks(3).enumerate() {
        let word = u64::from_le_bytes(bytes[thread..thread + 8].try_into().unwrap());
        assert_eq!(results, [word >> 48, word >> 32, word], "thread {thread}");
    }
}

#[test]
fn the_first_fault_by_page_wins() {
    for seed in SEEDS {
        let mut output = [u64::MAX; 1];
        run!(simt_test_fault, 1, [0u64; 0], output, 0, seed).unwrap();
        assert_eq!(output[0], 9 << 36 | 31_000 << 8 | 32, "page 9 is thread 31's");
    }
}

#[test]
fn launches_from_several_threads_take_turns() {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for seed in SEEDS {
                    let mut output = [0u64; 128 * 4];
                    run!(simt_test_barriers, 1, [0u64; 0], output, 0, seed + thread).unwrap();
                    assert_eq!(output[508..], [50, 43, 2, 2]);
                }
            });
        }
    });
}

/// That the kernels really are instrumented: each fault ends a process of its own with the sanitizer's report.
#[test]
#[cfg(sanitize_kernels)]
fn the_sanitizers_see_what_kernels_do() {
    unsafe extern "C" {
        fn simt_test_wrong(args: *const c_void);
    }
    const CASE: &str = "PARQUET_GPU_TEST_WRONG";
    const LEAK: u64 = 5;
    if let Some(case) = std::env::var(CASE).ok().and_then(|it| it.parse().ok()) {
        if case == LEAK {
            std::mem::forget(std::hint::black_box(vec![0u64; 1000]));
        }
        let mut output = vec![0u64; 32].into_boxed_slice();
        run!(simt_test_wrong, 1, [0u64; 0], output, case, 0).unwrap();
        return;
    }
    let reports = [
        "",
        "heap-buffer-overflow",
        "global-buffer-overflow",
        "misaligned address",
        "signed integer overflow",
        "detected memory leaks",
    ];
    for (case, report) in reports.iter().enumerate() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "device::simt::tests::the_sanitizers_see_what_kernels_do"])
            .env(CASE, case.to_string())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.success(), case == 0, "case {case}: {stderr}");
        assert!(stderr.contains(report), "{report}: {stderr}");
        assert!(
            stderr.contains("simt_test.cc") || case == 0 || case as u64 == LEAK,
            "the report names the line: {stderr}"
        );
    }
}
