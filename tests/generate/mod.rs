//! Random columns, the same in every run.
#![allow(dead_code)] // each test takes what it needs

pub mod logical;

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, TimeUnit};

/// A small generator of numbers, the same in every run.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A column of random values of one Arrow type. `values` bounds how many different ones there are.
pub fn array(random: &mut Random, data_type: &DataType, rows: usize, nulls: u64, values: u64) -> ArrayRef {
    let valid: Vec<bool> = (0..rows).map(|_| random.below(100) >= nulls).collect();
    let validity = (nulls > 0).then(|| NullBuffer::from(valid.clone()));
    let mut number = |_| Random(random.below(values)).next() as i64;
    let numbers: Vec<i64> = (0..rows).map(&mut number).collect();
    fn primitive<T: ArrowPrimitiveType>(
        numbers: &[i64],
        validity: Option<NullBuffer>,
        data_type: &DataType,
        convert: impl Fn(i64) -> T::Native,
    ) -> ArrayRef {
        let values = numbers.iter().map(|it| convert(*it)).collect::<Vec<_>>();
        Arc::new(PrimitiveArray::<T>::new(values.into(), validity).with_data_type(data_type.clone()))
    }
    use arrow::datatypes::*;
    macro_rules! cast {
        ($type:ty) => {
            primitive::<$type>(&numbers, validity, data_type, |it| it as <$type as ArrowPrimitiveType>::Native)
        };
    }
    let text = |it: i64| {
        let words = ["", "a", "ß", "日本", "word", "🚀", "a longer piece of text, past one chunk", "\u{7ff}\u{800}"];
        let mut random = Random(it as u64);
        (0..random.below(4)).map(|_| words[random.below(8) as usize]).collect::<String>()
    };
    let texts = || numbers.iter().zip(&valid).map(|(it, valid)| valid.then(|| text(*it)));
    match data_type {
        DataType::Boolean => Arc::new(BooleanArray::new(numbers.iter().map(|it| it & 1 == 1).collect(), validity)),
        DataType::Int8 => cast!(Int8Type),
        DataType::Int16 => cast!(Int16Type),
        DataType::Int32 => cast!(Int32Type),
        DataType::Int64 => cast!(Int64Type),
        DataType::UInt8 => cast!(UInt8Type),
        DataType::UInt16 => cast!(UInt16Type),
        DataType::UInt32 => cast!(UInt32Type),
        DataType::UInt64 => cast!(UInt64Type),
        DataType::Float16 => primitive::<Float16Type>(&numbers, validity, data_type, |it| half_of(it as u16)),
        DataType::Float32 => primitive::<Float32Type>(&numbers, validity, data_type, |it| f32::from_bits(it as u32)),
        DataType::Float64 => primitive::<Float64Type>(&numbers, validity, data_type, |it| f64::from_bits(it as u64)),
        DataType::Date32 => cast!(Date32Type),
        DataType::Time32(TimeUnit::Millisecond) => {
            primitive::<Time32MillisecondType>(&numbers, validity, data_type, |it| (it as i32).rem_euclid(86_400_000))
        }
        DataType::Time64(TimeUnit::Microsecond) => cast!(Time64MicrosecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => cast!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => cast!(TimestampNanosecondType),
        DataType::Decimal32(..) => primitive::<Decimal32Type>(&numbers, validity, data_type, |it| (it % 10_000) as i32),
        DataType::Decimal64(..) => primitive::<Decimal64Type>(&numbers, validity, data_type, |it| it % 100_000_000),
        DataType::Decimal128(precision, _) => {
            let limit = 10i128.pow((*precision).into());
            let wide = |it: i64| (i128::from(it) * i128::from(it ^ 0x5555)) % limit;
            primitive::<Decimal128Type>(&numbers, validity, data_type, wide)
        }
        DataType::Decimal256(..) => primitive::<Decimal256Type>(&numbers, validity, data_type, |it| {
            i256::from_i128(i128::from(it)).wrapping_mul(i256::from_i128(i128::from(it) << 40))
        }),
        DataType::Interval(_) => primitive::<IntervalDayTimeType>(&numbers, validity, data_type, |it| {
            IntervalDayTime::new(it as i32, (it >> 32) as i32)
        }),
        DataType::FixedSizeBinary(width) => {
            let bytes = |it: i64| Random(it as u64).bytes(*width as usize);
            let values = numbers.iter().flat_map(|it| bytes(*it)).collect::<Vec<_>>();
            Arc::new(FixedSizeBinaryArray::new(*width, values.into(), validity))
        }
        DataType::Utf8 => Arc::new(texts().collect::<StringArray>()),
        DataType::Utf8View => Arc::new(texts().collect::<StringViewArray>()),
        DataType::BinaryView => Arc::new(texts().map(|it| it.map(String::into_bytes)).collect::<BinaryViewArray>()),
        DataType::LargeUtf8 => Arc::new(texts().collect::<LargeStringArray>()),
        DataType::Binary => Arc::new(texts().map(|it| it.map(String::into_bytes)).collect::<BinaryArray>()),
        DataType::LargeBinary => Arc::new(texts().map(|it| it.map(String::into_bytes)).collect::<LargeBinaryArray>()),
        other => panic!("{other}"),
    }
}

fn half_of(bits: u16) -> <arrow::datatypes::Float16Type as ArrowPrimitiveType>::Native {
    <arrow::datatypes::Float16Type as ArrowPrimitiveType>::Native::from_bits(bits)
}

/// Every flat type that kernels decode.
pub fn types() -> Vec<DataType> {
    vec![
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date32,
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Millisecond, None),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        DataType::Decimal32(9, 2),
        DataType::Decimal64(17, 2),
        DataType::Decimal128(8, 2),
        DataType::Decimal128(17, 2),
        DataType::Decimal128(23, 3),
        DataType::Decimal128(38, 3),
        DataType::Decimal256(76, 5),
        DataType::Interval(arrow::datatypes::IntervalUnit::DayTime),
        DataType::FixedSizeBinary(1),
        DataType::FixedSizeBinary(3),
        DataType::FixedSizeBinary(16),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::Utf8View,
        DataType::BinaryView,
    ]
}
