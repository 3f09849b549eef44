//! Counts inside DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY pages, which arrow-rs allocates by before it looks at
//! anything else. One that no memory holds ends the process, since a failed allocation is no panic that could be caught.

use std::sync::Arc;

use parquet::basic::{Compression, Encoding};
use parquet::column::page::Page;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

/// Looks at the pages of one chunk. What else is wrong with them is left to arrow-rs.
///
/// # Errors
/// [`ParquetError::General`] for a page that states more values than its header.
pub(super) fn check<R: ChunkReader + 'static>(chunk: &ColumnChunkMetaData, rows: usize, bytes: R) -> Result<()> {
    let bytes = Arc::new(bytes);
    // Bodies as stored, which costs no more than the headers.
    let stored = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let is_delta = |page: &Page| {
        matches!(page.encoding(), Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY) && page.is_data_page()
    };
    let walk = |chunk: &ColumnChunkMetaData| SerializedPageReader::new(bytes.clone(), chunk, rows, None);
    if !walk(&stored)?.map_while(Result::ok).any(|page| is_delta(&page)) {
        return Ok(());
    }
    let descriptor = chunk.column_descr();
    let levels = (descriptor.max_rep_level(), descriptor.max_def_level());
    for page in walk(chunk)?.map_while(Result::ok).filter(is_delta) {
        let values = page.num_values() as usize;
        let Some(body) = values_of(&page, levels) else { continue };
        let streams = if page.encoding() == Encoding::DELTA_BYTE_ARRAY { 2 } else { 1 };
        let mut rest = body;
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

/// What follows the levels of a page, if they are as long as they say.
fn values_of(page: &Page, (max_rep, max_def): (i16, i16)) -> Option<&[u8]> {
    let mut rest: &[u8] = page.buffer();
    match page {
        Page::DataPage { num_values, def_level_encoding, rep_level_encoding, .. } => {
            for (most, encoding) in [(max_rep, rep_level_encoding), (max_def, def_level_encoding)] {
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
                        u32::from_le_bytes(*length.0) as usize
                    }
                };
                rest = rest.get(bytes..)?;
            }
            Some(rest)
        }
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            let levels = u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len);
            rest.get(usize::try_from(levels).ok()?..)
        }
        Page::DictionaryPage { .. } => None,
    }
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
