//! Writes the files of this folder, the same bytes each time:
//!     cargo run --example testdata [FOLDER]
//!
//! A test compares them with what this writes, so a change here comes with the files.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int32Type, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

/// A column: name and values.
type Column = (&'static str, ArrayRef);

fn main() -> io::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/testdata").into());
    fs::create_dir_all(&folder)?;
    for (name, bytes) in files() {
        fs::write(Path::new(&folder).join(name), bytes)?;
    }
    Ok(())
}

/// Every file: its name and its bytes.
pub fn files() -> Vec<(&'static str, Vec<u8>)> {
    let snappy = || base().set_compression(Compression::SNAPPY);
    let small_pages =
        |builder: WriterPropertiesBuilder| builder.set_data_page_row_count_limit(100).set_write_batch_size(50);
    let good = vec![
        // What the README scans: four row groups of a table such as people have.
        ("orders.parquet", write(orders(10_000), snappy().set_max_row_group_row_count(Some(2_500)))),
        // Every fixed-width type and strings, plain, without nulls.
        ("types_plain.parquet", write(types(300, false), base().set_dictionary_enabled(false))),
        // The same with nulls, dictionaries and Snappy, in pages of both versions.
        ("types_v1_snappy.parquet", write(types(300, true), small_pages(snappy()))),
        (
            "types_v2_snappy.parquet",
            write(types(300, true), small_pages(snappy()).set_writer_version(WriterVersion::PARQUET_2_0)),
        ),
        // A dictionary that grows too large: PLAIN pages after it, in the same chunk.
        (
            "dictionary_fallback.parquet",
            write(strings(2_000), small_pages(snappy()).set_dictionary_page_size_limit(1 << 10)),
        ),
        // Columns that are all null, half null, null in runs, and hardly ever.
        ("nulls.parquet", write(nulls(1_000), small_pages(base()))),
        // Empty, short, long and multi-byte strings, without a dictionary.
        ("strings_plain.parquet", write(strings(500), base().set_dictionary_enabled(false))),
        // Fifty row groups of ten rows.
        ("row_groups.parquet", write(orders(500), snappy().set_max_row_group_row_count(Some(10)))),
        // No row, and so no row group.
        ("empty.parquet", write(orders(0), base())),
        // Structs, lists and maps: decoded on the CPU so far.
        ("nested.parquet", write(nested(200), snappy())),
        // Encodings and codecs that are decoded on the CPU so far.
        ("delta.parquet", write(delta(500), delta_properties())),
        ("zstd.parquet", write(orders(200), base().set_compression(Compression::ZSTD(ZstdLevel::default())))),
        ("gzip.parquet", write(orders(200), base().set_compression(Compression::GZIP(GzipLevel::default())))),
        ("brotli.parquet", write(orders(200), base().set_compression(Compression::BROTLI(BrotliLevel::default())))),
        ("lz4_raw.parquet", write(orders(200), base().set_compression(Compression::LZ4_RAW))),
    ];
    let orders = write(orders(1_000), snappy());
    let mut files = good;
    // Cut in the middle of the data: no footer.
    files.push(("corrupt_truncated.parquet", orders[..orders.len() / 2].to_vec()));
    // A page header that lies, with a footer that is fine.
    files.push(("corrupt_page_header.parquet", changed(&orders, 4..12, 0xff)));
    // A Snappy body that is no Snappy: past the first page's header.
    files.push(("corrupt_page_body.parquet", changed(&orders, 60..400, 0xff)));
    // A footer of the right length that is no Thrift.
    let footer = orders.len() - 600..orders.len() - 300;
    files.push(("corrupt_footer.parquet", changed(&orders, footer, 0xaa)));
    files.push(("corrupt_not_parquet.parquet", b"a text of some length that never was a Parquet file".to_vec()));
    files
}

fn changed(bytes: &[u8], range: std::ops::Range<usize>, value: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[range].fill(value);
    bytes
}

/// Without the version of the writer, which would change the bytes with each release.
fn base() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_created_by("parquet-gpu testdata".into())
}

fn write(columns: Vec<Column>, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let fields: Fields =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), array.is_nullable())).collect();
    let schema = Arc::new(Schema::new(fields));
    let arrays = columns.into_iter().map(|it| it.1).collect();
    let batch = RecordBatch::try_new(schema.clone(), arrays).expect("columns of one length");
    let mut bytes = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut bytes, schema, Some(properties.build())).expect("types that Parquet has");
    writer.write(&batch).expect("memory does not fail");
    writer.close().expect("memory does not fail");
    bytes
}

/// Numbers that look random and never change (SplitMix64).
fn number(row: usize, salt: u64) -> u64 {
    let mut it = (row as u64).wrapping_add(salt << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    it ^ (it >> 31)
}

fn orders(rows: usize) -> Vec<Column> {
    let all = 0..rows;
    let prices = all.clone().map(|row| Some((number(row, 1) % 1_000_000) as i128));
    let prices: Decimal128Array = prices.collect();
    let modes = ["AIR", "MAIL", "RAIL", "SHIP", "TRUCK"];
    let notes = all.clone().map(|row| (row % 10 != 0).then(|| format!("note {} of order {row}", number(row, 5) % 50)));
    vec![
        ("order", Arc::new(Int64Array::from_iter_values(all.clone().map(|row| row as i64 * 4)))),
        ("customer", Arc::new(Int32Array::from_iter_values(all.clone().map(|row| (number(row, 0) % 500) as i32)))),
        ("price", Arc::new(prices.with_precision_and_scale(15, 2).expect("a valid type"))),
        (
            "discount",
            Arc::new(Float64Array::from_iter_values(all.clone().map(|row| (number(row, 2) % 11) as f64 / 100.0))),
        ),
        (
            "day",
            Arc::new(Date32Array::from_iter_values(all.clone().map(|row| 8_000 + (number(row, 3) % 2_500) as i32))),
        ),
        ("urgent", Arc::new(all.clone().map(|row| Some(number(row, 4).is_multiple_of(7))).collect::<BooleanArray>())),
        ("mode", Arc::new(StringArray::from_iter_values(all.map(|row| modes[(number(row, 6) % 5) as usize])))),
        ("note", Arc::new(notes.collect::<StringArray>())),
    ]
}

fn types(rows: usize, nulls: bool) -> Vec<Column> {
    // Few values, so that dictionaries are of use.
    let value = move |row: usize, salt: u64| {
        (!nulls || !number(row, salt).is_multiple_of(4)).then(|| number(row % 60, salt + 100))
    };
    macro_rules! column {
        ($array:ty, $salt:expr, $convert:expr) => {
            Arc::new((0..rows).map(|row| value(row, $salt).map($convert)).collect::<$array>()) as ArrayRef
        };
    }
    let fixed = |width: i32, salt: u64| {
        let bytes = (0..rows).map(|row| {
            value(row, salt).map(|it| it.to_le_bytes().into_iter().cycle().take(width as usize).collect::<Vec<u8>>())
        });
        Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, width).expect("one width")) as ArrayRef
    };
    let decimal = |precision: u8| {
        let array = (0..rows).map(|row| value(row, 16).map(|it| i128::from(it % 10_000_000) - 5_000_000));
        let array = array.collect::<Decimal128Array>().with_precision_and_scale(precision, 3);
        Arc::new(array.expect("a valid type")) as ArrayRef
    };
    vec![
        ("bool", column!(BooleanArray, 0, |it| it % 2 == 0)),
        ("int8", column!(Int8Array, 1, |it| it as i8)),
        ("int16", column!(Int16Array, 2, |it| it as i16)),
        ("int32", column!(Int32Array, 3, |it| it as i32)),
        ("int64", column!(Int64Array, 4, |it| it as i64)),
        ("uint8", column!(UInt8Array, 5, |it| it as u8)),
        ("uint16", column!(UInt16Array, 6, |it| it as u16)),
        ("uint32", column!(UInt32Array, 7, |it| it as u32)),
        ("uint64", column!(UInt64Array, 8, |it| it)),
        ("float32", column!(Float32Array, 9, |it| f32::from_bits(it as u32))),
        ("float64", column!(Float64Array, 10, f64::from_bits)),
        ("date32", column!(Date32Array, 11, |it| (it % 40_000) as i32)),
        ("time32", column!(Time32MillisecondArray, 12, |it| (it % 86_400_000) as i32)),
        ("time64", column!(Time64MicrosecondArray, 13, |it| (it % 86_400_000_000) as i64)),
        ("timestamp_us", column!(TimestampMicrosecondArray, 14, |it| it as i64 / 1_000)),
        ("timestamp_ns", column!(TimestampNanosecondArray, 15, |it| it as i64)),
        ("decimal_int32", decimal(9)),
        ("decimal_int64", decimal(18)),
        ("decimal_fixed", decimal(38)),
        ("fixed_1", fixed(1, 17)),
        ("fixed_3", fixed(3, 18)),
        ("fixed_16", fixed(16, 19)),
        ("string", column!(StringArray, 20, |it| format!("{:x}", it % 5_000))),
        ("large_string", column!(LargeStringArray, 21, |it| "ß".repeat(it as usize % 9))),
        ("binary", column!(BinaryArray, 22, |it| it.to_le_bytes()[..it as usize % 8].to_vec())),
    ]
}

fn strings(rows: usize) -> Vec<Column> {
    let words = ["", "a", "ß", "日本", "🚀", "a longer piece of text", "tab\tand line\n"];
    let text = |row: usize, salt: u64| {
        (0..number(row, salt) % 6).map(|at| words[(number(row, salt + at + 1) % 7) as usize]).collect::<String>()
    };
    let long = |row: usize| if row % 100 == 7 { text(row, 50).repeat(20) } else { format!("{row}") };
    vec![
        ("mixed", Arc::new(StringArray::from_iter_values((0..rows).map(|row| text(row, 30))))),
        ("optional", Arc::new((0..rows).map(|row| (row % 3 != 0).then(|| text(row, 40))).collect::<StringArray>())),
        ("unique", Arc::new(StringArray::from_iter_values((0..rows).map(long)))),
        ("empty", Arc::new(StringArray::from_iter_values((0..rows).map(|_| "")))),
    ]
}

fn nulls(rows: usize) -> Vec<Column> {
    let numbers = |keep: &dyn Fn(usize) -> bool| {
        Arc::new((0..rows).map(|row| keep(row).then(|| number(row, 60) as i64)).collect::<Int64Array>()) as ArrayRef
    };
    vec![
        ("all", numbers(&|_| false)),
        ("half", numbers(&|row| number(row, 61).is_multiple_of(2))),
        ("runs", numbers(&|row| row / 130 % 2 == 0)),
        ("one", numbers(&|row| row != 777)),
        ("string", Arc::new((0..rows).map(|row| (row % 5 == 0).then_some("x")).collect::<StringArray>())),
        ("bool", Arc::new((0..rows).map(|row| (row % 4 != 1).then_some(row % 3 == 0)).collect::<BooleanArray>())),
    ]
}

fn nested(rows: usize) -> Vec<Column> {
    let lists = (0..rows).map(|row| match row % 5 {
        0 => None,
        1 => Some(Vec::new()),
        some => Some((0..some).map(|at| (at != 3).then(|| number(row, at as u64) as i32)).collect()),
    });
    let fields = Fields::from(vec![
        Field::new("x", DataType::Int32, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())), false),
    ]);
    let x: Int32Array = (0..rows).map(|row| (row % 4 != 0).then_some(row as i32)).collect();
    let at = TimestampMillisecondArray::from_iter_values((0..rows).map(|row| row as i64 * 1_000)).with_timezone("UTC");
    let validity = NullBuffer::from((0..rows).map(|row| row % 7 != 0).collect::<Vec<_>>());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for row in 0..rows {
        for at in 0..row % 3 {
            map.keys().append_value(format!("key {at}"));
            map.values().append_value(row as i64);
        }
        map.append(row % 6 != 5).expect("as many keys as values");
    }
    vec![
        ("list", Arc::new(ListArray::from_iter_primitive::<Int32Type, Vec<Option<i32>>, _>(lists))),
        ("struct", Arc::new(StructArray::new(fields, vec![Arc::new(x), Arc::new(at)], Some(validity)))),
        ("map", Arc::new(map.finish())),
    ]
}

fn delta(rows: usize) -> Vec<Column> {
    vec![
        ("int32", Arc::new(Int32Array::from_iter_values((0..rows).map(|row| number(row, 70) as i32)))),
        ("int64", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64 * 1_000)))),
        ("string", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("prefix {row}"))))),
        ("double", Arc::new(Float64Array::from_iter_values((0..rows).map(|row| row as f64 / 3.0)))),
    ]
}

fn delta_properties() -> WriterPropertiesBuilder {
    base()
        .set_dictionary_enabled(false)
        .set_column_encoding("int32".into(), Encoding::DELTA_BINARY_PACKED)
        .set_column_encoding("int64".into(), Encoding::DELTA_BINARY_PACKED)
        .set_column_encoding("string".into(), Encoding::DELTA_BYTE_ARRAY)
        .set_column_encoding("double".into(), Encoding::BYTE_STREAM_SPLIT)
}
