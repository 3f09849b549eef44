//! Footers: what arrow-rs parses is parsed, what it refuses or panics on is an error.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet_gpu::footer::{Footer, LeafDecode};
use parquet_gpu::io::Source;
use parquet_gpu::{Device, GpuReaderBuilder};

fn read(path: &Path) -> parquet_gpu::Result<Footer> {
    Footer::read(&Arc::new(Source::open(path.to_str().unwrap())?))
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[test]
fn the_corpus_parses_where_arrow_rs_parses_it() {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return;
    };
    let index = std::fs::read_to_string(root.join("INDEX.tsv")).unwrap();
    let (mut parsed, mut refused, mut panics) = (0, 0, 0);
    for line in index.lines().skip(1) {
        let mut fields = line.split('\t');
        let path = root.join(fields.next().unwrap().replace('/', "+")).join(fields.next().unwrap());
        let ours = read(&path);
        let file = File::open(&path).unwrap();
        let theirs = catch_unwind(AssertUnwindSafe(|| ArrowReaderMetadata::load(&file, Default::default())));
        match (&ours, theirs) {
            (Ok(footer), Ok(Ok(metadata))) => {
                assert_eq!(footer.schema(), metadata.schema(), "{path:?}");
                assert_eq!(footer.leaves.len(), metadata.parquet_schema().num_columns(), "{path:?}");
                parsed += 1;
            }
            (Err(_), Ok(Err(_))) => refused += 1,
            (Err(error), Err(_)) => {
                assert_eq!(error.kind(), "corrupt", "{path:?}: {error}");
                panics += 1;
            }
            (ours, theirs) => panic!("{path:?}: {:?}, arrow-rs {:?}", ours.is_ok(), theirs.map(|it| it.is_ok())),
        }
    }
    println!("{parsed} parsed, {refused} refused, {panics} panics of the parser");
    assert!(parsed >= 690);
}

#[test]
fn encrypted_footers_are_named() {
    let mut bytes = std::fs::read(testdata("orders.parquet")).unwrap();
    let magic = bytes.len() - 4;
    bytes[magic..].copy_from_slice(b"PARE");
    let error = Footer::read(&Arc::new(Source::from_bytes("encrypted", bytes.into()))).unwrap_err();
    assert_eq!(error.kind(), "unsupported");
    assert!(error.to_string().contains("encrypted"), "{error}");
}

#[test]
fn a_footer_longer_than_the_speculative_tail_and_lengths_that_lie() {
    // A footer whose length is stated as more than the file has, as nothing, and as the largest number.
    let good = std::fs::read(testdata("orders.parquet")).unwrap();
    for length in [0u32, 8, good.len() as u32, u32::MAX] {
        let mut bytes = good.clone();
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        let error = Footer::read(&Arc::new(Source::from_bytes("lying", bytes.into()))).unwrap_err();
        assert_eq!(error.kind(), "corrupt", "{length}: {error}");
    }
    for cut in [0, 1, 7, 11, 12] {
        Footer::read(&Arc::new(Source::from_bytes("cut", good[..cut].to_vec().into()))).unwrap_err();
    }
    // 50 row groups of 8 columns need more than one read.
    let footer = read(&testdata("row_groups.parquet")).unwrap();
    assert_eq!(footer.metadata().num_row_groups(), 50);
}

#[test]
fn flat_columns_are_for_kernels_and_nested_ones_are_not() {
    let flat = read(&testdata("types_v1_snappy.parquet")).unwrap();
    assert!(flat.leaves.iter().all(|leaf| !matches!(leaf.decode, LeafDecode::Cpu(_))), "{:?}", flat.leaves);
    let nested = read(&testdata("nested.parquet")).unwrap();
    assert!(nested.leaves.iter().any(|leaf| matches!(leaf.decode, LeafDecode::Cpu("nested columns"))));
}

#[test]
fn encrypted_columns_are_named_and_the_others_are_read() {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return;
    };
    let path = root.join("apache+parquet-testing/data/encrypt_columns_plaintext_footer.parquet.encrypted");
    let footer = read(&path).unwrap();
    let encrypted: Vec<&str> = footer.encrypted.iter().map(|(_, leaf)| footer.leaves[*leaf].path.as_str()).collect();
    assert_eq!(encrypted, ["float_field", "double_field"]);

    let open = || GpuReaderBuilder::try_new(Arc::new(Source::open(path.to_str().unwrap()).unwrap()), Device::Cpu);
    let error = open().unwrap().build().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), "unsupported");
    assert!(error.to_string().contains("float_field") && error.to_string().contains("encrypted"), "{error}");
    let schema = footer.metadata().file_metadata().schema_descr();
    let plain = ProjectionMask::columns(schema, ["boolean_field", "int32_field"]);
    let batches: Vec<_> = open().unwrap().with_projection(plain).build().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.iter().map(|it| it.num_rows()).sum::<usize>(), 50);
}
