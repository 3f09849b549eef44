//! From the page table to work lists: which rows a page holds, which dictionary it uses, what has to be done with it.

use parquet::basic::Type as PhysicalType;

use super::delta::{self, Expand};
use super::nested::Shapes;
use super::{Request, decimals, fixed};
use crate::error::{Error, Place, Result};
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{self, NONE, PageHeader, StringRef, column_flag, encoding, page_kind};

/// Pages as kernels see them, and page indices by what has to be done with them.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Every page of the table. `entries` is an offset until [`place_entries`](Self::place_entries).
    pub(super) pages: Vec<abi::Page>,
    /// Whether each column needs more than validity bits from its levels.
    pub(super) is_shaped: Vec<bool>,
    /// Data pages that hold values: of flat columns, of shaped ones; and of both, of fixed-width values, of byte arrays, which are
    /// strings or decimals.
    pub(super) flat: Vec<u32>,
    pub(super) shaped: Vec<u32>,
    /// Where rows are selected: the shaped pages of each chunk.
    pub(super) runs: Vec<abi::PageRun>,
    pub(super) fixed: Vec<u32>,
    pub(super) byte_arrays: Vec<u32>,
    pub(super) decimals: Vec<u32>,
    pub(super) string_dictionaries: Vec<u32>,
    /// Bytes of the entries of string dictionaries.
    pub(super) entry_bytes: u64,
    /// Pages that are expanded first.
    pub(super) expand: Expand,
}

/// Slots of a page that one block decodes. Fewer keep more of a GPU busy with few pages; but where values have to be counted
/// or runs to be passed over from the page's start, each part does so again.
const PART_SLOTS: u32 = 8192;

/// Why no kernel decodes this page, although the footer promised otherwise; `None` when one does.
pub fn unsupported(leaf: &Leaf, header: &PageHeader) -> Option<&'static str> {
    let boolean = leaf.physical == PhysicalType::BOOLEAN;
    let dictionary_encoded = is_dictionary_encoded(header);
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
        page_kind::DATA_V1
            if leaf.max_rep > 0 && !matches!(header.rep_encoding, encoding::RLE | encoding::BIT_PACKED) =>
        {
            Some("the encoding of repetition levels")
        }
        page_kind::DATA_V1 | page_kind::DATA_V2 => match header.encoding {
            encoding::PLAIN => None,
            encoding::RLE if boolean => None,
            _ if dictionary_encoded && boolean => Some("dictionary-encoded booleans"),
            _ if dictionary_encoded => None,
            other if delta::decodes(other, leaf) => None,
            _ => Some("the encoding of a data page"),
        },
        _ => Some("the kind of a page"),
    }
}

pub(super) fn is_dictionary_encoded(header: &PageHeader) -> bool {
    is_dictionary_encoding(header.encoding)
}

pub(super) fn is_dictionary_encoding(encoding: u8) -> bool {
    matches!(encoding, encoding::PLAIN_DICTIONARY | encoding::RLE_DICTIONARY)
}

impl Work {
    /// Sorts the pages of a batch, `pages`, whose bodies have been placed.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when headers contradict each other, [`Error::Unsupported`] for a page that no kernel decodes,
    /// [`Error::Argument`] when the chunks do not make up the rows of the batch.
    pub(super) fn new(request: &Request<'_>, shapes: &Shapes, pages: Vec<abi::Page>) -> Result<Self> {
        for leaf in request.leaves {
            if let Some(reason) = not_decodable(&leaf.decode) {
                let place = Place { column: Some(leaf.path.clone()), ..Place::default() };
                return Err(Error::unsupported(place, format!("{reason} on the GPU")));
            }
        }
        if request.columns.len() != request.table.chunks().len() {
            return Err(Error::Argument("a column for each chunk of the page table".into()));
        }
        let is_shaped = (0..request.leaves.len()).map(|column| shapes.is_shaped(request, column)).collect();
        let mut work = Self { pages, is_shaped, ..Self::default() };
        let mut next_rows = vec![0u64; request.leaves.len()];
        for (chunk, &column) in request.columns.iter().enumerate() {
            let (Some(leaf), Some(next_row)) = (request.leaves.get(column), next_rows.get_mut(column)) else {
                return Err(Error::Argument(format!("chunk {chunk} belongs to column {column}, which is not there")));
            };
            let mut is_first = true;
            let before = work.shaped.len() as u32;
            for index in request.table.pages(chunk) {
                let data = work.add(request, leaf, column, index, next_row)?;
                work.pages[index].is_first = (data && is_first).into();
                is_first &= !data;
            }
            if request.selected.is_some() {
                let first_row = request.table.chunks()[chunk].first_row;
                work.runs.push(abi::PageRun { first_row, first: before, end: work.shaped.len() as u32 });
            }
        }
        for ((leaf, rows), is_shaped) in request.leaves.iter().zip(next_rows).zip(&work.is_shaped) {
            // How many rows the levels of the others make is counted on the device.
            if rows != request.rows && !is_shaped {
                let message = format!("column {} has {rows} rows and its batch {}", leaf.path, request.rows);
                return Err(Error::Argument(message));
            }
        }
        Ok(work)
    }

    /// Enters a page; whether it is a data page with values.
    fn add(
        &mut self,
        request: &Request<'_>,
        leaf: &Leaf,
        column: usize,
        index: usize,
        next_row: &mut u64,
    ) -> Result<bool> {
        let header = request.table.header(index);
        let corrupt = |message: &str| Err(Error::corrupt(request.table.place(index), message));
        if let Some(reason) = unsupported(leaf, header) {
            return Err(Error::unsupported(request.table.place(index), format!("{reason} on the GPU")));
        }
        // Thrift's integers are 32-bit and signed; kernels count in unsigned ones and step past the end.
        if header.num_values > i32::MAX as u32 {
            return corrupt("a page header states more than 2^31 values");
        }
        let page = &mut self.pages[index];
        page.column = column as u32;
        page.stated_values = header.num_values;
        if header.kind == page_kind::DICTIONARY {
            match leaf.decode.values() {
                LeafDecode::Strings { .. } | LeafDecode::Decimals { .. } => {
                    let entries = most_entries(page);
                    page.entries = self.entry_bytes;
                    self.entry_bytes += u64::from(entries) * size_of::<StringRef>() as u64;
                    self.string_dictionaries.push(index as u32);
                }
                LeafDecode::Fixed { in_width, .. } => {
                    if u64::from(header.num_values) * u64::from(*in_width) > u64::from(page.body_bytes) {
                        return corrupt("a dictionary page is too short for its values");
                    }
                }
                LeafDecode::Dictionary { .. } | LeafDecode::Levels | LeafDecode::Cpu(_) => {}
            }
            return Ok(false);
        }
        if header.kind == page_kind::DATA_V2 {
            let Some(stated) = header.num_values.checked_sub(header.num_nulls) else {
                return corrupt("a page header states more nulls than values");
            };
            page.stated_values = stated;
        }
        if header.num_values == 0 {
            return Ok(false);
        }
        if !is_dictionary_encoded(header) {
            page.dictionary = NONE;
        } else if page.dictionary == NONE {
            return corrupt("a dictionary-encoded page without a dictionary");
        }
        if self.is_shaped[column] {
            page.first_row = 0;
            self.shaped.push(index as u32);
        } else {
            page.first_row = *next_row;
            *next_row += u64::from(header.num_values);
            if *next_row > request.rows {
                return corrupt("pages hold more values than the batch has rows");
            }
            self.flat.push(index as u32);
        }
        self.expand.enter(leaf, &mut self.pages[index], index as u32);
        self.enter_values(&leaf.decode, index as u32);
        Ok(true)
    }

    /// Enters a data page of a column that is decoded so into the lists of those whose values are decoded.
    pub(super) fn enter_values(&mut self, decode: &LeafDecode, index: u32) {
        match decode {
            LeafDecode::Decimals { .. } => self.decimals.push(index),
            LeafDecode::Fixed { .. } => self.fixed.push(index),
            LeafDecode::Strings { .. } | LeafDecode::Dictionary { .. } | LeafDecode::Levels | LeafDecode::Cpu(_) => {}
        }
        if decode.is_byte_array() {
            self.byte_arrays.push(index);
        }
    }

    /// Divides pages so that no block has many more than [`PART_SLOTS`] slots to work on.
    pub(super) fn parts(&self, pages: &[u32]) -> Vec<abi::PagePart> {
        pages.iter().flat_map(|page| self.parts_with(*page, NONE)).collect()
    }

    /// The parts of a page, with another that belongs to it.
    pub(super) fn parts_with(&self, page: u32, other: u32) -> impl Iterator<Item = abi::PagePart> + use<> {
        let page_of = &self.pages[page as usize];
        let values = match page_of.kind {
            page_kind::DICTIONARY => most_entries(page_of),
            _ => page_of.num_values,
        };
        let parts = values.div_ceil(PART_SLOTS).max(1);
        (0..parts).map(move |part| abi::PagePart { page, part, parts, other })
    }

    /// Turns offsets of dictionary entries into addresses, once their memory is there.
    pub(super) fn place_entries(&mut self, address: u64) {
        for &index in &self.string_dictionaries {
            self.pages[index as usize].entries += address;
        }
    }
}

/// The column that a kernel sees, without addresses.
pub(super) fn column(leaf: &Leaf, rows: u64, selected: bool) -> abi::Column {
    let (max_def, max_rep) = (leaf.max_def, leaf.max_rep);
    let mut column = abi::Column { rows, factor: 1, max_def, max_rep, ..abi::Column::default() };
    if selected {
        column.flags |= column_flag::SELECTED;
    }
    if leaf.physical == PhysicalType::FIXED_LEN_BYTE_ARRAY {
        column.flags |= column_flag::FIXED_LEN;
    }
    match leaf.decode {
        LeafDecode::Fixed { conversion, factor, in_width, out_width } => {
            column = abi::Column { conversion, factor, in_width, out_width, ..column };
        }
        LeafDecode::Strings { offset_width, .. } => column.out_width = offset_width,
        LeafDecode::Decimals { out_width } => column.out_width = out_width,
        LeafDecode::Dictionary { key_width, ref values, .. } => {
            column.out_width = key_width;
            // The width of what pages without a dictionary are expanded to, before their values become entries.
            if let LeafDecode::Fixed { in_width, .. } = **values {
                column.in_width = in_width;
            }
        }
        LeafDecode::Levels | LeafDecode::Cpu(_) => {}
    }
    column
}

/// Entries of a dictionary page of byte arrays: each takes at least its length's four bytes, whatever the header claims.
fn most_entries(page: &abi::Page) -> u32 {
    page.num_values.min(page.body_bytes / 4)
}

fn not_decodable(decode: &LeafDecode) -> Option<&'static str> {
    match *decode {
        LeafDecode::Fixed { conversion, factor, in_width, out_width } => {
            (!fixed::is_sound(conversion, factor, in_width, out_width)).then_some("this conversion")
        }
        LeafDecode::Strings { offset_width: 4, .. } | LeafDecode::Strings { offset_width: 8, view: false, .. } => None,
        LeafDecode::Strings { .. } => Some("this width of offsets"),
        LeafDecode::Decimals { out_width } => (!decimals::is_sound(out_width)).then_some("this width of decimals"),
        LeafDecode::Levels => None,
        LeafDecode::Dictionary { key_width: 1 | 2 | 4 | 8, ref values, .. } => match **values {
            LeafDecode::Fixed { .. } | LeafDecode::Strings { .. } => not_decodable(values),
            _ => Some("a dictionary of such values"),
        },
        LeafDecode::Dictionary { .. } => Some("this width of keys"),
        LeafDecode::Cpu(reason) => Some(reason),
    }
}
