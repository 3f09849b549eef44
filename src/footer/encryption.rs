//! Which column chunks are encrypted in a file whose footer is not.
//!
//! The `parquet` crate skips what the footer says of that when it is built without decryption, and then takes encrypted
//! pages for damaged ones.
//!
//! A chunk counts as encrypted when the footer keeps a copy of its metadata encrypted with the column's own key. Crypto
//! metadata alone does not tell: files exist that state it beside plain pages, and arrow-rs reads them. A column that is
//! encrypted with the footer's key, under a plain footer, therefore still looks damaged.

use std::collections::BTreeSet;

/// Structs within structs: parquet.thrift needs fewer than ten, and a stack has an end.
const DEEPEST: u32 = 32;

// Types of the Thrift compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

// Fields of parquet.thrift.
const FILE_ROW_GROUPS: i64 = 4;
const ROW_GROUP_COLUMNS: i64 = 1;
const COLUMN_ENCRYPTED_METADATA: i64 = 9;

/// The encrypted chunks, as row group and leaf, of a serialized `FileMetaData`. What cannot be read says nothing: that
/// is for the parser to refuse.
pub(super) fn encrypted_chunks(file_metadata: &[u8]) -> BTreeSet<(usize, usize)> {
    let mut chunks = BTreeSet::new();
    let mut thrift = Thrift { bytes: file_metadata };
    // `None` only means that the walk ended early.
    let _ = thrift.fields(|thrift, field, kind| {
        if (field, kind) != (FILE_ROW_GROUPS, LIST) {
            return thrift.skip(kind, 1);
        }
        thrift.structs(|thrift, row_group| {
            thrift.fields(|thrift, field, kind| {
                if (field, kind) != (ROW_GROUP_COLUMNS, LIST) {
                    return thrift.skip(kind, 3);
                }
                thrift.structs(|thrift, leaf| {
                    thrift.fields(|thrift, field, kind| {
                        if field == COLUMN_ENCRYPTED_METADATA {
                            chunks.insert((row_group, leaf));
                        }
                        thrift.skip(kind, 5)
                    })
                })
            })
        })
    });
    chunks
}

/// The rest of a message in the Thrift compact protocol.
struct Thrift<'a> {
    bytes: &'a [u8],
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Calls `each` with the number and type of each field of a struct; it consumes the value.
    fn fields(&mut self, mut each: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => {
                    let zigzag = self.varint()?;
                    (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
                }
                delta => field.checked_add(delta.into())?,
            };
            each(self, field, head & 15)?;
        }
    }

    /// The length and element type of a list or set.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let length = if head >> 4 == 15 { self.varint()? } else { (head >> 4).into() };
        Some((length, head & 15))
    }

    /// Calls `each` with the index of each struct of a list; it consumes the struct.
    fn structs(&mut self, mut each: impl FnMut(&mut Self, usize) -> Option<()>) -> Option<()> {
        let (length, kind) = self.list()?;
        // Each takes a byte at least, so a length that lies ends with the bytes.
        (kind == STRUCT).then_some(())?;
        (0..usize::try_from(length).ok()?).try_for_each(|at| each(self, at))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            TRUE | FALSE => Some(()), // in the field's head
            _ => self.skip_element(kind, depth),
        }
    }

    fn skip_element(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            TRUE | FALSE | BYTE => self.advance(1),
            4..=I64 => self.varint().map(|_| ()),
            DOUBLE => self.advance(8),
            UUID => self.advance(16),
            BINARY => {
                let length = self.varint()?;
                self.advance(length)
            }
            LIST | SET => {
                let (length, kind) = self.list()?;
                (0..length).try_for_each(|_| self.skip_element(kind, depth + 1))
            }
            MAP => {
                let length = self.varint()?;
                if length == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..length).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth + 1)?;
                    self.skip_element(kinds & 15, depth + 1)
                })
            }
            STRUCT => self.fields(|thrift, _, kind| thrift.skip(kind, depth + 1)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two row groups: of a plain chunk and one with crypto metadata alone; of one with encrypted metadata.
    const FOOTER: [u8; 26] = [
        0x15, 2, // 1: version, i32
        0x39, 0x2c, // 4: two row groups
        0x19, 0x2c, // 1: two columns
        0x26, 8, 0, // 2: file offset; the end
        0x26, 8, 0x6c, 0x1c, 0, 0, 0,    // 8: a union of an empty struct
        0x00, // the end of the row group
        0x19, 0x1c, // 1: one column
        0x98, 2, 7, 7, 0, // 9: two bytes
        0x00, 0x00,
    ];

    #[test]
    fn encrypted_chunks_are_found_and_nothing_else() {
        assert_eq!(encrypted_chunks(&FOOTER), BTreeSet::from([(1, 0)]));
        for cut in 0..FOOTER.len() {
            assert!(encrypted_chunks(&FOOTER[..cut]).is_subset(&BTreeSet::from([(1, 0)])));
        }
    }

    #[test]
    fn nonsense_ends() {
        // Lists in lists without an end, and a list of 2^63 bytes in a few.
        assert!(encrypted_chunks(&[[0x59].as_slice(), &[0x19; 100_000]].concat()).is_empty());
        let long = [0x59, 0xf3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2];
        assert!(encrypted_chunks(&long).is_empty());
    }
}
