//! Arrow types that the options ask for in place of those that arrow-rs chooses.
//!
//! They are asked of arrow-rs itself, as a schema that is given to it: so the CPU, the reference of `--verify` and the
//! kernels follow one decision, and what arrow-rs does not make of a column is not asked for.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION};
use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Encoding, Type as PhysicalType};

use super::{Footer, Leaf, leaf};
use crate::error::{Error, Place, Result};
use crate::guard;
use crate::options::{ReadOptions, StringType};

impl Footer {
    /// The footer with the types that the options ask for: of strings, decimals and dictionaries.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Corrupt`] when arrow-rs refuses them for this file.
    pub fn with_types(&self, options: &ReadOptions) -> Result<Self> {
        let schema = self.wanted_schema(options);
        if schema == *self.schema() {
            return Ok(self.clone());
        }
        let metadata = self.metadata().clone();
        let asked = ArrowReaderOptions::new().with_schema(schema);
        let arrow = guard::catch(|| ArrowReaderMetadata::try_new(metadata, asked))
            .map_err(|error| Error::from_parquet(Place::default(), error))?;
        let (leaves, fields) = leaf::leaves(&arrow);
        Ok(Self { arrow, leaves, fields, ..self.clone() })
    }

    fn wanted_schema(&self, options: &ReadOptions) -> SchemaRef {
        let schema = self.schema();
        let fields = schema.fields().iter().enumerate().map(|(root, field)| {
            let mut leaves = self.leaves.iter().filter(|leaf| leaf.root == root);
            if leaves.clone().count() != count_leaves(field.data_type()) {
                return field.clone();
            }
            let wanted = retype(field.data_type(), &mut |data_type| {
                leaves.next().map_or(data_type.clone(), |leaf| self.wanted(leaf, data_type, options))
            });
            with_type(field, wanted)
        });
        Arc::new(Schema::new_with_metadata(fields.collect::<Fields>(), schema.metadata().clone()))
    }

    /// The type of a leaf, of which arrow-rs made `data_type` before.
    fn wanted(&self, leaf: &Leaf, data_type: &DataType, options: &ReadOptions) -> DataType {
        match data_type {
            DataType::Dictionary(key, value) => {
                DataType::Dictionary(key.clone(), Box::new(string_type(leaf, value, options.strings)))
            }
            it if it.is_decimal() && options.narrow_decimals => narrow_decimal(leaf, it),
            it => {
                let wanted = string_type(leaf, it, options.strings);
                if options.dictionaries && wanted.is_string() && self.is_dictionary_encoded(leaf) {
                    return DataType::Dictionary(Box::new(DataType::Int32), Box::new(wanted));
                }
                wanted
            }
        }
    }

    /// Whether every chunk of the leaf has a dictionary, though some of its pages may do without.
    fn is_dictionary_encoded(&self, leaf: &Leaf) -> bool {
        let mut groups = self.metadata().row_groups().iter().filter(|group| group.num_rows() != 0).peekable();
        #[allow(deprecated)] // PLAIN_DICTIONARY: what old writers call it
        let is_dictionary = |it: Encoding| matches!(it, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        groups.peek().is_some() && groups.all(|group| group.column(leaf.index).encodings().any(is_dictionary))
    }
}

fn string_type(leaf: &Leaf, data_type: &DataType, strings: StringType) -> DataType {
    use DataType::*;
    let is_text = data_type.is_string();
    if leaf.physical != PhysicalType::BYTE_ARRAY || !(is_text || matches!(data_type, Binary | LargeBinary | BinaryView))
    {
        return data_type.clone();
    }
    match (strings, is_text) {
        (StringType::File, _) => data_type.clone(),
        (StringType::Utf8, true) => Utf8,
        (StringType::Utf8, false) => Binary,
        (StringType::Large, true) => LargeUtf8,
        (StringType::Large, false) => LargeBinary,
        (StringType::View, true) => Utf8View,
        (StringType::View, false) => BinaryView,
    }
}

/// The narrowest decimal that arrow-rs makes of the column: it cuts no bytes off, of integers and byte arrays least of all.
fn narrow_decimal(leaf: &Leaf, data_type: &DataType) -> DataType {
    let (precision, scale) = match *data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => (precision, scale),
        _ => return data_type.clone(),
    };
    let least_bytes = match leaf.physical {
        PhysicalType::INT32 => 4,
        PhysicalType::INT64 => 8,
        PhysicalType::FIXED_LEN_BYTE_ARRAY => leaf.type_length,
        _ => 16,
    };
    if precision <= DECIMAL32_MAX_PRECISION && least_bytes <= 4 {
        DataType::Decimal32(precision, scale)
    } else if precision <= DECIMAL64_MAX_PRECISION && least_bytes <= 8 {
        DataType::Decimal64(precision, scale)
    } else if precision <= DECIMAL128_MAX_PRECISION && least_bytes <= 16 {
        DataType::Decimal128(precision, scale)
    } else {
        data_type.clone()
    }
}

/// The types of the fields below a nested type.
fn children(data_type: &DataType) -> &[FieldRef] {
    match data_type {
        DataType::Struct(fields) => fields,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => std::slice::from_ref(field),
        _ => &[],
    }
}

fn count_leaves(data_type: &DataType) -> usize {
    match data_type {
        it if !it.is_nested() || matches!(it, DataType::Dictionary(..)) => 1,
        it => children(it).iter().map(|field| count_leaves(field.data_type())).sum(),
    }
}

/// The type with every leaf's changed, from left to right.
fn retype(data_type: &DataType, leaf: &mut impl FnMut(&DataType) -> DataType) -> DataType {
    let mut child = |field: &FieldRef| with_type(field, retype(field.data_type(), leaf));
    match data_type {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(child).collect()),
        DataType::List(field) => DataType::List(child(field)),
        DataType::LargeList(field) => DataType::LargeList(child(field)),
        DataType::ListView(field) => DataType::ListView(child(field)),
        DataType::LargeListView(field) => DataType::LargeListView(child(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(child(field), *size),
        DataType::Map(field, sorted) => DataType::Map(child(field), *sorted),
        other => leaf(other),
    }
}

fn with_type(field: &FieldRef, data_type: DataType) -> FieldRef {
    match *field.data_type() == data_type {
        true => field.clone(),
        false => Arc::new(field.as_ref().clone().with_data_type(data_type)),
    }
}
