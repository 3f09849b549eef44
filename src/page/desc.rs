//! The page table on the host: the headers of each chunk, and where each page lies.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{Compression, Type};

use crate::error::{Error, Place};
use crate::kernels::abi;

/// In the place of a number of values: as many as the pages in the bytes hold.
pub const ALL_VALUES: u64 = u64::MAX;

/// A column chunk, or some pages of one, whose bytes are on the device.
#[derive(Debug, Clone)]
pub struct ChunkInput {
    /// Device address of its first byte: of the dictionary page, or else of the first data page.
    pub address: u64,
    /// Its bytes. Nothing outside them is read.
    pub bytes: u64,
    /// Where its first byte lies in the file.
    pub file_offset: u64,
    /// Values that its data pages hold, nulls included. For a column that does not repeat these are the rows of the row
    /// group, which is what arrow-rs goes by, whatever the footer's own count says. [`ALL_VALUES`]: nobody knows.
    pub num_values: u64,
    /// Rows that its pages hold: those of the row group, unless it is a part of a chunk.
    pub num_rows: u64,
    /// Its first row among all rows of the batch, selected or not.
    pub first_row: u64,
    /// Which page of its column chunk its first page is; not 0 for a part of a chunk.
    pub first_page: usize,
    /// Whether it goes on with the column chunk of the one before it, whose dictionary it shares.
    pub continues: bool,
    /// Row group in the file, for messages.
    pub row_group: usize,
    /// The leaf's dotted path, for messages.
    pub column: Arc<str>,
    /// How page bodies are compressed.
    pub codec: Compression,
    /// Physical type.
    pub physical_type: Type,
    /// Data pages, where an offset index tells; a guess is made otherwise. A wrong number costs a second launch.
    pub expected_pages: Option<usize>,
}

/// The pages of many chunks, by chunk and then in the order of the file. Index pages are not among them.
#[derive(Debug, Clone, Default)]
pub struct PageTable {
    chunks: Vec<ChunkInput>,
    /// The first page of each chunk, and after the last chunk the number of pages.
    first: Vec<usize>,
    headers: Vec<abi::PageHeader>,
    /// Where the plain body of a page lies that was decompressed elsewhere, by page; 0, or nothing at all: as stored.
    plain: Vec<u64>,
}

impl PageTable {
    /// A table of `headers`, of which chunk `i` has those from `first[i]` up to `first[i + 1]`.
    pub fn new(chunks: Vec<ChunkInput>, first: Vec<usize>, headers: Vec<abi::PageHeader>) -> Self {
        debug_assert_eq!(first.len(), chunks.len() + 1);
        debug_assert_eq!(first.last(), Some(&headers.len()));
        Self { chunks, first, headers, plain: Vec::new() }
    }

    /// The table of some of the chunks, by index, in the order given.
    pub fn select(&self, chunks: &[usize]) -> Self {
        let mut table = Self { first: vec![0], ..Self::default() };
        for &chunk in chunks {
            table.chunks.push(self.chunks[chunk].clone());
            table.headers.extend_from_slice(self.headers(chunk));
            table.plain.extend(self.pages(chunk).filter_map(|page| self.plain.get(page)));
            table.first.push(table.headers.len());
        }
        table
    }

    /// Enters that all pages of a chunk are plain now: those of `bodies`, by page, at these device addresses with as many
    /// bytes as their headers state, the others where and as they are stored. From then on the chunk is one that was
    /// never compressed.
    pub fn set_plain(&mut self, chunk: usize, bodies: impl IntoIterator<Item = (usize, u64)>) {
        self.chunks[chunk].codec = Compression::UNCOMPRESSED;
        self.plain.resize(self.headers.len(), 0);
        for (page, address) in bodies {
            debug_assert!(self.pages(chunk).contains(&page));
            let header = &mut self.headers[page];
            header.compressed_bytes = header.uncompressed_bytes;
            header.is_compressed = 0;
            self.plain[page] = address;
        }
    }

    /// The chunks, in the order in which they were given.
    pub fn chunks(&self) -> &[ChunkInput] {
        &self.chunks
    }

    /// Pages of all chunks.
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// The pages of a chunk, as indices into this table.
    pub fn pages(&self, chunk: usize) -> Range<usize> {
        self.first[chunk]..self.first[chunk + 1]
    }

    /// The header of a page.
    pub fn header(&self, page: usize) -> &abi::PageHeader {
        &self.headers[page]
    }

    /// The headers of a chunk.
    pub fn headers(&self, chunk: usize) -> &[abi::PageHeader] {
        &self.headers[self.pages(chunk)]
    }

    /// The chunk of a page.
    pub fn chunk_of(&self, page: usize) -> usize {
        // Chunks without pages share their first page with the next; the last of those that start here has pages.
        self.first.partition_point(|first| *first <= page) - 1
    }

    /// Where a page lies in the file: its row group, column, ordinal, and the offset of its header.
    pub fn place(&self, page: usize) -> Place {
        let at = self.chunk_of(page);
        let chunk = &self.chunks[at];
        Place::chunk(chunk.row_group, &*chunk.column)
            .with_page(chunk.first_page + page - self.first[at])
            .with_offset(chunk.file_offset.saturating_add(self.headers[page].header_offset))
    }

    /// The pages for the kernels, as far as their headers tell:
    ///
    /// - `source` and `source_bytes` as stored; `body` and `body_bytes` are the same until
    ///   [`decompress::place`](crate::decompress::place) has placed the compressed ones;
    /// - `first_row`: values of the chunk's data pages before it, to which the chunk's first row in the batch is added;
    /// - `dictionary`: index in this table of the dictionary page that comes last before a data page, or
    ///   [`abi::NONE`];
    /// - `column`: index of its chunk; `entries`: 0.
    pub fn describe(&self) -> Vec<abi::Page> {
        let mut pages = Vec::with_capacity(self.len());
        let mut dictionary = abi::NONE;
        for (index, chunk) in self.chunks.iter().enumerate() {
            let mut rows = 0;
            if !chunk.continues {
                dictionary = abi::NONE;
            }
            for (page, header) in self.pages(index).zip(self.headers(index)) {
                let source = match self.plain.get(page) {
                    None | Some(0) => chunk.address + header.body_offset,
                    Some(address) => *address,
                };
                let is_dictionary = header.kind == abi::page_kind::DICTIONARY;
                pages.push(abi::Page {
                    source,
                    body: source,
                    first_row: if is_dictionary { 0 } else { rows },
                    source_bytes: header.compressed_bytes,
                    body_bytes: header.compressed_bytes,
                    num_values: header.num_values,
                    def_bytes: header.def_bytes,
                    rep_bytes: header.rep_bytes,
                    column: index as u32,
                    dictionary: if is_dictionary { abi::NONE } else { dictionary },
                    kind: header.kind,
                    encoding: header.encoding,
                    def_encoding: header.def_encoding,
                    rep_encoding: header.rep_encoding,
                    ..abi::Page::default()
                });
                if is_dictionary {
                    dictionary = page as u32;
                } else {
                    rows += u64::from(header.num_values);
                }
            }
        }
        pages
    }

    /// The error behind a fault word of a launch over the pages of this table; `None`: no fault.
    pub fn fault(&self, word: u64) -> Option<Error> {
        if word == u64::MAX {
            return None;
        }
        let (page, offset, kind) = ((word >> 36) as usize, (word >> 8) & ((1 << 28) - 1), (word & 0xff) as u32);
        if page >= self.len() {
            return Some(Error::corrupt(Place::default(), abi::fault_message(kind)));
        }
        let header = &self.headers[page];
        let chunk = &self.chunks[self.chunk_of(page)];
        // A place in a compressed page is a place in the file. Later kernels count in the plain page.
        Some(match kind {
            abi::fault::DECOMPRESS | abi::fault::DECOMPRESSED_LENGTH => {
                let at = chunk.file_offset.saturating_add(header.body_offset).saturating_add(offset);
                Error::corrupt(self.place(page).with_offset(at), abi::fault_message(kind))
            }
            abi::fault::CRC => Error::corrupt(self.place(page), abi::fault_message(kind)),
            _ => Error::corrupt(
                self.place(page),
                format!("{}, at byte {offset} of the plain page", abi::fault_message(kind)),
            ),
        })
    }
}
