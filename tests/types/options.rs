//! Types that the options ask for: strings, decimals, dictionaries, in nested columns too.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Schema};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet_gpu::io::Source;
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, StringType};

use crate::generate::{Random, array};
use crate::{assert_same, devices, reference, scan, styles, write, write_raw};

fn field(name: &str, data_type: &DataType) -> Arc<Field> {
    Arc::new(Field::new(name, data_type.clone(), true))
}

/// The types of a file's columns: of text, of bytes, and of decimals of few digits in INT32, INT64 and bytes.
fn types(text: &DataType, bytes: &DataType, decimals: [DataType; 4]) -> Vec<DataType> {
    let [few, more, many, most] = decimals;
    vec![
        text.clone(),
        bytes.clone(),
        DataType::List(field("item", text)),
        DataType::Struct(Fields::from(vec![field("a", bytes), field("b", &few), field("c", text)])),
        few,
        more,
        many,
        most,
        DataType::Int32,
    ]
}

fn file_types() -> Vec<DataType> {
    use DataType::*;
    types(&Utf8, &Binary, [Decimal128(7, 2), Decimal128(16, 2), Decimal128(30, 2), Decimal256(60, 2)])
}

fn column(random: &mut Random, data_type: &DataType, rows: usize) -> ArrayRef {
    match data_type {
        DataType::List(field) => {
            let lengths: Vec<usize> = (0..rows).map(|_| random.below(4) as usize).collect();
            let items = column(random, field.data_type(), lengths.iter().sum());
            Arc::new(ListArray::new(field.clone(), OffsetBuffer::from_lengths(lengths), items, None))
        }
        DataType::Struct(fields) => {
            let children = fields.iter().map(|field| column(random, field.data_type(), rows)).collect();
            Arc::new(StructArray::new(fields.clone(), children, None))
        }
        other => array(random, other, rows, 15, 30),
    }
}

fn schema(types: &[DataType]) -> Schema {
    Schema::new(types.iter().enumerate().map(|(at, it)| field(&format!("c{at}"), it)).collect::<Vec<_>>())
}

fn file(random: &mut Random, rows: usize) -> RecordBatch {
    let types = file_types();
    let columns = types.iter().map(|it| column(random, it, rows)).collect();
    RecordBatch::try_new(Arc::new(schema(&types)), columns).unwrap()
}

/// The devices, and the CPU.
fn all_devices(seed: u64) -> Vec<Device> {
    devices::devices(seed).into_iter().map(Device::Gpu).chain([Device::Cpu]).collect()
}

/// The values are the file's, in the types that were asked for; the verifier agrees.
fn check(name: &str, bytes: &Bytes, options: &ReadOptions, expected: &Schema) {
    let whole = reference(bytes, None).unwrap();
    let columns = whole.columns().iter().zip(expected.fields());
    let columns = columns.map(|(column, field)| cast(column, field.data_type()).unwrap()).collect();
    let theirs = RecordBatch::try_new(Arc::new(expected.clone()), columns).unwrap();
    for device in all_devices(1) {
        let name = format!("{name} on {}", device.name());
        let (ours, on_cpu) = scan(bytes, device.clone(), options.clone(), None).unwrap();
        assert!(on_cpu.is_empty(), "{name}: {on_cpu:?}");
        assert_same(&name, &ours, &theirs);

        let source = Arc::new(Source::from_bytes("generated", bytes.clone()));
        let options = options.clone().with_memory(256 << 20);
        let builder = GpuReaderBuilder::try_new(source.clone(), device).unwrap().with_options(options.clone());
        let footer = builder.footer().with_types(&options).unwrap();
        let all = parquet::arrow::ProjectionMask::all();
        let mut verifier = Verifier::new(source, &footer, &all, None, None).unwrap();
        for batch in builder.build().unwrap() {
            assert_eq!(verifier.check(&batch.unwrap()).unwrap(), None, "{name}");
        }
        assert_eq!(verifier.finish().unwrap(), None, "{name}");
    }
}

#[test]
fn strings_of_each_type() {
    use DataType::*;
    let mut random = Random(1);
    let [few, more, many, most] = [Decimal128(7, 2), Decimal128(16, 2), Decimal128(30, 2), Decimal256(60, 2)];
    for (style, properties) in styles() {
        let bytes = write(&file(&mut random, 200), properties, 80);
        for (strings, text, binary) in [
            (StringType::File, Utf8, Binary),
            (StringType::Utf8, Utf8, Binary),
            (StringType::Large, LargeUtf8, LargeBinary),
            (StringType::View, Utf8View, BinaryView),
        ] {
            let expected = schema(&types(&text, &binary, [few.clone(), more.clone(), many.clone(), most.clone()]));
            let options = ReadOptions::default().with_string_type(strings);
            check(&format!("{style}, {strings:?}"), &bytes, &options, &expected);
        }
    }
}

/// From a file whose own Arrow schema asks for another type.
#[test]
fn strings_of_another_type_than_the_file_asks_for() {
    use DataType::*;
    let mut random = Random(2);
    let text = |it: DataType| Dictionary(Box::new(Int16), Box::new(it));
    let types = [LargeUtf8, Utf8View, LargeBinary, BinaryView];
    let columns: Vec<_> = types.iter().map(|it| array(&mut random, it, 100, 10, 20)).collect();
    let entries = cast(&array(&mut random, &Utf8, 100, 10, 20), &text(Utf8)).unwrap();
    let columns = columns.into_iter().chain([entries]).collect();
    let types: Vec<_> = types.into_iter().chain([text(Utf8)]).collect();
    let batch = RecordBatch::try_new(Arc::new(schema(&types)), columns).unwrap();
    for (style, properties) in styles() {
        let bytes = write(&batch, properties, 40);
        for (strings, expected) in [
            (StringType::Utf8, [Utf8, Utf8, Binary, Binary, text(Utf8)]),
            (StringType::Large, [LargeUtf8, LargeUtf8, LargeBinary, LargeBinary, text(LargeUtf8)]),
            (StringType::View, [Utf8View, Utf8View, BinaryView, BinaryView, text(Utf8View)]),
        ] {
            let options = ReadOptions::default().with_string_type(strings);
            check(&format!("{style}, {strings:?}"), &bytes, &options, &schema(&expected));
        }
    }
}

#[test]
fn narrow_decimals() {
    use DataType::*;
    let mut random = Random(3);
    for (style, properties) in styles() {
        let bytes = write(&file(&mut random, 200), properties, 80);
        let narrow = [Decimal32(7, 2), Decimal64(16, 2), Decimal128(30, 2), Decimal256(60, 2)];
        let options = ReadOptions::default().with_narrow_decimals(true);
        check(&style, &bytes, &options, &schema(&types(&Utf8, &Binary, narrow)));
    }
}

/// Where the file holds wider values, or arrow-rs has no narrower type, the type is no narrower.
#[test]
fn decimals_are_no_narrower_than_their_values() {
    let properties = || parquet::file::properties::WriterProperties::builder();
    let options = ReadOptions::default().with_narrow_decimals(true);
    let expect = |bytes: &Bytes, data_type: DataType| {
        let expected = Schema::new(vec![field("a", &data_type)]);
        check(&data_type.to_string(), bytes, &options, &expected);
    };
    let group = vec![vec![Some(5), None, Some(-123_456)]];
    let bytes = write_raw::<Int64Type>("optional int64 a (DECIMAL(6, 1))", properties(), &group);
    expect(&bytes, DataType::Decimal64(6, 1));
    let group = vec![vec![Some(ByteArray::from(vec![0xfe])), None, Some(ByteArray::from(vec![1, 2, 3]))]];
    let bytes = write_raw::<ByteArrayType>("optional binary a (DECIMAL(6, 1))", properties(), &group);
    expect(&bytes, DataType::Decimal128(6, 1));
}

/// Only columns of strings of which every row group has a dictionary.
#[test]
fn dictionaries_are_kept() {
    use DataType::*;
    let mut random = Random(4);
    let [few, more, many, most] = [Decimal128(7, 2), Decimal128(16, 2), Decimal128(30, 2), Decimal256(60, 2)];
    for (style, properties) in styles() {
        let bytes = write(&file(&mut random, 200), properties, 80);
        for (strings, text, binary) in [
            (StringType::File, Utf8, Binary),
            (StringType::Large, LargeUtf8, LargeBinary),
            (StringType::View, Utf8View, BinaryView),
        ] {
            let text = match style.ends_with("plain") {
                true => text,
                false => Dictionary(Box::new(Int32), Box::new(text)),
            };
            let expected = schema(&types(&text, &binary, [few.clone(), more.clone(), many.clone(), most.clone()]));
            let options = ReadOptions::default().with_dictionaries(true).with_string_type(strings);
            check(&format!("{style}, {strings:?}"), &bytes, &options, &expected);
        }
    }
}

/// With no option that asks for a type, the schema is arrow-rs's own, fields' metadata and all.
#[test]
fn without_an_option_nothing_changes() {
    let mut random = Random(5);
    let (_, properties) = styles().swap_remove(0);
    let bytes = write(&file(&mut random, 20), properties, 80);
    let theirs = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
    let source = Arc::new(Source::from_bytes("generated", bytes));
    let builder = GpuReaderBuilder::try_new(source, Device::Cpu).unwrap();
    let footer = builder.footer().with_types(&ReadOptions::default()).unwrap();
    assert_eq!(footer.schema(), theirs.schema());
    let large = ReadOptions::default().with_string_type(StringType::Large);
    assert_ne!(footer.with_types(&large).unwrap().schema(), theirs.schema());
}

/// Views of strings that a dictionary has point to its entries: their bytes are not there for each row.
#[test]
fn views_point_into_dictionaries() {
    let texts: Vec<String> = (0..1000).map(|row| format!("{} {}", "long ".repeat(50), row % 5)).collect();
    let column: ArrayRef = Arc::new(StringArray::from(texts));
    let batch = RecordBatch::try_new(Arc::new(schema(&[DataType::Utf8])), vec![column]).unwrap();
    for (style, properties) in styles().into_iter().filter(|(style, _)| style.ends_with(" dictionary")) {
        let bytes = write(&batch, properties, 500);
        let options = ReadOptions::default().with_string_type(StringType::View);
        check(&style, &bytes, &options, &schema(&[DataType::Utf8View]));
        for device in devices::devices(2) {
            let source = Arc::new(Source::from_bytes("generated", bytes.clone()));
            let builder = GpuReaderBuilder::try_new(source, Device::Gpu(device)).unwrap();
            let mut reader = builder.with_options(options.clone().with_memory(64 << 20)).build().unwrap();
            assert!(reader.by_ref().all(|batch| batch.is_ok()));
            let held = reader.report().arrow_bytes;
            assert!(held < 16 * 1000 + 10_000, "{style}: {held} bytes for 1000 views and 10 entries of 252 bytes");
        }
    }
}
