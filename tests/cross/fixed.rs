//! Cases that chance would not make.

use std::sync::{Arc, Mutex};

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use bytes::Bytes;
use parquet::arrow::{ArrowSchemaConverter, ArrowWriter};
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};

use crate::cases::Style;
use crate::generate::{Random, array};
use crate::generated::encode;
use crate::repage::{self, repage};
use crate::shapes::{Shape, Values, column};
use crate::{Cut, Rows, Subject};

/// Columns of one length, all optional.
fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let field = |(at, it): (usize, &ArrayRef)| Field::new(format!("c{at}"), it.data_type().clone(), true);
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn write(batch: &RecordBatch, style: Style, properties: WriterPropertiesBuilder) -> Bytes {
    let schema = ArrowSchemaConverter::new().convert(&batch.schema()).unwrap();
    let properties = encode(properties, &schema, &vec![style; batch.num_columns()]).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap().into()
}

/// A list of `length` items a row.
fn lists(random: &mut Random, item: &DataType, rows: usize, length: usize) -> ArrayRef {
    let child = array(random, item, rows * length, 5, u64::MAX);
    let field = Arc::new(Field::new("item", item.clone(), true));
    Arc::new(ListArray::new(field, OffsetBuffer::from_repeated_length(length, rows), child, None))
}

fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
}

fn check(cases: Vec<Subject>) {
    let tally = Mutex::default();
    for (at, case) in cases.iter().enumerate() {
        case.check(at as u64 % 7, &tally);
    }
    tally.into_inner().unwrap().finish("in all", cases.len());
}

/// One page of several MiB: flat, and one row whose list is the whole page.
#[test]
fn one_large_page() {
    let mut random = Random(1);
    let rows = 200_000;
    let mut cases = Vec::new();
    for (style, codec, version) in [
        (Style::Plain, Compression::UNCOMPRESSED, WriterVersion::PARQUET_1_0),
        (Style::Plain, Compression::SNAPPY, WriterVersion::PARQUET_2_0),
        (Style::Dictionary, Compression::SNAPPY, WriterVersion::PARQUET_1_0),
        (Style::Delta, Compression::LZ4_RAW, WriterVersion::PARQUET_2_0),
        (Style::Split, Compression::UNCOMPRESSED, WriterVersion::PARQUET_1_0),
    ] {
        let large = || {
            let sizes = properties().set_data_page_row_count_limit(usize::MAX).set_data_page_size_limit(1 << 30);
            let sizes = sizes.set_write_batch_size(1 << 20);
            sizes.set_compression(codec).set_writer_version(version)
        };
        let of = |random: &mut Random, it: DataType| array(random, &it, rows, 10, u64::MAX);
        let columns = vec![of(&mut random, DataType::Int64), of(&mut random, DataType::Utf8)];
        cases.push(Subject::whole(format!("{style:?} {codec} flat"), write(&batch(columns), style, large())));
        let columns =
            vec![lists(&mut random, &DataType::Int64, 2, rows), lists(&mut random, &DataType::Utf8, 2, rows / 2)];
        cases.push(Subject::whole(format!("{style:?} {codec} lists"), write(&batch(columns), style, large())));
    }
    check(cases);
}

/// Thousands of pages of one value in a chunk.
#[test]
fn thousands_of_pages() {
    let mut random = Random(2);
    let mut cases = Vec::new();
    for (style, version) in [(Style::Fallback, WriterVersion::PARQUET_1_0), (Style::Delta, WriterVersion::PARQUET_2_0)]
    {
        let types = [DataType::Int32, DataType::Utf8, DataType::Boolean];
        let columns = types.map(|it| array(&mut random, &it, 3000, 30, 5)).to_vec();
        let tiny = || properties().set_data_page_row_count_limit(1).set_write_batch_size(1).set_writer_version(version);
        cases.push(Subject::whole(format!("{style:?} flat"), write(&batch(columns), style, tiny())));
        let columns = vec![lists(&mut random, &DataType::Int64, 1500, 2)];
        cases.push(Subject::whole(format!("{style:?} lists"), write(&batch(columns), style, tiny())));
    }
    check(cases);
}

/// One row that spans many pages, and pages that hold nothing but the middle of it.
#[test]
fn a_row_over_many_pages() {
    let mut random = Random(3);
    let mut cases = Vec::new();
    for (page_values, plain) in [(1, false), (3, true), (100, false), (100, true)] {
        let style =
            repage::Style { page_values, plain, snappy: page_values == 3, v1: true, bit_packed: page_values == 1 };
        let types = [DataType::Int64, DataType::Utf8, DataType::Boolean, DataType::FixedSizeBinary(3)];
        let columns = types.iter().map(|it| lists(&mut random, it, 3, 400)).collect();
        let whole = write(&batch(columns), Style::Plain, properties());
        cases.push(Subject::whole(format!("{style:?}"), repage(&whole, style, &mut random)));
    }
    check(cases);
}

/// Chunks whose dictionary has no entry, since every value is null or there is none.
#[test]
fn dictionaries_without_entries() {
    let mut random = Random(4);
    let mut cases = Vec::new();
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW] {
            let types = [DataType::Int32, DataType::Utf8, DataType::FixedSizeBinary(4), DataType::LargeBinary];
            let mut columns: Vec<ArrayRef> = types.iter().map(|it| array(&mut random, it, 50, 100, 5)).collect();
            let empty = ListArray::from_iter_primitive::<Int64Type, Vec<Option<i64>>, _>((0..50).map(|_| Some(vec![])));
            columns.push(Arc::new(empty));
            let write_as = properties().set_writer_version(version).set_compression(codec);
            let whole = write(&batch(columns), Style::Dictionary, write_as);
            let style = repage::Style {
                page_values: 20,
                plain: true,
                snappy: codec == Compression::SNAPPY,
                v1: version == WriterVersion::PARQUET_1_0,
                bit_packed: false,
            };
            cases.push(Subject::whole(format!("{codec} repaged"), repage(&whole, style, &mut random)));
            cases.push(Subject::whole(format!("{codec}"), whole));
        }
    }
    check(cases);
}

/// Every nesting, as deep as the writer goes, over row groups that are read together and apart.
#[test]
fn every_shape_over_row_groups() {
    let mut random = Random(5);
    let mut cases = Vec::new();
    for (at, shape) in Shape::ALL.iter().enumerate() {
        for leaf in [DataType::Int32, DataType::Utf8, DataType::Boolean, DataType::Decimal128(38, 3)] {
            let data_type = shape.around(&mut random, &leaf);
            let values = Values { nulls: 20, empties: 20, different: 50 };
            let columns = (0..2).map(|_| column(&mut random, &data_type, true, 120, values)).collect();
            let groups = properties().set_max_row_group_row_count(Some(25)).set_data_page_row_count_limit(10);
            let groups = groups.set_write_batch_size(5);
            let bytes = write(&batch(columns), Style::ALL[at % Style::ALL.len()], groups);
            for cut in [Cut::No, Cut::Rows(60), Cut::Memory] {
                let name = format!("{shape:?} of {leaf}, {cut:?}");
                cases.push(Subject { cut, ..Subject::whole(name, bytes.clone()) });
            }
            for rows in [Rows::Range, Rows::Scattered] {
                let name = format!("{shape:?} of {leaf}, {rows:?}");
                cases.push(Subject { rows, ..Subject::whole(name, bytes.clone()) });
            }
        }
    }
    check(cases);
}

/// Required structs, lists of a fixed size and values below structs that are null.
#[test]
fn required_below_null() {
    let mut random = Random(6);
    let required = |name: &str, data_type: DataType| Field::new(name, data_type, false);
    let inner = DataType::Struct(vec![required("x", DataType::Int32), required("t", DataType::Utf8)].into());
    let pair = DataType::FixedSizeList(Arc::new(required("item", DataType::Int64)), 2);
    let many = DataType::List(Arc::new(required("item", inner.clone())));
    let outer = DataType::Struct(vec![required("inner", inner), required("pair", pair), required("many", many)].into());
    let values = Values { nulls: 30, empties: 30, different: 50 };
    let columns = vec![column(&mut random, &outer, true, 100, values)];
    let mut cases = Vec::new();
    for codec in [Compression::UNCOMPRESSED, Compression::BROTLI(Default::default())] {
        for cut in [Cut::No, Cut::Rows(30)] {
            let groups = properties().set_max_row_group_row_count(Some(30)).set_compression(codec);
            let bytes = write(&batch(columns.clone()), Style::Dictionary, groups);
            cases.push(Subject { cut, ..Subject::whole(format!("{codec} {cut:?}"), bytes) });
        }
    }
    check(cases);
}
