//! One leaf column: its levels, its type and how it is decoded.

use arrow::datatypes::DataType;
use parquet::basic::Type as PhysicalType;

/// A leaf column.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// Index among all leaves of the file.
    pub index: usize,
    /// Index of the top-level field it belongs to.
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
    /// The Arrow type of the top-level field.
    pub root_type: DataType,
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
    },
    /// By arrow-rs, on the CPU, for the reason given.
    Cpu(&'static str),
}
