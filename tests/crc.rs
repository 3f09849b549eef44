//! Checksums of pages: checked when asked for, on every device, and told with the page.
#![allow(clippy::unwrap_used)]

mod compressed;
mod devices;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use compressed::{Random, on_device};
use parquet_gpu::io::Source;
use parquet_gpu::kernels::abi::{PageHeader, page_kind};
use parquet_gpu::page::{ChunkInput, PageTable, crc};
use parquet_gpu::{Device, Error, GpuReaderBuilder, ReadOptions, Result};

fn all_devices(seed: u64) -> Vec<Device> {
    devices::devices(seed).into_iter().map(Device::Gpu).chain([Device::Cpu]).collect()
}

fn read(file: &Bytes, device: &Device, check: bool) -> Result<u64> {
    let source = Arc::new(Source::from_bytes("a file", file.clone()));
    let options = ReadOptions::default().with_check_crc(check);
    let reader = GpuReaderBuilder::try_new(source, device.clone())?.with_options(options).build()?;
    reader.map(|batch| batch.map(|it| it.num_rows() as u64)).sum()
}

fn corpus(name: &str) -> Option<Bytes> {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return None;
    };
    Some(std::fs::read(root.join("apache+parquet-testing/data").join(name)).unwrap().into())
}

#[test]
fn checksums_that_others_wrote() {
    for (name, page) in [
        ("datapage_v1-uncompressed-checksum.parquet", None),
        ("datapage_v1-snappy-compressed-checksum.parquet", None),
        ("plain-dict-uncompressed-checksum.parquet", None),
        ("rle-dict-snappy-checksum.parquet", None),
        // Their README: the first page of the first column and the second of the second; the dictionary page.
        ("datapage_v1-corrupt-checksum.parquet", Some(("a", 0))),
        ("rle-dict-uncompressed-corrupt-checksum.parquet", Some(("long_field", 0))),
    ] {
        let Some(file) = corpus(name) else { return };
        for device in all_devices(1) {
            assert!(read(&file, &device, false).is_ok(), "{name}: not asked for");
            match (read(&file, &device, true), page) {
                (Ok(_), None) => (),
                (Err(error), Some((column, page))) => assert_named(&error, column, page),
                (other, _) => panic!("{name} on {}: {other:?}", device.name()),
            }
        }
    }
}

fn assert_named(error: &Error, column: &str, page: usize) {
    assert!(error.to_string().contains("checksum"), "{error}");
    let place = error.place().unwrap();
    assert_eq!((place.column.as_deref(), place.page), (Some(column), Some(page)), "{error}");
    assert!(place.row_group.is_some() && place.offset.is_some(), "{error}");
}

/// Pages of every length about the kernel's parts, at every alignment, in any device's order.
#[test]
fn the_kernel_equals_crc32fast_and_names_the_first_page_that_differs() {
    let mut random = Random(5);
    let mut lengths: Vec<usize> = (0..70).collect();
    lengths.extend([255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4099, 65_537, 1 << 20]);
    let mut bytes = Vec::new();
    let mut headers = Vec::new();
    for (at, length) in lengths.iter().enumerate() {
        bytes.extend(random.bytes(at % 5)); // headers, which nobody looks at
        let body = random.bytes(*length);
        headers.push(PageHeader {
            body_offset: bytes.len() as u64,
            compressed_bytes: *length as u32,
            crc: crc32fast::hash(&body),
            has_crc: 1,
            kind: page_kind::DATA_V1,
            ..PageHeader::default()
        });
        bytes.extend(body);
    }
    for gpu in devices::devices_with(&[0, 9]) {
        let stream = gpu.new_stream().unwrap();
        for skew in 0..4 {
            let (buffer, address) = on_device(&stream, &bytes, skew);
            let check = |headers: &[PageHeader]| {
                let chunk = ChunkInput { address, bytes: bytes.len() as u64, ..chunk() };
                let table = PageTable::new(vec![chunk], vec![0, headers.len()], headers.to_vec());
                // SAFETY: the buffer holds the chunk, and its bytes have arrived.
                unsafe { crc::check(&stream, &table) }
            };
            check(&headers).unwrap();
            for bad in [3, 20, 75, headers.len() - 1] {
                let mut headers = headers.clone();
                headers[bad].crc ^= 1 << (bad % 32);
                headers.last_mut().unwrap().crc ^= 2;
                assert_named(&check(&headers).unwrap_err(), "a", bad);
                headers.iter_mut().for_each(|it| it.has_crc = 0);
                check(&headers).unwrap();
            }
            drop(buffer);
        }
    }
}

fn chunk() -> ChunkInput {
    ChunkInput {
        address: 0,
        bytes: 0,
        file_offset: 4,
        num_values: 0,
        num_rows: 0,
        first_row: 0,
        first_page: 0,
        continues: false,
        row_group: 0,
        column: "a".into(),
        codec: parquet::basic::Compression::UNCOMPRESSED,
        physical_type: parquet::basic::Type::INT32,
        expected_pages: None,
    }
}
