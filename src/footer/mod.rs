//! What a file says of itself: metadata and page index through the `parquet` crate, the Arrow schema, and the leaves.

mod encryption;
pub mod field;
pub mod leaf;
mod repair;
mod thrift;
mod types;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

use crate::error::{Error, Place, Result};
use crate::guard;
use crate::io::source::{Source, SourceReader};
pub use encryption::Encryption;
pub use field::{Field, ListKind};
pub use leaf::{Leaf, LeafDecode};

/// Bytes of the tail that are read before the footer's length is known. Most footers fit; a second request is made for
/// the others.
const SPECULATIVE_TAIL: u64 = 64 << 10;

/// What a file with an encrypted footer ends with, in place of `PAR1`.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// A parsed footer.
#[derive(Debug, Clone)]
pub struct Footer {
    /// Metadata and schema as arrow-rs holds them by default: without the page index, which changes how it reads.
    pub arrow: ArrowReaderMetadata,
    /// The metadata with the page index, when the file has one that can be read.
    pub page_index: Option<Arc<ParquetMetaData>>,
    /// Every leaf column, in file order.
    pub leaves: Arc<[Leaf]>,
    /// Every top-level field of the Arrow schema as a tree; `None` for those of which kernels decode no leaf.
    pub fields: Arc<[Option<Field>]>,
    /// Which column chunks are encrypted. A scan that needs none of them can do without a key.
    pub encryption: Arc<Encryption>,
    /// Fields of the footer, by their names in parquet.thrift, that were left out or changed since the `parquet` crate
    /// refuses them as they are.
    pub repaired: Arc<[&'static str]>,
    /// The file's length in bytes.
    pub file_bytes: u64,
}

impl Footer {
    /// Reads and parses the footer of `source`: one speculative read of the tail, a second when it was too short, and
    /// the page index where there is one. A broken page index is left out: nothing depends on it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what the parser refuses, a panic inside it included; [`Error::Unsupported`] for an
    /// encrypted footer, or one that keeps what it says of columns encrypted; [`Error::Io`].
    pub fn read(source: &Arc<Source>) -> Result<Self> {
        let file_bytes = source.len();
        let Parsed { metadata, encryption, repaired } = read_metadata(source)?;
        let with_index = read_page_index(source, &metadata);
        let arrow = guard::catch(|| ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::default()))
            .map_err(|error| Error::from_parquet(Place::default(), error))?;
        let (leaves, fields) = leaf::leaves(&arrow);
        Ok(Self {
            arrow,
            page_index: with_index,
            leaves,
            fields,
            encryption: Arc::new(encryption),
            repaired: repaired.into(),
            file_bytes,
        })
    }

    /// The same error, unless it finds damage in a chunk that is said to be encrypted: then that comes first.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let Error::Corrupt { place, message } = &error else { return error };
        let leaf = self.leaves.iter().position(|leaf| Some(&leaf.path) == place.column.as_ref());
        match place.row_group.zip(leaf) {
            Some(chunk) if self.encryption.stated.contains(&chunk) => {
                let message =
                    format!("the column is stated to be encrypted, and decryption is not supported: {message}");
                Error::unsupported(place.clone(), message)
            }
            _ => error,
        }
    }

    /// The metadata.
    pub fn metadata(&self) -> &Arc<ParquetMetaData> {
        self.arrow.metadata()
    }

    /// The Arrow schema that arrow-rs chooses, the `ARROW:schema` hint included.
    pub fn schema(&self) -> &SchemaRef {
        self.arrow.schema()
    }

    /// Data pages of a column chunk, when the offset index tells.
    pub fn data_pages(&self, row_group: usize, leaf: usize) -> Option<usize> {
        self.page_index.as_ref()?.page_index_for_row_group(row_group).num_data_pages(leaf)
    }
}

/// What is read of a footer.
struct Parsed {
    metadata: ParquetMetaData,
    encryption: Encryption,
    repaired: Vec<&'static str>,
}

/// Parses a footer that was refused, or a dictionary offset that cannot be, once more without what nothing depends on.
fn parse_repaired(file_metadata: &[u8]) -> Option<(ParquetMetaData, Vec<&'static str>)> {
    let (bytes, repaired) = repair::repair(file_metadata)?;
    let metadata = guard::catch(|| ParquetMetaDataReader::decode_metadata(&bytes)).ok()?;
    Some((metadata, repaired))
}

/// Whether a chunk has a dictionary where no page can be, which readers take for none.
fn has_impossible_dictionary(metadata: &ParquetMetaData) -> bool {
    let mut chunks = metadata.row_groups().iter().flat_map(|group| group.columns());
    chunks.any(|chunk| chunk.dictionary_page_offset().is_some_and(|offset| offset < 4))
}

fn read_metadata(source: &Source) -> Result<Parsed> {
    let file_bytes = source.len();
    let mut tail = file_bytes.min(SPECULATIVE_TAIL);
    loop {
        let mut bytes = vec![0; tail as usize];
        source.read_at(file_bytes - tail, &mut bytes)?;
        if bytes.ends_with(ENCRYPTED_MAGIC) {
            return Err(Error::unsupported(Place::default(), "the footer is encrypted; decryption is not supported"));
        }
        let bytes = Bytes::from(bytes);
        let parsed = guard::catch(|| {
            let mut reader = ParquetMetaDataReader::new();
            reader.try_parse_sized(&bytes, file_bytes)?;
            reader.finish()
        });
        match parsed {
            Ok(metadata) => {
                let encryption = encryption::encrypted_chunks(file_metadata(&bytes));
                let repaired = match has_impossible_dictionary(&metadata) {
                    true => parse_repaired(file_metadata(&bytes)),
                    false => None,
                };
                let (metadata, repaired) = repaired.unwrap_or((metadata, Vec::new()));
                return Ok(Parsed { metadata, encryption, repaired });
            }
            // It asks for more than it had, and never for more than the file, so this ends.
            Err(ParquetError::NeedMoreData(needed)) if tail < needed as u64 && needed as u64 <= file_bytes => {
                tail = needed as u64;
            }
            Err(error) => {
                if let Some((metadata, repaired)) = parse_repaired(file_metadata(&bytes)) {
                    return Ok(Parsed { metadata, encryption: Encryption::default(), repaired });
                }
                // Without their keys the metadata of encrypted columns is missing, which the parser takes for damage.
                return Err(match encryption::encrypted_chunks(file_metadata(&bytes)).certain.first() {
                    Some((row_group, leaf)) => {
                        let place = Place { row_group: Some(*row_group), ..Place::default() };
                        Error::unsupported(place, format!("column {leaf} is encrypted; decryption is not supported"))
                    }
                    None => Error::from_parquet(Place::default(), error),
                });
            }
        }
    }
}

/// The serialized `FileMetaData` of a file's tail: before its own length and the magic. Nothing, if it is not whole.
fn file_metadata(tail: &[u8]) -> &[u8] {
    let stated = |rest: &[u8], length: [u8; 4]| rest.len().checked_sub(u32::from_le_bytes(length) as usize);
    tail.len()
        .checked_sub(8)
        .and_then(|end| {
            let (rest, trailer) = tail.split_at(end);
            let start = stated(rest, [trailer[0], trailer[1], trailer[2], trailer[3]])?;
            Some(&rest[start..])
        })
        .unwrap_or_default()
}

fn read_page_index(source: &Arc<Source>, metadata: &ParquetMetaData) -> Option<Arc<ParquetMetaData>> {
    let has_index = |it: &parquet::file::metadata::ColumnChunkMetaData| it.offset_index_offset().is_some();
    if !metadata.row_groups().iter().flat_map(|it| it.columns()).any(has_index) {
        return None;
    }
    let read = guard::catch(|| {
        let mut reader = ParquetMetaDataReader::new_with_metadata(metadata.clone())
            .with_page_index_policy(PageIndexPolicy::Optional);
        reader.read_page_indexes(&SourceReader::new(source.clone()))?;
        reader.finish()
    });
    read.ok().filter(|it| it.page_index().is_some()).map(Arc::new)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn damage_in_a_column_that_is_said_to_be_encrypted_is_that() {
        let bytes = include_bytes!("../../testdata/orders.parquet");
        let mut footer = Footer::read(&Arc::new(Source::from_bytes("orders", Bytes::from_static(bytes)))).unwrap();
        let damaged = |leaf: &Leaf| Error::corrupt(Place::chunk(0, &leaf.path), "malformed page header");
        assert_eq!(footer.explain(damaged(&footer.leaves[1])).kind(), "corrupt");
        footer.encryption = Arc::new(Encryption { stated: [(0, 1)].into(), ..Encryption::default() });
        let error = footer.explain(damaged(&footer.leaves[1]));
        assert_eq!(error.place().unwrap().column.as_ref(), Some(&footer.leaves[1].path));
        assert!(error.kind() == "unsupported" && error.to_string().contains("encrypted"), "{error}");
        assert!(error.to_string().contains("malformed page header"), "{error}");
        assert_eq!(footer.explain(damaged(&footer.leaves[0])).kind(), "corrupt");
    }
}
