//! Row groups that statistics rule out.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ColumnOrder, SortOrder};
use parquet::data_type::ByteArray;
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use parquet_gpu::footer::Footer;
use parquet_gpu::io::Source;
use parquet_gpu::plan::prune::Filter;

fn kept(filter: &str) -> parquet_gpu::Result<Vec<usize>> {
    // 50 row groups of 10 rows; `order` is four times the row.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/row_groups.parquet");
    let footer = Footer::read(&Arc::new(Source::open(path)?))?;
    filter.parse::<Filter>().unwrap().row_groups(&footer)
}

#[test]
fn comparisons_keep_what_may_match() {
    assert_eq!(kept("order < 40").unwrap(), [0]);
    assert_eq!(kept("order <= 40").unwrap(), [0, 1]);
    assert_eq!(kept("order > 1956").unwrap(), [49]);
    assert_eq!(kept("order >= 1956").unwrap(), [48, 49]);
    assert_eq!(kept("order = 124").unwrap(), [3]);
    assert_eq!(kept("order = 38").unwrap(), [0usize; 0]);
    assert_eq!(kept("order != 124").unwrap().len(), 50);
    assert_eq!(kept("order >= 80 AND order < 160").unwrap(), [2, 3]);
    assert_eq!(kept("mode > 'zzz'").unwrap(), [0usize; 0]);
    assert_eq!(kept("order IS NULL").unwrap(), [0usize; 0]);
    assert_eq!(kept("order IS NOT NULL").unwrap().len(), 50);
    assert_eq!(kept("price < -1.5").unwrap(), [0usize; 0]);
    assert_eq!(kept("day >= '2100-01-01'").unwrap(), [0usize; 0]);
}

#[test]
fn what_makes_no_sense_is_an_argument_error() {
    assert_eq!(kept("nosuch = 1").unwrap_err().kind(), "argument");
    assert_eq!(kept("order = abc").unwrap_err().kind(), "argument");
}

/// A footer of one row group of ten rows that states these bounds of its only column.
fn stating(column: &str, statistics: Statistics, orders: Option<ColumnOrder>) -> Footer {
    let schema = parse_message_type(&format!("message schema {{ optional {column}; }}")).unwrap();
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
    let chunk = ColumnChunkMetaData::builder(schema.column(0)).set_num_values(10).set_statistics(statistics);
    let group = RowGroupMetaData::builder(schema.clone()).set_num_rows(10);
    let group = group.set_column_metadata(vec![chunk.build().unwrap()]).build().unwrap();
    let file = FileMetaData::new(2, 10, None, None, schema, orders.map(|it| vec![it]));
    let metadata = Arc::new(ParquetMetaData::new(file, vec![group]));
    let arrow = ArrowReaderMetadata::try_new(metadata, ArrowReaderOptions::default()).unwrap();
    Footer {
        arrow,
        page_index: None,
        leaves: Arc::default(),
        fields: Arc::default(),
        encryption: Arc::default(),
        repaired: Arc::default(),
        file_bytes: 0,
    }
}

fn keeps(footer: &Footer, filter: &str) -> bool {
    !filter.parse::<Filter>().unwrap().row_groups(footer).unwrap().is_empty()
}

const SIGNED: Option<ColumnOrder> = Some(ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::SIGNED));
const UNSIGNED: Option<ColumnOrder> = Some(ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::UNSIGNED));

#[test]
fn bounds_of_floats_that_are_no_numbers_say_nothing_and_zeros_are_equal() {
    let bounds = |least, most| stating("double x", Statistics::double(least, most, None, Some(0), false), SIGNED);
    let range = bounds(Some(1.0), Some(2.0));
    assert!(keeps(&range, "x = 1.5") && keeps(&range, "x < 1.1") && keeps(&range, "x >= 2"));
    assert!(!keeps(&range, "x = 3") && !keeps(&range, "x < 0.9") && !keeps(&range, "x > 2.1"));
    assert!(keeps(&range, "x = NaN"));

    let unknown = bounds(Some(f64::NAN), Some(-f64::NAN));
    assert!(["x < 1", "x <= 1", "x = 1", "x > 1", "x >= 1"].iter().all(|it| keeps(&unknown, it)));
    let half = bounds(Some(1.0), Some(f64::NAN));
    assert!(keeps(&half, "x > 5") && !keeps(&half, "x < 0.5"));

    let negative = bounds(Some(-1.0), Some(-0.0));
    assert!(keeps(&negative, "x = 0") && keeps(&negative, "x >= 0.0"));
    let positive = bounds(Some(0.0), Some(1.0));
    assert!(keeps(&positive, "x = -0.0") && keeps(&positive, "x <= -0.0"));
}

#[test]
fn bounds_in_another_order_say_nothing() {
    let bytes = |text: &str| Some(ByteArray::from(text));
    let text = |deprecated, order| {
        let statistics = Statistics::byte_array(bytes("a"), bytes("b"), None, Some(0), deprecated);
        stating("binary x (UTF8)", statistics, order)
    };
    assert!(!keeps(&text(false, UNSIGNED), "x = 'c'") && keeps(&text(false, UNSIGNED), "x = 'abc'"));
    // Writers that compared signed bytes call any text that is not ASCII less than `a`.
    assert!(keeps(&text(true, UNSIGNED), "x = 'é'") && keeps(&text(false, None), "x = 'é'"));
    assert!(keeps(&text(false, Some(ColumnOrder::UNKNOWN)), "x = 'é'"));

    let number = |column, deprecated, order| {
        stating(column, Statistics::int32(Some(1), Some(5), None, Some(0), deprecated), order)
    };
    assert!(!keeps(&number("int32 x", true, None), "x = 6"));
    assert!(!keeps(&number("int32 x (UINT_32)", false, UNSIGNED), "x = 4000000000"));
    assert!(keeps(&number("int32 x (UINT_32)", true, None), "x = 4000000000"));
}

#[test]
fn a_literal_between_two_values_loses_no_rows() {
    let money = |least, most| {
        let statistics = Statistics::int64(Some(least), Some(most), None, Some(0), false);
        stating("int64 x (DECIMAL(10,2))", statistics, SIGNED)
    };
    // 5.01 is more than 5.005, which rounds to it; 5.00 is less than 5.004, which rounds to that.
    assert!(keeps(&money(500, 501), "x > 5.005"));
    assert!(keeps(&money(500, 501), "x < 5.004"));
    assert!(!keeps(&money(500, 501), "x > 5.02") && !keeps(&money(500, 501), "x < 4.99"));
    let times = Statistics::int64(Some(1000), Some(2000), None, Some(0), false);
    let times = stating("int64 x (TIMESTAMP_MILLIS)", times, SIGNED);
    assert!(keeps(&times, "x < '1970-01-01T00:00:01.0005Z'") && !keeps(&times, "x < '1970-01-01T00:00:00.9Z'"));
    assert!(keeps(&times, "x = '1970-01-01 00:00:02'") && keeps(&times, "x = '1970-01-01T01:00:02+01:00'"));
    assert!(!keeps(&times, "x > '1970-01-01 00:00:02.001'"));
}

#[test]
fn null_counts_that_are_not_stated_say_nothing() {
    let nulls = |count| stating("int32 x", Statistics::int32(Some(1), Some(5), None, count, false), SIGNED);
    assert!(keeps(&nulls(None), "x IS NULL") && keeps(&nulls(None), "x IS NOT NULL"));
    assert!(!keeps(&nulls(Some(0)), "x IS NULL") && keeps(&nulls(Some(0)), "x IS NOT NULL"));
    assert!(keeps(&nulls(Some(10)), "x IS NULL") && !keeps(&nulls(Some(10)), "x IS NOT NULL"));
}
