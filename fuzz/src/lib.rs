//! What the fuzz targets do with their input: make a file of it, read the file on the emulated device and compare with
//! arrow-rs. An error is a fine outcome; a crash, a hang, other values, or an array that is not valid, is not.
//!
//! With `PARQUET_GPU_FUZZ_STRICT=1` a file that arrow-rs reads and the emulated device refuses is a finding, too.

mod input;
#[allow(dead_code, missing_docs)]
#[path = "../../tests/cross/pages.rs"]
mod pages;

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, RecordBatch, RecordBatchReader};
use arrow::compute::concat_batches;
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet_gpu::device::Gpu;
use parquet_gpu::device::emulated::EmulatedBackend;
use parquet_gpu::io::Source;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, Result, guard};

pub use input::{Codec, PREFIX, PageInput, Target, file_of, types};

/// Device memory of a scan: more than any input needs, and less than a lie may ask for.
const MEMORY: u64 = 64 << 20;

/// Rows that are compared.
const MOST_ROWS: usize = 1 << 20;

/// One device for each order of threads, kept: memory that a scan leaks is seen by the next.
fn gpu(seed: u8) -> &'static Gpu {
    static GPUS: [OnceLock<Gpu>; 4] = [const { OnceLock::new() }; 4];
    let seed = usize::from(seed) % GPUS.len();
    GPUS[seed].get_or_init(|| Gpu::new(EmulatedBackend::new(seed as u64)))
}

fn scan(bytes: &Bytes, gpu: &Gpu) -> Result<Vec<RecordBatch>> {
    let source = Arc::new(Source::from_bytes("fuzz", bytes.clone()));
    let options = ReadOptions::default().with_memory(MEMORY);
    let reader = GpuReaderBuilder::try_new(source, Device::Gpu(gpu.clone()))?.with_options(options).build()?;
    reader.map(|batch| batch?.to_host()).collect()
}

fn reference(bytes: &Bytes) -> parquet::errors::Result<RecordBatch> {
    guard::catch(|| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?.with_batch_size(1 << 16).build()?;
        let schema = reader.schema();
        let mut rows = 0;
        let batches = reader.map(|batch| {
            let batch = batch?;
            rows += batch.num_rows();
            // A footer without columns may state any number, and arrow-rs counts up to it.
            if rows > MOST_ROWS {
                Err(parquet::errors::ParquetError::General("too many rows".into()))
            } else {
                Ok(batch)
            }
        });
        let batches = batches.collect::<parquet::errors::Result<Vec<_>>>()?;
        Ok(concat_batches(&schema, &batches)?)
    })
}

/// Reads a file and compares.
fn check(bytes: &Bytes, seed: u8) {
    let gpu = gpu(seed);
    let free = gpu.free_memory().expect("the device works");
    let scanned = scan(bytes, gpu);
    assert_eq!(gpu.free_memory().expect("the device works after any file"), free, "device memory leaks");
    match scanned {
        Err(error) => {
            let text = error.to_string();
            // What `DeviceBatch::to_host` says when the kernels made nonsense.
            assert!(!text.contains("is not valid") && !text.contains("form no batch"), "{text}");
            assert_ne!(error.kind(), "device", "{text}");
            let strict = std::env::var_os("PARQUET_GPU_FUZZ_STRICT").is_some_and(|it| it == "1");
            assert!(!strict || reference(bytes).is_err(), "arrow-rs reads it: {text}");
        }
        // What arrow-rs refuses is its own matter: it looks at things that no result depends on.
        Ok(batches) => {
            if let Ok(expected) = reference(bytes) {
                assert_same(&batches, &expected);
            }
        }
    }
}

fn assert_same(batches: &[RecordBatch], expected: &RecordBatch) {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, expected.num_rows(), "rows");
    let mut at = 0;
    for batch in batches {
        assert_eq!(batch.schema(), expected.schema());
        for (ours, theirs) in batch.columns().iter().zip(expected.slice(at, batch.num_rows()).columns()) {
            ours.to_data().validate_full().expect("kernels make valid arrays");
            assert!(ours.to_data() == theirs.to_data(), "values differ:\n{ours:?}\n{theirs:?}");
        }
        at += batch.num_rows();
    }
}

fn pages(input: &[u8], target: Target) {
    let Some(input) = PageInput::parse(input) else { return };
    check(&input.file(target), input.seed);
}

/// A column chunk, headers included.
pub fn headers(input: &[u8]) {
    pages(input, Target::Headers);
}

/// Repetition and definition levels.
pub fn levels(input: &[u8]) {
    pages(input, Target::Levels);
}

/// Dictionaries and their indices.
pub fn dictionary(input: &[u8]) {
    pages(input, Target::Dictionary);
}

/// PLAIN, BYTE_STREAM_SPLIT and run-length booleans.
pub fn plain(input: &[u8]) {
    pages(input, Target::Plain);
}

/// DELTA_BINARY_PACKED, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
pub fn delta(input: &[u8]) {
    pages(input, Target::Delta);
}

/// Pages compressed by Snappy.
pub fn snappy(input: &[u8]) {
    pages(input, Target::Snappy);
}

/// Pages compressed as LZ4_RAW.
pub fn lz4(input: &[u8]) {
    pages(input, Target::Lz4);
}

/// Whole files.
pub fn file(input: &[u8]) {
    check(&Bytes::copy_from_slice(input), input.len() as u8);
}
