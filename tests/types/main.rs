//! Every leaf type is decoded by kernels, and as arrow-rs decodes it: files made for it, read on every device.
#![allow(clippy::unwrap_used)]

mod decimals;
#[path = "../devices/mod.rs"]
mod devices;
mod dictionaries;
#[path = "../generate/mod.rs"]
mod generate;
mod levels;
mod logical;
mod options;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchReader};
use arrow::compute::concat_batches;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::basic::Compression;
use parquet::data_type::DataType;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet_gpu::io::Source;
use parquet_gpu::{Device, Error, GpuReaderBuilder, ReadOptions, Result};

/// Ways to write: each page version, with and without dictionaries, with dictionaries that soon are full, and compressed;
/// the values without a dictionary are PLAIN, and of version 2 also in the DELTA encodings.
pub fn styles() -> Vec<(String, WriterPropertiesBuilder)> {
    let mut styles = Vec::new();
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for (name, dictionary, limit) in [("plain", false, 1 << 20), ("dictionary", true, 1 << 20), ("full", true, 64)]
        {
            let codec = if name == "full" { Compression::SNAPPY } else { Compression::UNCOMPRESSED };
            let properties = WriterProperties::builder()
                .set_writer_version(version)
                .set_dictionary_enabled(dictionary)
                .set_dictionary_page_size_limit(limit)
                .set_data_page_row_count_limit(70)
                .set_write_batch_size(16)
                .set_compression(codec);
            if version == WriterVersion::PARQUET_2_0 && name != "dictionary" {
                // The writer's own choice: DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, RLE.
                styles.push((format!("{version:?} delta, {name}"), properties.clone()));
            }
            let properties = properties.set_encoding(parquet::basic::Encoding::PLAIN);
            styles.push((format!("{version:?} {name}"), properties));
        }
    }
    styles
}

/// A file of a batch, in row groups of `group` rows.
pub fn write(batch: &RecordBatch, properties: WriterPropertiesBuilder, group: usize) -> Bytes {
    let properties = properties.set_max_row_group_row_count(Some(group)).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

/// A file of one column of one physical type, a row group for each list of values; `None` is a null.
pub fn write_raw<T: DataType>(field: &str, properties: WriterPropertiesBuilder, groups: &[Vec<Option<T::T>>]) -> Bytes {
    let schema = Arc::new(parse_message_type(&format!("message m {{ {field}; }}")).unwrap());
    let required = field.starts_with("required");
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties.build())).unwrap();
    for group in groups {
        let values: Vec<T::T> = group.iter().flatten().cloned().collect();
        let levels: Vec<i16> = group.iter().map(|it| it.is_some().into()).collect();
        let mut row_group = writer.next_row_group().unwrap();
        let mut column = row_group.next_column().unwrap().unwrap();
        column.typed::<T>().write_batch(&values, (!required).then_some(&levels), None).unwrap();
        column.close().unwrap();
        row_group.close().unwrap();
    }
    writer.close().unwrap();
    bytes.into()
}

/// The batch that arrow-rs makes.
fn reference(bytes: &Bytes, selection: Option<RowSelection>) -> Result<RecordBatch, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    std::panic::catch_unwind(|| {
        let mut builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).map_err(|it| text(&it))?;
        if let Some(selection) = selection {
            builder = builder.with_row_selection(selection);
        }
        let reader = builder.with_batch_size(1 << 16).build().map_err(|it| text(&it))?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|it| text(&it))?;
        concat_batches(&schema, &batches).map_err(|it| text(&it))
    })
    .unwrap_or_else(|_| Err("a panic".into()))
}

/// What a scan makes, and why which of its columns were decoded on the CPU.
pub fn scan(
    bytes: &Bytes,
    device: Device,
    options: ReadOptions,
    selection: Option<RowSelection>,
) -> Result<(RecordBatch, BTreeMap<String, String>)> {
    let source = Arc::new(Source::from_bytes("generated", bytes.clone()));
    let mut builder = GpuReaderBuilder::try_new(source, device)?.with_options(options.with_memory(256 << 20));
    if let Some(selection) = selection {
        builder = builder.with_row_selection(selection);
    }
    let mut reader = builder.build()?;
    let schema = reader.schema().clone();
    let batches = reader.by_ref().map(|it| it?.to_host()).collect::<Result<Vec<_>>>()?;
    Ok((concat_batches(&schema, &batches).unwrap(), reader.report().columns_on_cpu))
}

/// Schema and values are the same, and the first is a valid batch.
pub fn assert_same(name: &str, ours: &RecordBatch, theirs: &RecordBatch) {
    assert_eq!(ours.schema(), theirs.schema(), "{name}");
    assert_eq!(ours.num_rows(), theirs.num_rows(), "{name}: rows");
    for (at, (one, other)) in ours.columns().iter().zip(theirs.columns()).enumerate() {
        one.to_data().validate_full().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(one.to_data() == other.to_data(), "{name}: {} differs", ours.schema().field(at));
    }
}

/// Reads on every device: all rows in one batch, a batch for each row group, and some rows. Each equals arrow-rs's, and
/// kernels decode every column. How often it was compared.
pub fn check(name: &str, bytes: &Bytes, seeds: std::ops::Range<u64>) -> usize {
    let whole = reference(bytes, None).unwrap_or_else(|error| panic!("{name}: {error}"));
    let rows = whole.num_rows();
    let ranges = (0..rows).step_by(17).map(|row| row..(row + 9).min(rows));
    let some = RowSelection::from_consecutive_ranges(ranges, rows);
    let selected = reference(bytes, Some(some.clone())).unwrap();
    let mut compared = 0;
    for device in devices::devices_with(&seeds.collect::<Vec<_>>()) {
        let name = format!("{name} on {}", device.name());
        for (options, selection, expected) in [
            (ReadOptions::default(), None, &whole),
            (ReadOptions::default().with_batch_rows(1), None, &whole),
            (ReadOptions::default(), Some(some.clone()), &selected),
        ] {
            let (batch, on_cpu) = scan(bytes, Device::Gpu(device.clone()), options, selection)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(on_cpu, BTreeMap::new(), "{name}");
            assert_same(&name, &batch, expected);
            compared += 1;
        }
    }
    compared
}

/// Both refuse; what we say.
pub fn refused(name: &str, bytes: &Bytes, seed: u64) -> Vec<Error> {
    reference(bytes, None).expect_err(name);
    let devices = devices::devices(seed).into_iter();
    devices
        .map(|device| {
            let scanned = scan(bytes, Device::Gpu(device), ReadOptions::default(), None);
            scanned.map(|_| ()).expect_err(name)
        })
        .collect()
}
