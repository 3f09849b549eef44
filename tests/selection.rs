//! Selected rows equal arrow-rs's, and with an offset index only their pages are read.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)] // ranges are what is meant

mod devices;
mod generate;

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, LargeListArray, ListArray, MapArray, RecordBatch, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use generate::Random;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::basic::Compression;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet_gpu::device::Device;
use parquet_gpu::io::Source;
use parquet_gpu::{GpuReaderBuilder, ReadOptions};

fn nulls(random: &mut Random, rows: usize) -> Option<NullBuffer> {
    Some((0..rows).map(|_| random.below(6) != 0).collect())
}

fn offsets(random: &mut Random, rows: usize) -> (OffsetBuffer<i32>, usize) {
    let lengths: Vec<usize> =
        (0..rows).map(|_| if random.below(40) == 0 { 200 } else { random.below(5) as usize }).collect();
    let total = lengths.iter().sum();
    (OffsetBuffer::from_lengths(lengths), total)
}

/// Columns of many forms: flat, and below lists, structs and maps.
fn columns(random: &mut Random, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let flat = |random: &mut Random, data_type, rows, nulls| generate::array(random, &data_type, rows, nulls, 50);
    let (list_offsets, total) = offsets(random, rows);
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let strings = flat(random, DataType::Utf8, total, 10);
    let list: ArrayRef = Arc::new(ListArray::new(item(DataType::Utf8), list_offsets, strings, nulls(random, rows)));
    let (outer, total) = offsets(random, rows);
    let (inner, inner_total) = offsets(random, total);
    let numbers = flat(random, DataType::Int64, inner_total, 20);
    let inner = ListArray::new(item(DataType::Int64), inner, numbers, nulls(random, total));
    let pair = StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Boolean, true)), flat(random, DataType::Boolean, total, 20)),
        (item(inner.data_type().clone()), Arc::new(inner) as ArrayRef),
    ]);
    use arrow::array::Array;
    let large = OffsetBuffer::new(outer.iter().map(|it| i64::from(*it)).collect());
    let field = item(pair.data_type().clone());
    let deep: ArrayRef = Arc::new(LargeListArray::new(field, large, Arc::new(pair), nulls(random, rows)));
    let numbers = flat(random, DataType::Float64, rows * 3, 10);
    let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(item(DataType::Float64), 3, numbers, nulls(random, rows)));
    let (entries, total) = offsets(random, rows);
    let pairs = StructArray::from(vec![
        (Arc::new(Field::new("key", DataType::Int32, false)), flat(random, DataType::Int32, total, 0)),
        (Arc::new(Field::new("value", DataType::Utf8View, true)), flat(random, DataType::Utf8View, total, 30)),
    ]);
    let field = Arc::new(Field::new("entries", pairs.data_type().clone(), false));
    let map: ArrayRef = Arc::new(MapArray::new(field, entries, pairs, nulls(random, rows), false));
    let kept = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    vec![
        ("required", flat(random, DataType::Int32, rows, 0)),
        ("optional", flat(random, DataType::Int64, rows, 25)),
        ("bits", flat(random, DataType::Boolean, rows, 10)),
        ("text", flat(random, DataType::Utf8, rows, 10)),
        ("kept", cast(&flat(random, DataType::Utf8, rows, 10), &kept).unwrap()),
        ("wide", flat(random, DataType::Decimal128(38, 3), rows, 10)),
        ("list", list),
        ("deep", deep),
        ("fixed", fixed),
        ("map", map),
    ]
}

/// Row groups of seven pages and a little, or of one page each, which several blocks share.
fn file(batch: &RecordBatch, version: WriterVersion, dictionary: bool, index: bool) -> Bytes {
    let (page, group) = if index { (97, 700) } else { (20_000, 12_000) };
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(page)
        .set_write_batch_size(32)
        .set_max_row_group_row_count(Some(group))
        .set_offset_index_disabled(!index)
        .set_statistics_enabled(if index { EnabledStatistics::Page } else { EnabledStatistics::None })
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

fn selections(random: &mut Random, rows: usize) -> Vec<RowSelection> {
    let mut scattered = Vec::new();
    let mut at = random.below(5) as usize;
    while at < rows {
        let end = (at + 1 + random.below(7) as usize).min(rows);
        scattered.push(at..end);
        at = end + 1 + random.below(60) as usize;
    }
    let from = |ranges: Vec<std::ops::Range<usize>>| RowSelection::from_consecutive_ranges(ranges.into_iter(), rows);
    vec![
        from(vec![0..1]),
        from(vec![rows - 1..rows]),
        from(vec![0..rows]),
        from(Vec::new()),
        from(vec![97..194, 699..701]), // whole pages, and a row on either side of a row group's end
        from(vec![150..1333]),
        from(scattered),
        from((0..rows).step_by(2).map(|row| row..row + 1).collect()),
    ]
}

#[test]
fn selected_rows_equal_those_of_arrow_rs() {
    let mut cases = 0;
    for (seed, version) in [(1, WriterVersion::PARQUET_1_0), (2, WriterVersion::PARQUET_2_0)] {
        let mut random = Random(seed);
        let columns = columns(&mut random, 12_500);
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let selections = selections(&mut random, batch.num_rows());
        for (dictionary, index) in [(true, true), (false, false), (true, false)] {
            let file = file(&batch, version, dictionary, index);
            for selection in &selections {
                let theirs = ParquetRecordBatchReaderBuilder::try_new(file.clone()).unwrap();
                let schema: Arc<Schema> = theirs.schema().clone();
                let theirs = theirs.with_row_selection(selection.clone()).build().unwrap();
                let theirs = concat_batches(&schema, &theirs.collect::<Result<Vec<_>, _>>().unwrap()).unwrap();
                let mut all: Vec<Device> = devices::devices_with(&[seed]).into_iter().map(Device::Gpu).collect();
                all.push(Device::Cpu);
                for device in all {
                    let name = format!("{}, {version:?}, index {index}, {selection:?}", device.name());
                    let source = Arc::new(Source::from_bytes("a test", file.clone()));
                    let builder = GpuReaderBuilder::try_new(source, device).unwrap();
                    let reader = builder.with_row_selection(selection.clone()).build().unwrap();
                    let ours: Vec<_> = reader.map(|it| it.unwrap().to_host().unwrap()).collect();
                    let ours = concat_batches(&schema, &ours).unwrap();
                    assert_eq!(ours.num_rows(), theirs.num_rows(), "{name}");
                    for (at, field) in schema.fields().iter().enumerate() {
                        let (ours, theirs) = (ours.column(at).to_data(), theirs.column(at).to_data());
                        assert!(ours == theirs, "{name}, {}", field.name());
                    }
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} cases");
}

#[test]
fn only_pages_with_selected_rows_are_read() {
    let mut random = Random(3);
    let batch = RecordBatch::try_from_iter(columns(&mut random, 2000)).unwrap();
    let file = file(&batch, WriterVersion::PARQUET_2_0, true, true);
    let Some(gpu) = devices::devices_with(&[0]).into_iter().next() else { return };
    let bytes = |rows: Option<std::ops::Range<usize>>| {
        let source = Arc::new(Source::from_bytes("a test", file.clone()));
        let options = ReadOptions::default();
        let options = options.clone().with_io(options.io.with_merge(0, 0));
        let mut builder = GpuReaderBuilder::try_new(source, Device::Gpu(gpu.clone())).unwrap().with_options(options);
        if let Some(rows) = rows {
            builder = builder.with_row_selection(RowSelection::from_consecutive_ranges([rows].into_iter(), 2000));
        }
        let mut reader = builder.build().unwrap();
        let rows: usize = reader.by_ref().map(|it| it.unwrap().num_rows()).sum();
        (rows, reader.report().file_bytes)
    };
    let (all_rows, all) = bytes(None);
    let (some_rows, some) = bytes(Some(1000..1010));
    assert_eq!((all_rows, some_rows), (2000, 10));
    // One page of seven in one row group of three, and dictionaries.
    assert!(some > 0 && some < all / 5, "{some} of {all} bytes");
    assert_eq!(bytes(Some(0..0)), (0, 0));
}
