//! One leaf column: its levels, its type and how it is decoded.

use std::sync::Arc;

use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, IntervalUnit, TimeUnit,
    validate_decimal_precision_and_scale,
};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{ConvertedType, Type as PhysicalType};

use super::field::{self, Field};
use crate::kernels::abi::conversion;

/// A leaf column.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// Index among all leaves of the file.
    pub index: usize,
    /// Index of the top-level field it belongs to, in the Arrow schema.
    pub root: usize,
    /// Dotted path, such as `a.list.element`.
    pub path: String,
    /// Physical type.
    pub physical: PhysicalType,
    /// Length of FIXED_LEN_BYTE_ARRAY values in bytes, else 0.
    pub type_length: u32,
    /// Maximum definition level.
    pub max_def: u32,
    /// Maximum repetition level.
    pub max_rep: u32,
    /// Its own Arrow type, which is its field's or that of the elements or children there.
    pub data_type: DataType,
    /// How a kernel decodes it, or why none does.
    pub decode: LeafDecode,
}

/// How a leaf is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafDecode {
    /// Fixed-width values.
    Fixed {
        /// `kernels::abi::conversion`.
        conversion: u32,
        /// Divisor or multiplier of the conversion, else 1.
        factor: i64,
        /// Bytes of a PLAIN value; 0 for BOOLEAN.
        in_width: u32,
        /// Bytes of an Arrow value; 0 for Boolean.
        out_width: u32,
    },
    /// Byte arrays with offsets of 4 or 8 bytes.
    Strings {
        /// Bytes of an offset.
        offset_width: u32,
        /// Whether the values must be UTF-8.
        utf8: bool,
        /// Whether the array is one of views; its offsets are of 4 bytes while it is made.
        view: bool,
    },
    /// Decimals in byte arrays.
    Decimals {
        /// Bytes of an Arrow value.
        out_width: u32,
    },
    /// An Arrow dictionary: keys, and entries that are decoded as values are.
    Dictionary {
        /// Bytes of a key.
        key_width: u32,
        /// The most entries that arrow-rs lets the keys have.
        most: u64,
        /// How the entries are decoded: of fixed width, or strings.
        values: Box<LeafDecode>,
    },
    /// Nothing but levels: the values have no bytes, or there are none.
    Levels,
    /// By arrow-rs, on the CPU, for the reason given.
    Cpu(&'static str),
}

impl LeafDecode {
    /// Whether the values are byte arrays, to which kernels make references first.
    pub fn is_byte_array(&self) -> bool {
        matches!(self, Self::Strings { .. } | Self::Decimals { .. })
    }

    /// How the values are decoded: for a dictionary, its entries.
    pub fn values(&self) -> &Self {
        match self {
            Self::Dictionary { values, .. } => values,
            other => other,
        }
    }
}

/// Level bytes on the device hold no larger level.
const MAX_LEVEL: u32 = u8::MAX as u32;

/// The leaves of a schema, in file order, and its top-level fields as trees, in the order of the Arrow schema; `None` for those
/// that arrow-rs decodes.
pub(super) fn leaves(arrow: &ArrowReaderMetadata) -> (Arc<[Leaf]>, Arc<[Option<Field>]>) {
    let schema = arrow.metadata().file_metadata().schema_descr();
    let level = |level: i16| u32::try_from(level).unwrap_or(0);
    let types = arrow.schema().fields().iter().map(|field| field.data_type());
    let roots = field::roots(schema.root_schema(), types);
    let mut leaves = Vec::with_capacity(schema.num_columns());
    for (root, found) in roots.iter().enumerate() {
        for data_type in &found.leaves {
            let index = leaves.len();
            let column = schema.column(index);
            let type_length = u32::try_from(column.type_length()).unwrap_or(0);
            let (max_def, max_rep) = (level(column.max_def_level()), level(column.max_rep_level()));
            let stated_utf8 = column.converted_type() == ConvertedType::UTF8;
            let decode = match (&found.field, data_type) {
                (Err(reason), _) => LeafDecode::Cpu(reason),
                _ if max_def > MAX_LEVEL || max_rep > MAX_LEVEL => LeafDecode::Cpu("columns nested this deep"),
                (Ok(_), Some(data_type)) => decode_of(column.physical_type(), type_length, stated_utf8, data_type),
                (Ok(_), None) => LeafDecode::Cpu("nested columns"),
            };
            let (path, physical) = (column.path().string(), column.physical_type());
            let data_type = data_type.clone().unwrap_or(DataType::Null);
            leaves.push(Leaf { index, root, path, physical, type_length, max_def, max_rep, data_type, decode });
        }
    }
    (leaves.into(), roots.into_iter().map(|root| root.field.ok()).collect())
}

/// How a kernel makes arrow-rs's values of `data_type`, by arrow-rs's `array_reader` (`primitive_array.rs`,
/// `fixed_len_byte_array.rs`, `byte_array.rs`). What is not surely the same is left to arrow-rs, what
/// it refuses included.
///
/// `stated_utf8`: whether the column's converted type is UTF8, and arrow-rs checks that it is. Arrays of strings are
/// checked anyway: arrow-rs makes some, of JSON for one, that it has not checked, and they may not be UTF-8.
fn decode_of(physical: PhysicalType, type_length: u32, stated_utf8: bool, data_type: &DataType) -> LeafDecode {
    use DataType as D;
    use PhysicalType as P;
    use TimeUnit as T;
    let fixed = |conversion, factor, in_width, out_width| LeafDecode::Fixed { conversion, factor, in_width, out_width };
    let strings = |offset_width, utf8| LeafDecode::Strings { offset_width, utf8, view: false };
    let views = |utf8| LeafDecode::Strings { offset_width: 4, utf8, view: true };
    // Same width: the bits as they are. Narrower: the low bits, as Rust's `as`. Wider: the sign extended.
    let integer = |in_width: u32, out_width: u32| match out_width > in_width {
        true => fixed(conversion::SIGN_EXTEND, 1, in_width, out_width),
        false => fixed(conversion::COPY, 1, in_width, out_width),
    };
    match (physical, data_type) {
        (_, it) if !is_sound_decimal(it) => LeafDecode::Cpu("an invalid precision or scale"),
        // Whatever the physical type: arrow-rs takes the values, should there be any, for integers and drops them.
        (_, D::Null) => LeafDecode::Levels,
        (_, D::Dictionary(key, value)) => {
            let values = decode_of(physical, type_length, stated_utf8, value);
            match (dictionary_keys(key), physical, &values) {
                (None, ..) => LeafDecode::Cpu("this type of dictionary keys"),
                (_, P::BOOLEAN, _) => LeafDecode::Cpu("dictionaries of booleans"),
                (_, P::FIXED_LEN_BYTE_ARRAY, _) if !matches!(**value, D::FixedSizeBinary(_)) => {
                    LeafDecode::Cpu("dictionaries of such values")
                }
                (Some((key_width, most)), _, LeafDecode::Fixed { .. } | LeafDecode::Strings { .. }) => {
                    LeafDecode::Dictionary { key_width, most, values: Box::new(values) }
                }
                _ => LeafDecode::Cpu("dictionaries of such values"),
            }
        }
        (_, D::RunEndEncoded(..)) => LeafDecode::Cpu("run-end encoded arrays"),
        (P::BOOLEAN, D::Boolean) => fixed(conversion::BOOL, 1, 0, 0),
        (P::INT32, D::Int8 | D::UInt8) => integer(4, 1),
        (P::INT32, D::Int16 | D::UInt16) => integer(4, 2),
        (P::INT32, D::Int32 | D::UInt32 | D::Date32 | D::Time32(T::Second | T::Millisecond) | D::Decimal32(..)) => {
            integer(4, 4)
        }
        (P::INT32, D::Timestamp(..) | D::Decimal64(..)) => integer(4, 8),
        (P::INT32, D::Date64) => fixed(conversion::MULTIPLY, MILLISECONDS_IN_DAY, 4, 8),
        (P::INT32, D::Decimal128(..)) => integer(4, 16),
        (P::INT32, D::Decimal256(..)) => integer(4, 32),
        (
            P::INT64,
            D::Int64
            | D::UInt64
            | D::Date64
            | D::Time64(T::Microsecond | T::Nanosecond)
            | D::Duration(_)
            | D::Timestamp(..)
            | D::Decimal64(..),
        ) => integer(8, 8),
        (P::INT64, D::Decimal128(..)) => integer(8, 16),
        (P::INT64, D::Decimal256(..)) => integer(8, 32),
        (P::INT96, D::Timestamp(unit, _)) => fixed(conversion::INT96_NANOS, nanoseconds(unit), 12, 8),
        (P::FLOAT, D::Float32) => fixed(conversion::COPY, 1, 4, 4),
        (P::DOUBLE, D::Float64) => fixed(conversion::COPY, 1, 8, 8),
        (P::BYTE_ARRAY, D::Utf8) => strings(4, true),
        (P::BYTE_ARRAY, D::LargeUtf8) => strings(8, true),
        (P::BYTE_ARRAY, D::Binary) => strings(4, stated_utf8),
        (P::BYTE_ARRAY, D::LargeBinary) => strings(8, stated_utf8),
        (P::BYTE_ARRAY, D::Utf8View) => views(true),
        (P::BYTE_ARRAY, D::BinaryView) => views(stated_utf8),
        (P::BYTE_ARRAY, D::Decimal128(..)) => LeafDecode::Decimals { out_width: 16 },
        (P::BYTE_ARRAY, D::Decimal256(..)) => LeafDecode::Decimals { out_width: 32 },
        (P::FIXED_LEN_BYTE_ARRAY, _) => match (type_length, data_type) {
            (0, D::FixedSizeBinary(0)) => LeafDecode::Levels,
            (1..=4, D::Decimal32(..)) => fixed(conversion::BIG_ENDIAN, 1, type_length, 4),
            (1..=8, D::Decimal64(..)) => fixed(conversion::BIG_ENDIAN, 1, type_length, 8),
            (1..=16, D::Decimal128(..)) => fixed(conversion::BIG_ENDIAN, 1, type_length, 16),
            (1..=32, D::Decimal256(..)) => fixed(conversion::BIG_ENDIAN, 1, type_length, 32),
            (2, D::Float16) => fixed(conversion::COPY, 1, 2, 2),
            // Months, days and milliseconds, of 4 bytes each.
            (12, D::Interval(IntervalUnit::YearMonth)) => fixed(conversion::COPY, 1, 12, 4),
            (12, D::Interval(IntervalUnit::DayTime)) => fixed(conversion::COPY_TAIL, 1, 12, 8),
            (length, D::FixedSizeBinary(width)) if u32::try_from(*width) == Ok(length) => {
                fixed(conversion::COPY, 1, length, length)
            }
            _ => LeafDecode::Cpu("this conversion of fixed-length byte arrays"),
        },
        _ => LeafDecode::Cpu("this conversion"),
    }
}

/// Whether arrow-rs makes an array of this decimal type; true for other types. A hint in the file may ask for any.
fn is_sound_decimal(data_type: &DataType) -> bool {
    match *data_type {
        DataType::Decimal32(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal32Type>(precision, scale).is_ok()
        }
        DataType::Decimal64(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal64Type>(precision, scale).is_ok()
        }
        DataType::Decimal128(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal128Type>(precision, scale).is_ok()
        }
        DataType::Decimal256(precision, scale) => {
            validate_decimal_precision_and_scale::<Decimal256Type>(precision, scale).is_ok()
        }
        _ => true,
    }
}

/// Bytes of a dictionary's key, and how many entries arrow-rs lets such keys have: one less than they could tell apart.
fn dictionary_keys(key: &DataType) -> Option<(u32, u64)> {
    Some(match key {
        DataType::Int8 => (1, i8::MAX as u64),
        DataType::UInt8 => (1, u8::MAX.into()),
        DataType::Int16 => (2, i16::MAX as u64),
        DataType::UInt16 => (2, u16::MAX.into()),
        DataType::Int32 => (4, i32::MAX as u64),
        DataType::UInt32 => (4, u32::MAX.into()),
        DataType::Int64 => (8, i64::MAX as u64),
        DataType::UInt64 => (8, u64::MAX),
        _ => return None,
    })
}

const MILLISECONDS_IN_DAY: i64 = 86_400_000;

fn nanoseconds(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrow_rs_refuses_is_left_to_it() {
        let on_cpu = |physical, data_type| matches!(decode_of(physical, 4, false, &data_type), LeafDecode::Cpu(_));
        assert!(!on_cpu(PhysicalType::INT32, DataType::Decimal32(9, 2)));
        assert!(on_cpu(PhysicalType::INT32, DataType::Decimal32(10, 2)));
        assert!(on_cpu(PhysicalType::INT64, DataType::Decimal128(39, 2)));
        assert!(on_cpu(PhysicalType::FIXED_LEN_BYTE_ARRAY, DataType::Decimal64(4, 5)));
        assert!(!on_cpu(PhysicalType::INT32, DataType::Time32(TimeUnit::Second)));
        assert!(on_cpu(PhysicalType::INT32, DataType::Time32(TimeUnit::Nanosecond)));
        assert!(on_cpu(PhysicalType::INT64, DataType::Time64(TimeUnit::Second)));
    }

    #[test]
    fn utf8_is_checked_where_arrow_rs_checks_it_and_in_every_string() {
        let utf8 = |stated, data_type| match decode_of(PhysicalType::BYTE_ARRAY, 0, stated, &data_type) {
            LeafDecode::Strings { utf8, .. } => utf8,
            other => panic!("{other:?}"),
        };
        assert!(utf8(false, DataType::Utf8) && utf8(true, DataType::Utf8View));
        assert!(utf8(true, DataType::Binary) && !utf8(false, DataType::Binary) && !utf8(false, DataType::BinaryView));
    }
}
