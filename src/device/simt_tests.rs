//! The launcher, by the small kernels of `kernels/simt_test.cc`.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;

use super::*;

// SAFETY: the kernels of `kernels/simt_test.cc`, which KERNEL defines with this signature.
unsafe extern "C" {
    fn simt_test_scan(args: *const c_void);
}

const SEEDS: std::ops::Range<u64> = 0..20;

fn run(name: &str, body: KernelBody, blocks: u32, threads: u32, args: &[u64], seed: u64) -> Result<(), String> {
    // SAFETY: each test passes the arguments that its kernel reads.
    unsafe { launch(name, body, blocks, threads, args, seed) }
}

#[test]
fn scans_add_up_the_threads_before() {
    for seed in SEEDS {
        let input: Vec<u64> = (0..256).map(|it| it * it + seed).collect();
        let mut output = vec![0u64; 256 + 3];
        let args = [input.as_ptr() as u64, output.as_mut_ptr() as u64];
        run("scan", simt_test_scan, 1, 256, &args, seed).unwrap();
        let mut sum = 0;
        for (thread, value) in input.iter().enumerate() {
            assert_eq!(output[thread], sum, "thread {thread}, seed {seed}");
            sum += value;
        }
        assert_eq!(output[256..], [sum, input[255], input[0]], "total, greatest, smallest");
    }
}
