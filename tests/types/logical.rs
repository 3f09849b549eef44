//! Every physical and logical type of Parquet without an Arrow schema in the file, and every Arrow type that such a
//! schema can ask for.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit};
use bytes::Bytes;
use parquet::basic::Type;
use parquet::data_type::*;
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::schema::parser::parse_message_type;

use crate::generate::{Random, array, logical, types};
use crate::{check, styles, write, write_raw};

/// Values of one physical type, `None` being null; those of strings are UTF-8.
fn column(random: &mut Random, name: &str, field: &str, properties: &WriterPropertiesBuilder) -> Bytes {
    fn of<T: DataType>(
        field: &str,
        properties: &WriterPropertiesBuilder,
        random: &mut Random,
        value: impl Fn(u64) -> T::T,
    ) -> Bytes {
        let required = field.starts_with("required");
        // Nothing else is there to be read of a type that is always null.
        let all_null = field.ends_with("(UNKNOWN)");
        let mut group = |rows| -> Vec<Option<T::T>> {
            let valid = |random: &mut Random| required || (!all_null && random.below(5) > 0);
            (0..rows).map(|_| valid(random).then(|| value(Random(random.below(40)).next()))).collect()
        };
        let groups = [group(150), group(1), group(40)];
        write_raw::<T>(field, properties.clone(), &groups)
    }
    use parquet::data_type::DataType;
    let schema = parse_message_type(&format!("message m {{ {field}; }}")).unwrap();
    let leaf = &schema.get_fields()[0];
    match leaf.get_physical_type() {
        Type::BOOLEAN => of::<BoolType>(field, properties, random, |it| it & 1 == 1),
        Type::INT32 => of::<Int32Type>(field, properties, random, |it| it as i32),
        Type::INT64 => of::<Int64Type>(field, properties, random, |it| it as i64),
        Type::INT96 => of::<Int96Type>(field, properties, random, |it| {
            let mut value = Int96::new();
            value.set_data(it as u32, (it >> 40) as u32 & 0x3fff, 2_440_000 + (it as u32 & 0xfff));
            value
        }),
        Type::FLOAT => of::<FloatType>(field, properties, random, |it| f32::from_bits(it as u32)),
        Type::DOUBLE => of::<DoubleType>(field, properties, random, f64::from_bits),
        Type::BYTE_ARRAY => of::<ByteArrayType>(field, properties, random, |it| {
            let mut random = Random(it);
            let text = name.contains("STRING") || name.contains("UTF8") || name.contains("JSON");
            match text {
                true => "päßwørd 日本 🚀"
                    .chars()
                    .cycle()
                    .take(random.below(30) as usize)
                    .collect::<String>()
                    .as_str()
                    .into(),
                false => {
                    let length = random.below(17) as usize;
                    random.bytes(length).into()
                }
            }
        }),
        Type::FIXED_LEN_BYTE_ARRAY => {
            let bytes = match leaf.as_ref() {
                parquet::schema::types::Type::PrimitiveType { type_length, .. } => *type_length as usize,
                _ => 0,
            };
            of::<FixedLenByteArrayType>(field, properties, random, |it| Random(it).bytes(bytes).into())
        }
    }
}

#[test]
fn every_logical_type() {
    let mut random = Random(1);
    let mut compared = 0;
    for (style, properties) in styles() {
        for data_type in logical::TYPES {
            for repetition in ["optional", "required"] {
                // A type that is always null: values that contradict it have a test of their own, and arrow-rs, which takes
                // them for INT32, refuses what that cannot be encoded as.
                if data_type.ends_with("(UNKNOWN)") && (repetition == "required" || style.contains("delta")) {
                    continue;
                }
                let field = logical::field(repetition, "a", data_type);
                let bytes = column(&mut random, data_type, &field, &properties);
                compared += check(&format!("{style}, {field}"), &bytes, 0..1);
            }
        }
    }
    println!("{compared} reads of {} types equal arrow-rs", logical::TYPES.len());
}

/// Types that arrow-rs reads by the Arrow schema in the file alone, beside those that the generator knows.
fn hinted() -> Vec<DataType> {
    use DataType::*;
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let mut all = types();
    all.extend([Time32(TimeUnit::Second), Time64(TimeUnit::Nanosecond), Date64]);
    all.extend(units.map(Duration));
    all.extend(units.map(|unit| Timestamp(unit, None)));
    all.extend(units.map(|unit| Timestamp(unit, Some("Europe/Berlin".into()))));
    all.extend([Decimal256(9, 2), Decimal256(18, 2), Decimal256(38, 2), Decimal64(5, 1), Null]);
    all.push(Interval(IntervalUnit::YearMonth));
    all
}

/// A random column; the generator's, or numbers of the type's own width.
fn random_column(random: &mut Random, data_type: &DataType, rows: usize, nulls: u64) -> ArrayRef {
    let int64 = |random: &mut Random| array(random, &DataType::Int64, rows, nulls, 50);
    let cast = |values: ArrayRef| arrow::compute::cast(&values, data_type).unwrap();
    match data_type {
        DataType::Null => Arc::new(arrow::array::NullArray::new(rows)),
        DataType::Decimal64(5, _) => {
            let digits = |it: i64| it % 10_000;
            let values = int64(random);
            let values: Int64Array =
                arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&values).unary(digits);
            cast(Arc::new(values))
        }
        DataType::Decimal256(precision, scale) if *precision <= 38 => {
            let narrow = array(random, &DataType::Decimal128(*precision, *scale), rows, nulls, 50);
            cast(narrow)
        }
        DataType::Time32(TimeUnit::Second) => cast(array(random, &DataType::Int32, rows, nulls, 50)),
        DataType::Interval(IntervalUnit::YearMonth) => cast(array(random, &DataType::Int32, rows, nulls, 50)),
        DataType::Date64 => {
            let days = array(random, &DataType::Date32, rows, nulls, 50);
            let days = arrow::array::AsArray::as_primitive::<arrow::datatypes::Date32Type>(&days);
            let days: Int32Array = days.unary(|it| it % 100_000);
            cast(arrow::compute::cast(&days, &DataType::Date32).unwrap())
        }
        DataType::Time64(_) | DataType::Duration(_) | DataType::Timestamp(..) => cast(int64(random)),
        other => array(random, other, rows, nulls, 50),
    }
}

#[test]
fn every_type_that_an_arrow_schema_asks_for() {
    let mut random = Random(2);
    let mut compared = 0;
    for (style, properties) in styles() {
        for data_type in hinted() {
            for nulls in [0, 30] {
                let nulls = if data_type == DataType::Null { 100 } else { nulls };
                let column = random_column(&mut random, &data_type, 180, nulls);
                let field = Field::new("a", data_type.clone(), nulls > 0);
                let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap();
                let bytes = write(&batch, properties.clone(), 70);
                compared += check(&format!("{style}, {data_type}, {nulls} % nulls"), &bytes, 0..1);
            }
        }
    }
    println!("{compared} reads of {} Arrow types equal arrow-rs", hinted().len());
}
