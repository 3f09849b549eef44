//! Every codec that the `parquet` crate reads: kernels decode what any of them packed, wherever it is unpacked.
#![allow(clippy::unwrap_used)]

mod devices;
mod generate;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use bytes::Bytes;
use generate::Random;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet_gpu::io::Source;
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, Result, ScanReport};

fn codecs() -> Vec<Compression> {
    vec![
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ]
}

/// What kernels decompress; the CPU does the rest, unless a GPU has nvCOMP.
fn has_kernel(codec: Compression) -> bool {
    parquet_gpu::decompress::GPU_CODECS.contains(&codec)
}

fn source(file: &Bytes) -> Arc<Source> {
    Arc::new(Source::from_bytes("a file", file.clone()))
}

/// Scans and compares with arrow-rs.
fn verify(file: &Bytes, device: &Device, options: &ReadOptions) -> Result<ScanReport> {
    let source = source(file);
    let builder = GpuReaderBuilder::try_new(source.clone(), device.clone())?.with_options(options.clone());
    let mut verifier = Verifier::new(source, builder.footer(), &ProjectionMask::all(), None, None)?;
    let mut reader = builder.build()?;
    for batch in &mut reader {
        assert_eq!(verifier.check(&batch?)?.map(|it| it.to_string()), None);
    }
    assert_eq!(verifier.finish()?.map(|it| it.to_string()), None);
    Ok(reader.report())
}

fn write(batch: &RecordBatch, properties: WriterProperties) -> Bytes {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

/// Numbers, texts, random bytes that no codec shrinks, nothing but nulls, and lists.
fn batch(random: &mut Random, rows: usize) -> RecordBatch {
    let lists = (0..rows).map(|row| match row % 5 {
        0 => None,
        it => Some((0..it as i64 - 1).map(|at| (at != 2).then_some(at * row as i64)).collect::<Vec<_>>()),
    });
    let noise: Vec<i64> = (0..rows).map(|_| random.next() as i64).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", generate::array(random, &DataType::Int32, rows, 20, 50)),
        ("text", generate::array(random, &DataType::Utf8, rows, 10, 1000)),
        ("noise", Arc::new(Int64Array::from(noise))),
        ("nulls", Arc::new(StringArray::from(vec![None::<&str>; rows]))),
        ("lists", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

fn properties(codec: Compression, version: WriterVersion, page_rows: usize, group_rows: usize) -> WriterProperties {
    WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows)
        .set_max_row_group_row_count(Some(group_rows))
        // Version 2 would choose DELTA encodings; which kernels there are for them is another matter.
        .set_encoding(parquet::basic::Encoding::PLAIN)
        .build()
}

#[test]
fn every_codec_in_both_kinds_of_page() {
    let mut random = Random(11);
    let mut cases = 0;
    for gpu in devices::devices(3) {
        let device = Device::Gpu(gpu);
        for codec in codecs() {
            for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                for page_rows in [7, 500] {
                    let batch = batch(&mut random, 1200);
                    let file = write(&batch, properties(codec, version, page_rows, 700));
                    let report = verify(&file, &device, &ReadOptions::default()).unwrap();
                    assert!(report.columns_on_cpu.is_empty(), "{codec}: {:?}", report.columns_on_cpu);
                    let on_cpu: usize = report.decompressed_on_cpu.values().sum();
                    if device.name() == "emulated" {
                        let is_plain = codec == Compression::UNCOMPRESSED || has_kernel(codec);
                        assert_eq!(on_cpu, if is_plain { 0 } else { 2 * 5 }, "{codec}");
                        let name = codec.to_string();
                        let name = name.split('(').next().unwrap();
                        let reason = format!("decompressed on the CPU: {name}");
                        assert_eq!(
                            report.paths.reasons.contains_key(&reason),
                            on_cpu > 0,
                            "{:?}",
                            report.paths.reasons
                        );
                    }
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} files equal arrow-rs");
}

/// Larger than what is decompressed and sent at a time, as one page and as many.
#[test]
fn pages_of_many_mebibytes() {
    let rows = 9 << 20;
    let numbers: Vec<i64> = (0..rows).map(|it| it / 100).collect();
    let batch = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(numbers)) as ArrayRef)]).unwrap();
    for (page_bytes, page_rows) in [(1 << 30, usize::MAX), (1 << 20, 100_000)] {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_dictionary_enabled(false)
            .set_data_page_size_limit(page_bytes)
            .set_data_page_row_count_limit(page_rows)
            .set_max_row_group_row_count(None)
            .build();
        let file = write(&batch, properties);
        for gpu in devices::devices(5) {
            let report = verify(&file, &Device::Gpu(gpu), &ReadOptions::default()).unwrap();
            assert!(report.columns_on_cpu.is_empty());
        }
    }
}

/// A scan within a budget that holds one row group at a time, and one that holds none.
#[test]
fn plain_bodies_count_against_the_budget() {
    let batch = batch(&mut Random(5), 2000);
    let codec = Compression::BROTLI(BrotliLevel::default());
    let file = write(&batch, properties(codec, WriterVersion::PARQUET_1_0, 100, 500));
    for gpu in devices::devices(7) {
        let device = Device::Gpu(gpu);
        let whole = verify(&file, &device, &ReadOptions::default()).unwrap();
        assert_eq!(whole.batches, 1);
        let part = ReadOptions::default().with_memory(whole.peak_device_bytes * 3 / 4);
        let parts = verify(&file, &device, &part).unwrap();
        assert!(parts.batches > 1 && parts.peak_device_bytes <= whole.peak_device_bytes * 3 / 4);
        let none = ReadOptions::default().with_memory(1000);
        assert_eq!(verify(&file, &device, &none).unwrap_err().kind(), "budget");
    }
}

/// A damaged page is told with its place, whichever codec finds it.
#[test]
fn a_page_that_does_not_decompress_is_named() {
    let numbers: Vec<i64> = (0..4000).map(|it| it * it % 77).collect();
    let batch = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(numbers)) as ArrayRef)]).unwrap();
    for codec in codecs().into_iter().filter(|it| *it != Compression::UNCOMPRESSED) {
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(1000)
            .set_write_batch_size(1000)
            .build();
        let file = write(&batch, properties);
        let footer = GpuReaderBuilder::try_new(source(&file), Device::Cpu).unwrap();
        let chunk = footer.footer().metadata().row_group(0).column(0);
        let (start, end) = (chunk.byte_range().0 as usize, (chunk.byte_range().0 + chunk.byte_range().1) as usize);
        let mut damaged = file.to_vec();
        damaged[end - 300..end].fill(0xff); // the last page's body
        let damaged = Bytes::from(damaged);
        for gpu in devices::devices(9) {
            let error = verify(&damaged, &Device::Gpu(gpu), &ReadOptions::default()).unwrap_err();
            let place = error.place().unwrap_or_else(|| panic!("{codec}: {error}"));
            assert_eq!(
                (place.row_group, place.column.as_deref(), place.page),
                (Some(0), Some("a"), Some(3)),
                "{error}"
            );
            assert!(place.offset.is_some_and(|it| (start as u64..end as u64).contains(&it)), "{error}");
        }
    }
}
