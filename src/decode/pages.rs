//! From page headers to the page table: where each page's plain body lies, which rows it holds, which dictionary it uses.

use parquet::basic::{Compression, Type as PhysicalType};

use super::fixed;
use crate::error::{Error, Place, Result};
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{self, NONE, PageHeader, StringRef, column_flag, encoding, page_kind};

/// Page indices have 28 bits in a fault word.
const MAX_PAGES: usize = 1 << 28;

/// Bytes of plain data that one byte of Snappy can stand for: its densest element copies 64 bytes and takes 3.
const SNAPPY_RATIO: u64 = 22;

/// Plain bodies start at multiples of this, so that values load as whole words.
const BODY_ALIGN: u64 = 16;

/// The pages of one column chunk, as its headers tell.
#[derive(Debug, Clone, Copy)]
pub struct ChunkPages<'a> {
    /// Row group in the file.
    pub row_group: usize,
    /// Index among the leaves of the batch.
    pub column: usize,
    /// Rows of the row group.
    pub rows: u64,
    /// Device address of the chunk's first byte.
    pub address: u64,
    /// Bytes of the chunk.
    pub bytes: u64,
    /// Offset of the chunk's first byte in the file.
    pub file_offset: u64,
    /// Its codec: uncompressed or Snappy.
    pub compression: Compression,
    /// Its page headers, in file order.
    pub headers: &'a [PageHeader],
}

/// Where a page came from, for errors.
#[derive(Debug, Clone, Copy)]
struct Origin {
    row_group: u32,
    ordinal: u32,
    /// Of the body as stored.
    file_offset: u64,
}

/// The page table of a batch, on the host.
#[derive(Debug)]
pub struct Pages<'a> {
    pub(super) leaves: &'a [&'a Leaf],
    pub(super) rows: u64,
    /// `body` is an offset in the memory for plain bodies for those in `compressed`, else an address; `entries` is an
    /// offset in the memory for dictionary entries.
    pub(super) pages: Vec<abi::Page>,
    pub(super) work: Work,
    /// Bytes of plain bodies that decompression makes.
    pub(super) plain_bytes: u64,
    /// Bytes of the entries of string dictionaries.
    pub(super) entry_bytes: u64,
    origins: Vec<Origin>,
    next_rows: Vec<u64>,
}

/// Page indices by what has to be done with them. Pages without values appear nowhere.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) compressed: Vec<u32>,
    pub(super) data: Vec<u32>,
    pub(super) string_dictionaries: Vec<u32>,
    pub(super) fixed: Vec<u32>,
    pub(super) strings: Vec<u32>,
}

/// Why no kernel decodes this page, although the footer promised otherwise; `None` when one does.
pub fn unsupported(leaf: &Leaf, header: &PageHeader) -> Option<&'static str> {
    let boolean = leaf.physical == PhysicalType::BOOLEAN;
    let dictionary_encoded = matches!(header.encoding, encoding::PLAIN_DICTIONARY | encoding::RLE_DICTIONARY);
    match header.kind {
        page_kind::INDEX => None,
        page_kind::DICTIONARY if boolean => Some("a dictionary of booleans"),
        page_kind::DICTIONARY if header.encoding != encoding::PLAIN && !dictionary_encoded => {
            Some("the encoding of a dictionary page")
        }
        page_kind::DICTIONARY if leaf.physical == PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            let bytes = u64::from(header.num_values) * u64::from(leaf.type_length);
            (bytes != u64::from(header.uncompressed_bytes))
                .then_some("a dictionary of length-prefixed fixed-length values")
        }
        page_kind::DICTIONARY => None,
        page_kind::DATA_V1
            if leaf.max_def > 0 && !matches!(header.def_encoding, encoding::RLE | encoding::BIT_PACKED) =>
        {
            Some("the encoding of definition levels")
        }
        page_kind::DATA_V1 | page_kind::DATA_V2 => match header.encoding {
            encoding::PLAIN => None,
            encoding::RLE if boolean => None,
            _ if dictionary_encoded && boolean => Some("dictionary-encoded booleans"),
            _ if dictionary_encoded => None,
            _ => Some("the encoding of a data page"),
        },
        _ => Some("the kind of a page"),
    }
}

impl<'a> Pages<'a> {
    /// An empty table for a batch of `rows` rows. The arrays come out in the order of `leaves`.
    pub fn new(leaves: &'a [&'a Leaf], rows: u64) -> Self {
        Self {
            leaves,
            rows,
            pages: Vec::new(),
            work: Work::default(),
            plain_bytes: 0,
            entry_bytes: 0,
            origins: Vec::new(),
            next_rows: vec![0; leaves.len()],
        }
    }

    /// Adds a chunk. Chunks of one column come in the order of their rows. No page may be [`unsupported`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the headers contradict the chunk, the row group or each other.
    pub fn push(&mut self, chunk: &ChunkPages<'_>) -> Result<()> {
        let leaf = self.leaves[chunk.column];
        let mut dictionary = None;
        let mut rows = 0u64;
        for (ordinal, header) in chunk.headers.iter().enumerate() {
            let place = || {
                Place::chunk(chunk.row_group, &leaf.path)
                    .with_page(ordinal)
                    .with_offset(chunk.file_offset.saturating_add(header.header_offset))
            };
            let corrupt = |message: &str| Error::corrupt(place(), message);
            if header.body_offset.checked_add(header.compressed_bytes.into()).is_none_or(|end| end > chunk.bytes) {
                return Err(corrupt("a page body runs past the column chunk"));
            }
            if header.kind == page_kind::INDEX || (header.kind != page_kind::DICTIONARY && header.num_values == 0) {
                continue;
            }
            if let Some(reason) = unsupported(leaf, header) {
                return Err(Error::unsupported(place(), format!("{reason} on the GPU")));
            }
            let page = self.place(chunk, header).map_err(corrupt)?;
            if header.kind == page_kind::DICTIONARY {
                let replaces = matches!(leaf.physical, PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY);
                if dictionary.is_some() && !replaces {
                    return Err(corrupt("a column chunk has more than one dictionary"));
                }
                dictionary = Some(self.push_dictionary(leaf, page).map_err(corrupt)?);
            } else {
                let dictionary_encoded =
                    matches!(header.encoding, encoding::PLAIN_DICTIONARY | encoding::RLE_DICTIONARY);
                if dictionary_encoded && dictionary.is_none() {
                    return Err(corrupt("a dictionary-encoded page without a dictionary"));
                }
                rows += u64::from(header.num_values);
                if rows > chunk.rows {
                    return Err(corrupt(&format!("pages hold more values than the row group's {} rows", chunk.rows)));
                }
                let first_row = self.next_rows[chunk.column] + rows - u64::from(header.num_values);
                let dictionary = dictionary.filter(|_| dictionary_encoded).unwrap_or(NONE);
                self.push_data(leaf, abi::Page { first_row, dictionary, ..page });
            }
            if self.pages.len() > MAX_PAGES {
                return Err(Error::unsupported(
                    place(),
                    "more pages than one batch can hold: read fewer rows at a time",
                ));
            }
            self.origins.push(Origin {
                row_group: chunk.row_group as u32,
                ordinal: ordinal as u32,
                file_offset: chunk.file_offset.saturating_add(header.body_offset),
            });
        }
        if rows != chunk.rows {
            let message = format!("pages hold {rows} values, the row group has {} rows", chunk.rows);
            return Err(Error::corrupt(Place::chunk(chunk.row_group, &leaf.path), message));
        }
        self.next_rows[chunk.column] += rows;
        if self.next_rows[chunk.column] > self.rows {
            return Err(Error::Argument(format!("column {} has more rows than its batch", leaf.path)));
        }
        Ok(())
    }

    /// A page with its body placed: where it is when it is plain already, else in the memory for plain bodies.
    fn place(&mut self, chunk: &ChunkPages<'_>, header: &PageHeader) -> Result<abi::Page, &'static str> {
        let source = chunk.address.checked_add(header.body_offset).ok_or("a page body runs past the column chunk")?;
        let is_compressed = match chunk.compression {
            Compression::UNCOMPRESSED => false,
            Compression::SNAPPY => header.is_compressed != 0 || header.kind != page_kind::DATA_V2,
            _ => return Err("a codec that no kernel decompresses"),
        };
        let plain_bytes = if is_compressed { header.uncompressed_bytes } else { header.compressed_bytes };
        let level_bytes = match header.kind {
            page_kind::DATA_V2 => u64::from(header.def_bytes) + u64::from(header.rep_bytes),
            _ => 0,
        };
        if level_bytes > u64::from(header.uncompressed_bytes) || level_bytes > u64::from(header.compressed_bytes) {
            return Err("level bytes run past the page");
        }
        if header.kind == page_kind::DATA_V2 && header.num_nulls > header.num_values {
            return Err("a page header states more nulls than values");
        }
        let mut page = abi::Page {
            source,
            body: source,
            source_bytes: header.compressed_bytes,
            body_bytes: plain_bytes,
            num_values: header.num_values,
            def_bytes: header.def_bytes,
            rep_bytes: header.rep_bytes,
            column: chunk.column as u32,
            dictionary: NONE,
            stated_values: match header.kind {
                page_kind::DATA_V2 => header.num_values - header.num_nulls,
                _ => header.num_values,
            },
            kind: header.kind,
            encoding: header.encoding,
            def_encoding: header.def_encoding,
            ..abi::Page::default()
        };
        if is_compressed && plain_bytes > 0 {
            let stored = u64::from(header.compressed_bytes) - level_bytes;
            // Before memory of that size is asked for.
            if u64::from(plain_bytes) - level_bytes > stored * SNAPPY_RATIO {
                return Err("a page does not decompress to the length that its header states");
            }
            page.body = self.plain_bytes;
            self.plain_bytes = (self.plain_bytes + u64::from(plain_bytes)).next_multiple_of(BODY_ALIGN);
            self.work.compressed.push(self.pages.len() as u32);
        }
        Ok(page)
    }

    fn push_dictionary(&mut self, leaf: &Leaf, mut page: abi::Page) -> Result<u32, &'static str> {
        let index = self.pages.len() as u32;
        match leaf.decode {
            LeafDecode::Strings { .. } => {
                // An entry takes at least its length's four bytes, whatever the header claims.
                let entries = u64::from(page.num_values.min(page.body_bytes / 4));
                page.entries = self.entry_bytes;
                self.entry_bytes += entries * size_of::<StringRef>() as u64;
                self.work.string_dictionaries.push(index);
            }
            LeafDecode::Fixed { in_width, .. } => {
                if u64::from(page.num_values) * u64::from(in_width) > u64::from(page.body_bytes) {
                    return Err("a dictionary page is too short for its values");
                }
            }
            LeafDecode::Cpu(reason) => return Err(reason),
        }
        self.pages.push(page);
        Ok(index)
    }

    fn push_data(&mut self, leaf: &Leaf, page: abi::Page) {
        let index = self.pages.len() as u32;
        self.work.data.push(index);
        match leaf.decode {
            LeafDecode::Strings { .. } => self.work.strings.push(index),
            _ => self.work.fixed.push(index),
        }
        self.pages.push(page);
    }

    /// Checks that every column is complete and that kernels can decode it.
    pub(super) fn check(&self) -> Result<()> {
        for (leaf, rows) in self.leaves.iter().zip(&self.next_rows) {
            if *rows != self.rows {
                let message = format!("column {} has {rows} rows, its batch {}", leaf.path, self.rows);
                return Err(Error::Argument(message));
            }
            if let Some(reason) = not_decodable(leaf) {
                let place = Place { column: Some(leaf.path.clone()), ..Place::default() };
                return Err(Error::unsupported(place, format!("{reason} on the GPU")));
            }
        }
        Ok(())
    }

    /// The column that a kernel sees, without addresses.
    pub(super) fn column(&self, index: usize) -> abi::Column {
        let leaf = self.leaves[index];
        let mut column = abi::Column { rows: self.rows, factor: 1, max_def: leaf.max_def, ..abi::Column::default() };
        if leaf.physical == PhysicalType::FIXED_LEN_BYTE_ARRAY {
            column.flags |= column_flag::FIXED_LEN;
        }
        match leaf.decode {
            LeafDecode::Fixed { conversion, factor, in_width, out_width } => {
                column = abi::Column { conversion, factor, in_width, out_width, ..column };
            }
            LeafDecode::Strings { offset_width, .. } => column.out_width = offset_width,
            LeafDecode::Cpu(_) => {}
        }
        column
    }

    /// What a fault word says, as an error; `None` when it says that there was none.
    pub(super) fn fault(&self, word: u64) -> Option<Error> {
        if word == u64::MAX {
            return None;
        }
        let message = abi::fault_message((word & 0xff) as u32);
        let offset = (word >> 8) & ((1 << 28) - 1);
        let index = (word >> 36) as usize;
        let (Some(page), Some(origin)) = (self.pages.get(index), self.origins.get(index)) else {
            return Some(Error::corrupt(Place::default(), message));
        };
        let place = Place::chunk(origin.row_group as usize, &self.leaves[page.column as usize].path)
            .with_page(origin.ordinal as usize);
        Some(if self.work.compressed.binary_search(&(index as u32)).is_ok() {
            let message = format!("{message}, at byte {offset} of the plain page");
            Error::corrupt(place.with_offset(origin.file_offset), message)
        } else {
            Error::corrupt(place.with_offset(origin.file_offset.saturating_add(offset)), message)
        })
    }
}

fn not_decodable(leaf: &Leaf) -> Option<&'static str> {
    if leaf.max_rep > 0 || leaf.max_def > 1 {
        return Some("nested columns");
    }
    match leaf.decode {
        LeafDecode::Fixed { conversion, factor, in_width, out_width } => {
            (!fixed::is_sound(conversion, factor, in_width, out_width)).then_some("this conversion")
        }
        LeafDecode::Strings { offset_width: 4 | 8, .. } => None,
        LeafDecode::Strings { .. } => Some("this width of offsets"),
        LeafDecode::Cpu(reason) => Some(reason),
    }
}
