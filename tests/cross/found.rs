//! Inputs that a fuzzer once failed on: `fuzz/found/TARGET/`. An error or what arrow-rs reads, on every device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use parquet_gpu::io::Source;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, Result};

use crate::Subject;

#[allow(dead_code, missing_docs)]
#[path = "../../fuzz/src/input.rs"]
mod input;

fn scan(bytes: &Bytes, device: Device) -> Result<Vec<RecordBatch>> {
    let source = Arc::new(Source::from_bytes("found", bytes.clone()));
    let options = ReadOptions::default().with_memory(64 << 20);
    GpuReaderBuilder::try_new(source, device)?.with_options(options).build()?.map(|it| it?.to_host()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn found_by_fuzzers() {
    let mut count = 0;
    for folder in files(&crate::root().join("fuzz/found")) {
        let target = folder.file_name().unwrap().to_str().unwrap().to_string();
        for path in files(&folder) {
            let bytes = std::fs::read(&path).unwrap();
            let bytes = match input::Target::ALL.iter().find(|it| it.1 == target) {
                Some((target, _)) => input::PageInput::parse(&bytes).unwrap().file(*target),
                None => bytes.into(),
            };
            let gpus = (0..3).flat_map(crate::devices::devices).map(Device::Gpu);
            for device in gpus.chain([Device::Cpu]) {
                let name = format!("{} on {}", path.display(), device.name());
                match scan(&bytes, device) {
                    Ok(batches) => {
                        let expected = Subject::whole(&name, bytes.clone()).reference();
                        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
                        assert_eq!(Ok(rows), expected.as_ref().map(RecordBatch::num_rows), "{name}");
                        let whole = arrow::compute::concat_batches(&expected.as_ref().unwrap().schema(), &batches);
                        crate::assert_same(&name, &whole.unwrap(), &expected.unwrap());
                    }
                    Err(error) => {
                        assert!(["corrupt", "unsupported", "budget"].contains(&error.kind()), "{name}: {error}")
                    }
                }
            }
            count += 1;
        }
    }
    println!("{count} inputs");
    assert!(count > 0);
}
