//! Mends footers that the `parquet` crate refuses for what nothing depends on.
//!
//! Writers have put fields of their own where the format later put others, dictionary offsets of 0 where there is no
//! dictionary, types of their own among the converted types, and lists of no elements with any type of those. The crate
//! stops at each. pyarrow and DuckDB pass over them, and so do we: a footer that was refused is written again without its
//! optional fields that are of another type or out of range, and parsed once more.

use std::ops::RangeInclusive;

use super::thrift::{BINARY, DEEPEST, I16, I32, I64, LIST, STRUCT, Thrift};

/// A field of a struct in parquet.thrift.
struct Field {
    id: i64,
    name: &'static str,
    kind: Kind,
    /// Whether the struct can do without it.
    optional: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    I16,
    I32,
    I64,
    Binary,
    /// An integer that is left out when it lies outside.
    Ranged(u8, &'static RangeInclusive<i64>),
    /// A struct of fields that are passed on as they are.
    Other,
    Struct(&'static [Field]),
    List(&'static Kind),
}

impl Kind {
    /// The type on the wire.
    fn wire(self) -> u8 {
        match self {
            Self::I16 => I16,
            Self::I32 => I32,
            Self::I64 => I64,
            Self::Binary => BINARY,
            Self::Ranged(kind, _) => kind,
            Self::Other | Self::Struct(_) => STRUCT,
            Self::List(_) => LIST,
        }
    }
}

const fn required(id: i64, name: &'static str, kind: Kind) -> Field {
    Field { id, name, kind, optional: false }
}

const fn optional(id: i64, name: &'static str, kind: Kind) -> Field {
    Field { id, name, kind, optional: true }
}

const FILE: &[Field] = &[
    required(1, "version", Kind::I32),
    required(2, "schema", Kind::List(&Kind::Struct(SCHEMA))),
    required(3, "num_rows", Kind::I64),
    required(4, "row_groups", Kind::List(&Kind::Struct(ROW_GROUP))),
    optional(5, "key_value_metadata", Kind::List(&Kind::Other)),
    optional(6, "created_by", Kind::Binary),
    optional(7, "column_orders", Kind::List(&Kind::Other)),
];

/// The last of the converted types, INTERVAL.
const CONVERTED_TYPES: RangeInclusive<i64> = 0..=21;

const SCHEMA_TYPE: i64 = 1;
const SCHEMA_REPETITION: i64 = 3;

const SCHEMA: &[Field] = &[
    optional(SCHEMA_TYPE, "type", Kind::I32),
    optional(2, "type_length", Kind::I32),
    optional(SCHEMA_REPETITION, "repetition_type", Kind::I32),
    required(4, "name", Kind::Binary),
    optional(5, "num_children", Kind::I32),
    optional(6, "converted_type", Kind::Ranged(I32, &CONVERTED_TYPES)),
    optional(7, "scale", Kind::I32),
    optional(8, "precision", Kind::I32),
    optional(9, "field_id", Kind::I32),
    optional(10, "logical_type", Kind::Other),
];

const ROW_GROUP: &[Field] = &[
    required(1, "columns", Kind::List(&Kind::Struct(COLUMN_CHUNK))),
    required(2, "total_byte_size", Kind::I64),
    required(3, "num_rows", Kind::I64),
    optional(4, "sorting_columns", Kind::List(&Kind::Other)),
    optional(5, "file_offset", Kind::I64),
    optional(6, "total_compressed_size", Kind::I64),
    optional(7, "ordinal", Kind::I16),
];

const COLUMN_CHUNK: &[Field] = &[
    optional(1, "file_path", Kind::Binary),
    required(2, "file_offset", Kind::I64),
    optional(3, "meta_data", Kind::Struct(COLUMN)),
    optional(4, "offset_index_offset", Kind::I64),
    optional(5, "offset_index_length", Kind::I32),
    optional(6, "column_index_offset", Kind::I64),
    optional(7, "column_index_length", Kind::I32),
    required(8, "crypto_metadata", Kind::Other),
    required(9, "encrypted_column_metadata", Kind::Binary),
];

/// No page starts before the magic number's end.
const PAGE_OFFSETS: RangeInclusive<i64> = 4..=i64::MAX;

const COLUMN: &[Field] = &[
    required(1, "type", Kind::I32),
    required(2, "encodings", Kind::List(&Kind::I32)),
    required(3, "path_in_schema", Kind::List(&Kind::Binary)),
    required(4, "codec", Kind::I32),
    required(5, "num_values", Kind::I64),
    required(6, "total_uncompressed_size", Kind::I64),
    required(7, "total_compressed_size", Kind::I64),
    optional(8, "key_value_metadata", Kind::List(&Kind::Other)),
    required(9, "data_page_offset", Kind::I64),
    optional(10, "index_page_offset", Kind::I64),
    optional(11, "dictionary_page_offset", Kind::Ranged(I64, &PAGE_OFFSETS)),
    optional(12, "statistics", Kind::Other),
    optional(13, "encoding_stats", Kind::List(&Kind::Other)),
    optional(14, "bloom_filter_offset", Kind::I64),
    optional(15, "bloom_filter_length", Kind::I32),
    optional(16, "size_statistics", Kind::Other),
    optional(17, "geospatial_statistics", Kind::Other),
];

/// The serialized `FileMetaData` without what is wrong with it, and the names of the fields that were left out or changed; `None` when
/// there is nothing of the kind, or more.
pub(super) fn repair(file_metadata: &[u8]) -> Option<(Vec<u8>, Vec<&'static str>)> {
    let mut repair = Repair { out: Vec::with_capacity(file_metadata.len()), changed: Vec::new() };
    repair.fields(&mut Thrift::new(file_metadata), FILE, 0)?;
    repair.changed.sort_unstable();
    repair.changed.dedup();
    (!repair.changed.is_empty()).then_some((repair.out, repair.changed))
}

struct Repair {
    out: Vec<u8>,
    changed: Vec<&'static str>,
}

impl Repair {
    fn fields(&mut self, thrift: &mut Thrift<'_>, fields: &[Field], depth: u32) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        let mut last = 0;
        let mut seen = 0u32;
        thrift.fields(|thrift, id, kind| {
            seen |= u32::try_from(id).ok().and_then(|id| 1u32.checked_shl(id)).unwrap_or(0);
            let start = thrift.rest();
            let head = self.out.len();
            self.field_head(last, id, kind);
            match fields.iter().find(|field| field.id == id) {
                // A struct of the format's future is passed on: it is for the parser to skip.
                None => thrift.skip(kind, depth)?,
                Some(field) if field.kind.wire() != kind => {
                    thrift.skip(kind, depth)?;
                    return self.leave_out(field, head);
                }
                Some(field) => match field.kind {
                    Kind::Struct(fields) => {
                        last = id;
                        return self.fields(thrift, fields, depth + 1);
                    }
                    Kind::List(element) => {
                        last = id;
                        return self.list(thrift, field, *element, depth + 1);
                    }
                    Kind::Ranged(_, range) => {
                        let zigzag = thrift.varint()?;
                        if !range.contains(&((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))) {
                            return self.leave_out(field, head);
                        }
                    }
                    _ => thrift.skip(kind, depth)?,
                },
            }
            last = id;
            self.copy(start, thrift);
            Some(())
        })?;
        // A leaf without a repetition type is a required one to other readers.
        if std::ptr::eq(fields, SCHEMA) && seen & 1 << SCHEMA_TYPE != 0 && seen & 1 << SCHEMA_REPETITION == 0 {
            self.field_head(i64::MAX, SCHEMA_REPETITION, I32);
            self.out.push(0);
            self.changed.push("repetition_type");
        }
        self.out.push(0);
        Some(())
    }

    fn list(&mut self, thrift: &mut Thrift<'_>, field: &Field, element: Kind, depth: u32) -> Option<()> {
        let start = thrift.rest();
        let (length, kind) = thrift.list()?;
        if length == 0 {
            if kind != element.wire() {
                self.changed.push(field.name);
            }
            self.out.push(element.wire());
            return Some(());
        }
        if kind != element.wire() {
            return None;
        }
        let Kind::Struct(fields) = element else {
            (0..length).try_for_each(|_| thrift.skip_element(kind, depth))?;
            self.copy(start, thrift);
            return Some(());
        };
        self.copy(start, thrift);
        (0..length).try_for_each(|_| self.fields(thrift, fields, depth))
    }

    /// Writes the head of a field that comes after field `last`, as the compact protocol has it.
    fn field_head(&mut self, last: i64, id: i64, kind: u8) {
        match id.saturating_sub(last) {
            delta @ 1..=15 => self.out.push((delta as u8) << 4 | kind),
            _ => {
                self.out.push(kind);
                let mut zigzag = (id << 1 ^ id >> 63) as u64;
                while zigzag >= 0x80 {
                    self.out.push(zigzag as u8 | 0x80);
                    zigzag >>= 7;
                }
                self.out.push(zigzag as u8);
            }
        }
    }

    fn leave_out(&mut self, field: &Field, head: usize) -> Option<()> {
        self.out.truncate(head);
        self.changed.push(field.name);
        field.optional.then_some(())
    }

    /// Passes on what was read since `start`.
    fn copy(&mut self, start: &[u8], thrift: &Thrift<'_>) {
        self.out.extend_from_slice(&start[..start.len() - thrift.rest().len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FileMetaData` of one column chunk, whose metadata ends with `more`.
    fn file(more: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x15, 2, 0x19, 0x0c, 0x16, 0, 0x19, 0x1c]; // version, no schema, rows, a row group
        bytes.extend([0x19, 0x1c, 0x26, 0, 0x1c]); // a column, its offset, its metadata
        bytes.extend([0x15, 2, 0x19, 0x05, 0x19, 0x08, 0x15, 0, 0x16, 0, 0x16, 0, 0x16, 0, 0x26, 8]); // to data_page_offset
        bytes.extend(more);
        bytes.extend([0, 0]); // of the metadata and the column
        bytes.extend([0x16, 0, 0x16, 0, 0]); // sizes of the row group
        bytes.push(0);
        bytes
    }

    #[test]
    fn what_is_wrong_is_left_out() {
        // No dictionary, encoding statistics, and a list in the place of a bloom filter's length.
        let broken = file(&[0x26, 0, 0x29, 0x0c, 0x29, 0x1c, 0x15, 2, 0]);
        let (mended, changed) = repair(&broken).expect("it can be mended");
        assert_eq!(changed, ["bloom_filter_length", "dictionary_page_offset"]);
        assert_eq!(mended, file(&[0x49, 0x0c]));
        assert_eq!(repair(&mended), None);
        // An empty list of another type.
        let (mended, changed) = repair(&file(&[0x49, 0x03])).expect("it can be mended");
        assert_eq!((mended, changed), (file(&[0x49, 0x0c]), vec!["encoding_stats"]));
    }

    #[test]
    fn what_cannot_be_mended_is_left_alone() {
        assert_eq!(repair(&[]), None);
        assert_eq!(repair(&[0x16, 2]), None);
        let whole = file(&[]);
        for cut in 0..whole.len() {
            assert_eq!(repair(&whole[..cut]), None);
        }
        assert_eq!(repair(&[0x19; 1000]), None);
    }
}
