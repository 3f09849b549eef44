#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| parquet_gpu_fuzz::snappy(input));
