//! Which column chunks are encrypted in a file whose footer is not.
//!
//! The `parquet` crate skips what the footer says of that when it is built without decryption, and then takes encrypted
//! pages for damaged ones.
//!
//! A chunk counts as encrypted when the footer keeps a copy of its metadata encrypted with the column's own key. Crypto
//! metadata alone does not tell: files exist that state it beside plain pages, and arrow-rs reads them. Where such a
//! chunk turns out not to be readable, it may be since it is encrypted with the footer's key, and the error says so.

use std::collections::BTreeSet;

use super::thrift::{LIST, Thrift};

// Fields of parquet.thrift.
const FILE_ROW_GROUPS: i64 = 4;
const ROW_GROUP_COLUMNS: i64 = 1;
const COLUMN_CRYPTO_METADATA: i64 = 8;
const COLUMN_ENCRYPTED_METADATA: i64 = 9;

/// Column chunks, as row group and leaf.
type Chunks = BTreeSet<(usize, usize)>;

/// What a footer says of encryption.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encryption {
    /// Chunks that are encrypted.
    pub certain: Chunks,
    /// Chunks that may be: they have crypto metadata and nothing else.
    pub stated: Chunks,
}

/// The encrypted chunks of a serialized `FileMetaData`. What cannot be read says nothing: that is for the parser to refuse.
pub(super) fn encrypted_chunks(file_metadata: &[u8]) -> Encryption {
    let mut found = Encryption::default();
    let mut thrift = Thrift::new(file_metadata);
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
                        match field {
                            COLUMN_CRYPTO_METADATA => found.stated.insert((row_group, leaf)),
                            COLUMN_ENCRYPTED_METADATA => found.certain.insert((row_group, leaf)),
                            _ => false,
                        };
                        thrift.skip(kind, 5)
                    })
                })
            })
        })
    });
    found
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
        let all = encrypted_chunks(&FOOTER);
        assert_eq!(all, Encryption { certain: BTreeSet::from([(1, 0)]), stated: BTreeSet::from([(0, 1)]) });
        for cut in 0..FOOTER.len() {
            let some = encrypted_chunks(&FOOTER[..cut]);
            assert!(some.certain.is_subset(&all.certain) && some.stated.is_subset(&all.stated));
        }
    }

    #[test]
    fn nonsense_ends() {
        // Lists in lists without an end, and a list of 2^63 bytes in a few.
        assert_eq!(encrypted_chunks(&[[0x59].as_slice(), &[0x19; 100_000]].concat()), Encryption::default());
        let long = [0x59, 0xf3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2];
        assert_eq!(encrypted_chunks(&long), Encryption::default());
    }
}
