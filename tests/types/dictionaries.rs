//! Arrow dictionaries: keys and entries are decoded by kernels, into the type that the file's Arrow schema names.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use parquet::file::properties::WriterProperties;
use parquet_gpu::{Device, ReadOptions};

use crate::generate::{Random, array};
use crate::{assert_same, check, devices, reference, refused, scan, styles, write};

fn of(key: DataType, value: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(value))
}

/// A random dictionary array: `entries` bounds how many different values it has.
fn dictionary(random: &mut Random, data_type: &DataType, rows: usize, nulls: u64, entries: u64) -> ArrayRef {
    let DataType::Dictionary(_, value) = data_type else { panic!("{data_type}") };
    // arrow-rs casts to dictionaries of all but a few types.
    let (base, needs_cast) = match &**value {
        DataType::Date32 | DataType::Timestamp(..) | DataType::Decimal128(..) => ((**value).clone(), false),
        other => (other.clone(), true),
    };
    let values = array(random, &base, rows, nulls, entries);
    if needs_cast && let Ok(cast) = cast(&values, data_type) {
        return cast;
    }
    // By hand: every row is an entry of its own.
    let keys = cast(&Int32Array::from_iter_values(0..rows as i32), &key_of(data_type)).unwrap();
    let nulls = values.logical_nulls();
    let entries = values.to_data().into_builder().nulls(None).build().unwrap();
    let data = keys.to_data().into_builder().data_type(data_type.clone()).nulls(nulls).add_child_data(entries);
    make_array(data.build().unwrap())
}

fn key_of(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(key, _) => (**key).clone(),
        other => panic!("{other}"),
    }
}

fn types() -> Vec<DataType> {
    use DataType::*;
    let mut types: Vec<_> = [Int8, UInt8, Int16, UInt16, Int32, UInt32, Int64, UInt64]
        .into_iter()
        .flat_map(|key| [of(key.clone(), Utf8), of(key, Int32)])
        .collect();
    let values = [
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(3),
        FixedSizeBinary(16),
        Int8,
        UInt16,
        Int64,
        UInt64,
        Float32,
        Float64,
        Date32,
        Timestamp(TimeUnit::Millisecond, None),
    ];
    types.extend(values.map(|value| of(Int32, value)));
    types
}

#[test]
fn dictionaries_of_every_type() {
    let mut random = Random(1);
    let mut compared = 0;
    for (style, properties) in styles() {
        for data_type in types() {
            for nulls in [0, 20, 100] {
                let rows = 211;
                // Few enough for the smallest keys, over three row groups and their values without a dictionary.
                let small = matches!(key_of(&data_type), DataType::Int8 | DataType::UInt8);
                let (rows, entries) = if small { (100, 12) } else { (rows, 40) };
                let column = dictionary(&mut random, &data_type, rows, nulls, entries);
                let field = Field::new("a", data_type.clone(), nulls > 0);
                let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap();
                let name = format!("{style}, {data_type}, {nulls} % nulls");
                compared += check(&name, &write(&batch, properties.clone(), 90), 0..1);
            }
        }
    }
    println!("{compared} reads of dictionaries equal arrow-rs");
}

/// Below lists and structs, beside columns that are none, in more row groups than one batch has.
#[test]
fn dictionaries_below_lists_and_structs() {
    let mut random = Random(2);
    let text = of(DataType::Int32, DataType::Utf8);
    let number = of(DataType::Int16, DataType::Int64);
    for (style, properties) in styles() {
        let rows = 150;
        let lengths: Vec<usize> = (0..rows).map(|_| random.below(4) as usize).collect();
        let total = lengths.iter().sum();
        let valid = |random: &mut Random| Some(NullBuffer::from_iter((0..rows).map(|_| random.below(5) > 0)));
        let list = ListArray::new(
            Arc::new(Field::new("item", text.clone(), true)),
            OffsetBuffer::from_lengths(lengths),
            dictionary(&mut random, &text, total, 20, 30),
            valid(&mut random),
        );
        let pair = StructArray::new(
            vec![
                Field::new("x", number.clone(), true),
                Field::new("y", DataType::Utf8, true),
                Field::new("z", text.clone(), true),
            ]
            .into(),
            vec![
                dictionary(&mut random, &number, rows, 20, 30),
                array(&mut random, &DataType::Utf8, rows, 20, 30),
                dictionary(&mut random, &text, rows, 20, 30),
            ],
            valid(&mut random),
        );
        let flat = dictionary(&mut random, &text, rows, 10, 60);
        let columns: Vec<ArrayRef> = vec![Arc::new(list), flat, Arc::new(pair)];
        let fields = columns.iter().enumerate();
        let fields: Vec<_> =
            fields.map(|(at, it)| Field::new(format!("c{at}"), it.data_type().clone(), true)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        check(&style, &write(&batch, properties, 40), 0..4);
    }
}

/// Entries of several row groups that keys of one byte cannot number together: arrow-rs decodes them, and finds those that
/// are the same.
#[test]
fn entries_beyond_the_keys_are_left_to_arrow_rs() {
    let mut random = Random(3);
    let data_type = of(DataType::Int8, DataType::Utf8);
    let column = dictionary(&mut random, &data_type, 1000, 10, 90);
    let schema = Arc::new(Schema::new(vec![Field::new("a", data_type, true)]));
    let batch = RecordBatch::try_new(schema, vec![column]).unwrap();
    let bytes = write(&batch, WriterProperties::builder(), 100);
    let expected = reference(&bytes, None).unwrap();
    for device in devices::devices(1) {
        let (batch, on_cpu) = scan(&bytes, Device::Gpu(device.clone()), ReadOptions::default(), None).unwrap();
        assert_same("all at once", &batch, &expected);
        assert!(on_cpu["a"].contains("more dictionary entries"), "{on_cpu:?}");
        let alone = ReadOptions::default().with_batch_rows(1);
        let (batch, on_cpu) = scan(&bytes, Device::Gpu(device), alone, None).unwrap();
        assert_same("a row group at a time", &batch, &expected);
        assert!(on_cpu.is_empty(), "{on_cpu:?}");
    }
}

/// A page without dictionary behind one with, in the second of two row groups, both of marked strings.
fn marked(value: DataType) -> Vec<u8> {
    let text: Vec<String> = (0..120).map(|row| format!("mark{}", if row < 60 { row % 7 } else { row })).collect();
    let text: ArrayRef = Arc::new(StringArray::from(text));
    let data_type = of(DataType::Int32, value);
    let column = cast(&text, &data_type).unwrap();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![Field::new("a", data_type, true)])), vec![column]);
    let properties = WriterProperties::builder()
        .set_dictionary_page_size_limit(200)
        .set_data_page_row_count_limit(10)
        .set_write_batch_size(5);
    write(&batch.unwrap(), properties, 60).to_vec()
}

fn find(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).position(|it| it == text).unwrap()
}

/// The entry of a dictionary and the value of a page without one: whichever is not UTF-8, its page is named.
#[test]
fn entries_that_are_not_utf8() {
    for (text, row_group, first_page) in [("mark3", 0, true), ("mark118", 1, false)] {
        let mut bytes = marked(DataType::Utf8);
        let at = find(&bytes, text.as_bytes());
        bytes[at] = 0xff;
        for error in refused(text, &bytes.into(), 2) {
            let place = error.place().unwrap();
            assert!(error.to_string().contains("UTF-8"), "{error}");
            assert_eq!((place.row_group, place.page == Some(0)), (Some(row_group), first_page), "{error}");
        }
    }
}

/// With any byte of its pages changed, a file of dictionaries is read as arrow-rs reads it, or refused with an error.
#[test]
fn changed_bytes() {
    let whole = marked(DataType::Binary);
    let metadata = parquet::file::metadata::ParquetMetaDataReader::new();
    let metadata = metadata.parse_and_finish(&bytes::Bytes::from(whole.clone())).unwrap();
    let last = metadata.row_groups().last().unwrap().column(0);
    let (start, bytes) = last.byte_range();
    let (mut read, mut refused) = (0, 0);
    for (at, device) in (4..(start + bytes) as usize).step_by(3).zip(devices::devices(1).iter().cycle()) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let changed = changed.into();
        let ours = scan(&changed, Device::Gpu(device.clone()), ReadOptions::default(), None);
        match (reference(&changed, None), ours) {
            (Ok(theirs), Ok((ours, _))) => {
                assert_same(&format!("byte {at}"), &ours, &theirs);
                read += 1;
            }
            // Headers that lie about the number of values: arrow-rs takes fewer rows.
            (Ok(_), Err(error)) if error.to_string().contains("the column chunk ends after") => refused += 1,
            (Ok(_), Err(error)) => panic!("byte {at}: {error}"),
            (Err(error), Ok(_)) => panic!("byte {at}: arrow-rs says {error}"),
            (Err(_), Err(error)) => {
                assert!(!error.to_string().contains("not valid"), "byte {at}: {error}");
                refused += 1;
            }
        }
    }
    println!("{read} changed files were read as by arrow-rs, {refused} refused as by arrow-rs");
}
