//! Counts inside pages that arrow-rs takes for granted, with an end that no caller could catch.
//!
//! DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY pages state how many lengths they have, and arrow-rs allocates by that
//! before it looks at anything else. One that no memory holds ends the process, since a failed allocation is no panic.
//!
//! Repetition levels may be fewer than the page's values. Where it reads them it says so; where it skips rows it waits
//! for the next level without an end.

use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

/// Looks at the pages of one chunk, at its repetition levels only if it `skips` rows. What else is wrong with them is left
/// to arrow-rs.
///
/// # Errors
/// [`ParquetError::General`] for a page that states more values than its header, or that has fewer repetition levels.
pub(super) fn check<R: ChunkReader + 'static>(
    chunk: &ColumnChunkMetaData,
    rows: usize,
    skips: bool,
    bytes: R,
) -> Result<()> {
    let bytes = Arc::new(bytes);
    let descriptor = chunk.column_descr();
    let levels = (descriptor.max_rep_level(), descriptor.max_def_level());
    let skips = skips && levels.0 > 0;
    // Bodies as stored, which costs no more than the headers.
    let stored = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let is_delta = |page: &Page| {
        matches!(page.encoding(), Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) && page.is_data_page()
    };
    let walk = |chunk: &ColumnChunkMetaData| SerializedPageReader::new(bytes.clone(), chunk, rows, None);
    let (mut pages, mut wanted) = (0, false);
    for page in walk(&stored)?.map_while(Result::ok) {
        pages += 1;
        wanted |= skips || is_delta(&page);
    }
    if !wanted {
        return Ok(());
    }
    // Past a page that cannot be decompressed, too: arrow-rs may skip it.
    for page in walk(chunk)?.take(pages).filter_map(Result::ok) {
        let values = page.num_values() as usize;
        let Some(sections) = sections(&page, levels) else { continue };
        if let Some(repetition) = sections.repetition.filter(|_| skips) {
            let found = level_count(repetition, levels.0, values);
            if found < values {
                return Err(ParquetError::General(format!("a page of {values} values has {found} repetition levels")));
            }
        }
        if !is_delta(&page) {
            continue;
        }
        let streams = if page.encoding() == Encoding::DELTA_BYTE_ARRAY { 2 } else { 1 };
        let mut rest = sections.values;
        for _ in 0..streams {
            let Some((count, end)) = lengths(rest, values) else { break };
            if count > values as u64 {
                return Err(ParquetError::General(format!("a page of {values} values states {count} lengths")));
            }
            rest = &rest[end..];
        }
    }
    Ok(())
}

/// Parts of a data page.
struct Sections<'a> {
    /// In the hybrid of RLE and bit-packing; `None` for levels that are nothing but packed, which are as many as they
    /// should be.
    repetition: Option<&'a [u8]>,
    values: &'a [u8],
}

/// The parts of a data page, if its levels are as long as they say.
fn sections(page: &Page, (max_rep, max_def): (i16, i16)) -> Option<Sections<'_>> {
    let mut rest: &[u8] = page.buffer();
    match page {
        Page::DataPage { num_values, def_level_encoding, rep_level_encoding, .. } => {
            let mut repetition = None;
            for (most, encoding, is_rep) in [(max_rep, rep_level_encoding, true), (max_def, def_level_encoding, false)]
            {
                #[allow(deprecated)]
                let bytes = match encoding {
                    _ if most == 0 => continue,
                    Encoding::BIT_PACKED => {
                        let width = u64::from(i16::BITS - most.leading_zeros());
                        usize::try_from((u64::from(*num_values) * width).div_ceil(8)).ok()?
                    }
                    _ => {
                        let length = rest.split_first_chunk::<4>()?;
                        rest = length.1;
                        let bytes = u32::from_le_bytes(*length.0) as usize;
                        if is_rep {
                            repetition = Some(rest.get(..bytes)?);
                        }
                        bytes
                    }
                };
                rest = rest.get(bytes..)?;
            }
            Some(Sections { repetition, values: rest })
        }
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            let repetition = rest.get(..usize::try_from(*rep_levels_byte_len).ok()?)?;
            let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
            let values = rest.get(usize::try_from(levels).ok()?..)?;
            Some(Sections { repetition: Some(repetition), values })
        }
        Page::DictionaryPage { .. } => None,
    }
}

/// How many levels runs hold, as arrow-rs takes them: a header of 0 ends them, and a packed run may be cut short. It
/// stops counting at `wanted`.
fn level_count(mut runs: &[u8], max_level: i16, wanted: usize) -> usize {
    let width = (i16::BITS - max_level.leading_zeros()) as usize;
    let mut count = 0usize;
    while count < wanted {
        let Some(header) = varint(&mut runs).filter(|it| *it > 0) else { break };
        let stated = usize::try_from(header >> 1).unwrap_or(usize::MAX);
        let bytes = match header & 1 {
            0 => width.div_ceil(8),
            _ => stated.saturating_mul(width).min(runs.len()),
        };
        let Some((run, rest)) = runs.split_at_checked(bytes) else { break };
        runs = rest;
        count = count.saturating_add(match header & 1 {
            0 => stated,
            _ => stated.saturating_mul(8).min(run.len() * 8 / width),
        });
    }
    count
}

/// The number of values that a DELTA_BINARY_PACKED stream states, and where it ends. Without an end (0) when there are
/// more than `most`; `None` when the stream breaks off, or its blocks are not what arrow-rs takes.
fn lengths(bytes: &[u8], most: usize) -> Option<(u64, usize)> {
    let mut rest = bytes;
    let block = varint(&mut rest)?;
    let minis = varint(&mut rest)?;
    let count = varint(&mut rest)?;
    varint(&mut rest)?; // the first value
    if count > most as u64 {
        return Some((count, 0));
    }
    let minis = usize::try_from(minis).ok().filter(|it| *it > 0)?;
    let mini = usize::try_from(block).ok()? / minis;
    if mini == 0 {
        return None;
    }
    let mut left = (count as usize).saturating_sub(1);
    while left > 0 {
        varint(&mut rest)?; // the least delta
        let (widths, packed) = rest.split_at_checked(minis)?;
        rest = packed;
        for &width in widths {
            if left == 0 {
                break; // the widths of miniblocks after the last value mean nothing
            }
            rest = rest.get(usize::from(width).checked_mul(mini)? / 8..)?;
            left = left.saturating_sub(mini);
        }
    }
    Some((count, bytes.len() - rest.len()))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_run_by_run() {
        let runs = [7 << 1, 0, 2 << 1 | 1, 0xaa, 0xaa, 0, 1, 1]; // 7 times 0, 16 packed, the end
        assert_eq!(level_count(&runs, 1, 100), 23);
        assert_eq!(level_count(&runs, 1, 7), 7, "no more than wanted");
        assert_eq!(level_count(&runs[..4], 1, 100), 15, "a packed run that is cut short");
        assert_eq!(level_count(&runs[..1], 1, 100), 0, "a run without its level");
        assert_eq!(level_count(&[0xff; 20], 1, 100), 0, "no number");
        assert_eq!(level_count(&[], 3, 100), 0);
    }

    #[test]
    fn a_stream_states_its_count_and_ends_where_its_blocks_do() {
        // 128 values a block in 4 miniblocks, 3 values, the first 2 (zigzag 4); least delta 0, widths 2 0 0 0.
        let stream = [&[0x80, 0x01, 4, 3, 4, 0, 2, 0, 0, 0][..], &[0; 8], &[9, 9]].concat();
        assert_eq!(lengths(&stream, 3), Some((3, stream.len() - 2)));
        assert_eq!(lengths(&stream, 2), Some((3, 0)), "more than there may be");
        assert_eq!(lengths(&stream[..12], 3), None, "breaks off");
        assert_eq!(lengths(&[0x80, 0x01, 0, 3, 4], 3), None, "no miniblocks");
        assert_eq!(lengths(&[0x80, 0x01, 4, 1, 4], 3), Some((1, 5)), "one value has no block");
        assert_eq!(lengths(&[0xff; 20], 3), None, "no number");
    }
}
