//! Device memory that the footer lets us expect, and where batches are cut.

use arrow::datatypes::DataType;
use parquet::basic::{Compression, Encoding, Type as PhysicalType};

use super::ChunkPlan;
use super::ranges::EDGE;
use crate::error::{Error, Result};
use crate::footer::{Footer, Leaf, LeafDecode};
use crate::options::ReadOptions;

/// Bytes of a `StringRef` for each row of a string column while it is decoded.
const STRING_REF: u64 = 16;

/// Bytes of a view in an array of views.
const VIEW: u64 = 16;

/// Bytes of a list's offset; large lists have twice as many, and seldom one for each place.
const OFFSET: u64 = 4;

/// Bytes that a buffer takes beside what it holds: its padding and what the allocator rounds up to.
const BUFFER: u64 = 256;

/// Bytes for each page: its header, descriptor, state and places in work lists.
const PAGE: u64 = 56 + 184;

/// Bytes for each page and level of a column below lists or structs: counts of slots, and the slots before the page.
const PAGE_LEVEL: u64 = 24;

/// Bytes of a page when nothing tells; `page::header` guesses the same.
const GUESSED_PAGE: u64 = 16 << 10;

/// What one row group adds to a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) rows: u64,
    /// Device memory: chunks as stored, plain bodies, page table, references and arrays.
    pub(super) memory: u64,
    /// The most bytes that one column with 32-bit offsets gets.
    pub(super) strings: u64,
}

/// Estimates a row group from its footer. A column whose strings repeat through a dictionary can grow beyond the
/// estimate where the footer does not state `unencoded_byte_array_data_bytes`; the allocator enforces the budget.
///
/// Sizes that a footer invents saturate instead of wrapping around.
pub(super) fn cost(
    footer: &Footer,
    row_group: usize,
    rows: u64,
    leaves: &[usize],
    on_cpu: impl Fn(usize) -> bool,
) -> Cost {
    let group = footer.metadata().row_group(row_group);
    let mut cost = Cost { rows, ..Cost::default() };
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    for &index in leaves {
        let leaf = &footer.leaves[index];
        let chunk = group.column(index);
        let stored = unsigned(chunk.compressed_size()).min(footer.file_bytes);
        let plain = unsigned(chunk.uncompressed_size());
        let text = chunk.unencoded_byte_array_data_bytes().map_or(plain, unsigned);
        let bits = rows.div_ceil(8);
        let mut add = |bytes: u64| cost.memory = cost.memory.saturating_add(bytes);
        // Wider offsets and decimals have no such limit.
        let is_wide =
            matches!(leaf.decode.values(), LeafDecode::Strings { offset_width: 8, .. } | LeafDecode::Decimals { .. });
        if leaf.physical == PhysicalType::BYTE_ARRAY && !is_wide {
            cost.strings = cost.strings.max(text);
        }
        if on_cpu(index) {
            // The arrays of arrow-rs, copied over. A dictionary can make them larger than what is stored: one value in
            // every place, which in nested columns are more than the rows.
            let places = if leaf.max_rep > 0 { rows.max(unsigned(chunk.num_values())) } else { rows };
            add(text.max(plain).saturating_add(places.saturating_mul(width_on_cpu(leaf))));
            continue;
        }
        // Places of its levels. Each is a slot of the array, or of a list above it that has no element there.
        let (rows, bits) = match leaf.max_rep {
            0 => (rows, bits),
            _ => {
                let places = rows.max(unsigned(chunk.num_values()));
                cost.strings = cost.strings.max(places); // lists have offsets of 32 bits, too
                (places, places.div_ceil(8))
            }
        };
        if leaf.max_rep > 0 || leaf.max_def > 1 {
            let nodes = u64::from(leaf.max_def);
            add(rows.saturating_mul(2)); // a byte for each level
            add(nodes.saturating_mul(bits.saturating_add(BUFFER)));
            add(u64::from(leaf.max_rep).saturating_mul(rows.saturating_mul(OFFSET).saturating_add(BUFFER)));
        }
        add(stored.saturating_add(2 * EDGE)); // widened at both ends
        if chunk.compression() != Compression::UNCOMPRESSED {
            add(plain);
        }
        let expanded = |it: &Encoding| {
            use Encoding as E;
            matches!(
                it,
                E::DELTA_BINARY_PACKED | E::DELTA_LENGTH_BYTE_ARRAY | E::DELTA_BYTE_ARRAY | E::BYTE_STREAM_SPLIT
            )
        };
        if chunk.encodings().any(|it| expanded(&it)) {
            // Plain values, or references and, where they are put together, strings.
            let width = u64::from(leaf.type_length).max(STRING_REF);
            add(rows.saturating_mul(width));
            if chunk.encodings().any(|it| it == Encoding::DELTA_BYTE_ARRAY) {
                add(text);
            }
        }
        let pages = footer.data_pages(row_group, index).map_or(stored / GUESSED_PAGE + 8, |it| it as u64);
        add(pages.saturating_mul(PAGE));
        if leaf.max_rep > 0 || leaf.max_def > 1 {
            add(pages.saturating_mul(PAGE_LEVEL * (u64::from(leaf.max_rep) + u64::from(leaf.max_def) + 1)));
        }
        add(bits);
        match leaf.decode {
            LeafDecode::Fixed { out_width: 0, .. } => add(bits),
            LeafDecode::Fixed { out_width, .. } => add(rows.saturating_mul(out_width.into())),
            LeafDecode::Strings { offset_width, view, .. } => {
                let view = if view { VIEW } else { 0 };
                add(rows.saturating_mul(u64::from(offset_width) + STRING_REF + view));
                add(text);
            }
            LeafDecode::Decimals { out_width } => add(rows.saturating_mul(u64::from(out_width) + STRING_REF)),
            LeafDecode::Dictionary { key_width, ref values, .. } => {
                // Entries, of which each dictionary may hold all: no more than there are values, and of strings no more
                // than their lengths leave room for.
                add(rows.saturating_mul(key_width.into()));
                let entry = match **values {
                    LeafDecode::Fixed { in_width, out_width, .. } => {
                        rows.min(plain / u64::from(in_width.max(1))).saturating_mul(out_width.into())
                    }
                    _ => rows.min(plain / 4).saturating_mul(VIEW + 8 + 2 * STRING_REF).saturating_add(plain),
                };
                add(entry.saturating_add(4 * BUFFER));
            }
            LeafDecode::Levels | LeafDecode::Cpu(_) => (),
        }
    }
    cost
}

/// The most bytes of fixed width that an array of arrow-rs holds for each place.
fn width_on_cpu(leaf: &Leaf) -> u64 {
    let array = match &leaf.data_type {
        DataType::FixedSizeBinary(_) => 0, // its type length
        other => other.primitive_width().unwrap_or(VIEW as usize) as u64,
    };
    array.max(leaf.type_length.into())
}

/// Slab bytes that [`cost`] does not know of: gaps between merged chunks.
pub(super) fn gaps(chunks: &[ChunkPlan], slab_bytes: u64) -> u64 {
    let known = chunks
        .iter()
        .filter(|chunk| chunk.slab_offset.is_some())
        .fold(0u64, |sum, chunk| sum.saturating_add(chunk.bytes.end - chunk.bytes.start + 2 * EDGE));
    slab_bytes.saturating_sub(known)
}

/// Cuts row groups into batches: as many as fit memory, rows and 32-bit offsets together, at least one.
///
/// # Errors
/// [`Error::Budget`] for a row group that does not fit `memory` by itself, when there is such a limit.
pub(super) fn cut(
    row_groups: &[(usize, Cost)],
    options: &ReadOptions,
    memory: u64,
    must_fit: bool,
) -> Result<Vec<Vec<(usize, Cost)>>> {
    let mut batches: Vec<Vec<(usize, Cost)>> = Vec::new();
    let mut sum = Cost::default();
    for &(index, cost) in row_groups {
        if must_fit && cost.memory > memory {
            return Err(Error::Budget { what: format!("row group {index}"), needed: cost.memory, left: memory });
        }
        let total = Cost {
            rows: sum.rows.saturating_add(cost.rows),
            memory: sum.memory.saturating_add(cost.memory),
            strings: sum.strings.saturating_add(cost.strings),
        };
        let fits = total.memory <= memory
            && options.batch_rows.is_none_or(|limit| total.rows <= limit)
            && total.strings <= i32::MAX as u64;
        match batches.last_mut() {
            Some(batch) if fits => {
                batch.push((index, cost));
                sum = total;
            }
            _ => {
                batches.push(vec![(index, cost)]);
                sum = cost;
            }
        }
    }
    Ok(batches)
}
