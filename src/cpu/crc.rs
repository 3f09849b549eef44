//! Checksums of pages on the CPU. The `parquet` crate's own check cannot be turned off where it is built in, and then it
//! refuses files that it reads otherwise; so it is left out, and the check is made here when it is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::PageReader;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::error::{Error, Place, Result};
use crate::footer::Leaf;
use crate::guard;
use crate::kernels::abi;

/// Nested structs that are passed over, as in arrow-rs.
const MAX_DEPTH: usize = 64;

/// Compares the checksum in each page header of a chunk, where there is one, with that of the page's bytes as stored. A
/// page that cannot be found is left to the decoder.
///
/// # Errors
/// [`Error::Corrupt`] naming row group, column, page and offset.
pub(super) fn check<R: ChunkReader + Clone + 'static>(
    chunk: &ColumnChunkMetaData,
    row_group: usize,
    leaf: &Leaf,
    bytes: &R,
) -> Result<()> {
    let place = || Place::chunk(row_group, &leaf.path);
    let found = guard::catch(|| find(chunk, bytes)).map_err(|error| Error::from_parquet(place(), error))?;
    match found {
        Some((page, offset)) => {
            let place = place().with_page(page).with_offset(offset);
            Err(Error::corrupt(place, abi::fault_message(abi::fault::CRC)))
        }
        None => Ok(()),
    }
}

/// The first page with another checksum than its header states: which it is, and where its header lies.
fn find<R: ChunkReader + Clone + 'static>(
    chunk: &ColumnChunkMetaData,
    bytes: &R,
) -> ParquetResult<Option<(usize, u64)>> {
    // Bodies as stored, so that the walk decompresses nothing.
    let stored = chunk.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let noted = Noted { inner: bytes.clone(), header: Arc::default(), body: Arc::default() };
    let (header, body) = (noted.header.clone(), noted.body.clone());
    let mut reader = SerializedPageReader::new(Arc::new(noted), &stored, 0, None)?;
    let (mut values, mut number) = (0i64, 0);
    while values < chunk.num_values() {
        let Ok(Some(page)) = reader.get_next_page() else { break };
        let (header, body) = (header.load(Ordering::Relaxed), body.load(Ordering::Relaxed));
        let length = usize::try_from(body.saturating_sub(header))?;
        let stated = checksum(&bytes.get_bytes(header, length)?);
        if stated.is_some_and(|it| it != crc32fast::hash(page.buffer())) {
            return Ok(Some((number, header)));
        }
        number += 1;
        if page.is_data_page() {
            values = values.saturating_add(i64::from(page.num_values()));
        }
    }
    Ok(None)
}

/// Notes where the page reader reads: it opens a reader at each header, and asks for the bytes of each body.
struct Noted<R> {
    inner: R,
    header: Arc<AtomicU64>,
    body: Arc<AtomicU64>,
}

impl<R: Length> Length for Noted<R> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
}

impl<R: ChunkReader> ChunkReader for Noted<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> ParquetResult<R::T> {
        self.header.store(start, Ordering::Relaxed);
        self.inner.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.body.store(start, Ordering::Relaxed);
        self.inner.get_bytes(start, length)
    }
}

/// Field 4 of a `PageHeader` in Thrift's compact protocol, `crc`; the header is one that arrow-rs has read.
fn checksum(header: &[u8]) -> Option<u32> {
    let mut rest = header;
    let mut id = 0i16;
    let mut found = None;
    loop {
        let byte = take(&mut rest)?;
        if byte & 0x0f == 0 {
            return found;
        }
        id = match byte >> 4 {
            0 => unzigzag(varint(&mut rest)?) as i16,
            delta => id.wrapping_add(i16::from(delta)),
        };
        if id == 4 {
            found = Some(unzigzag(varint(&mut rest)?) as u32);
        } else {
            skip(&mut rest, byte & 0x0f, MAX_DEPTH)?;
        }
    }
}

/// Passes over a value of a compact type.
fn skip(rest: &mut &[u8], kind: u8, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match kind {
        1 | 2 => (), // booleans lie in the field's own byte
        3 => drop(take(rest)?),
        4..=6 => drop(varint(rest)?),
        7 => *rest = rest.get(8..)?,
        8 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            *rest = rest.get(length..)?;
        }
        9 | 10 => {
            let byte = take(rest)?;
            let count = if byte >> 4 == 15 { varint(rest)? } else { u64::from(byte >> 4) };
            for _ in 0..count {
                match byte & 0x0f {
                    1 | 2 => drop(take(rest)?), // in a list they have a byte each
                    kind => skip(rest, kind, depth)?,
                }
            }
        }
        12 => loop {
            let byte = take(rest)?;
            if byte & 0x0f == 0 {
                break;
            }
            if byte >> 4 == 0 {
                varint(rest)?;
            }
            skip(rest, byte & 0x0f, depth)?;
        },
        _ => return None,
    }
    Some(())
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (byte, tail) = rest.split_first()?;
    *rest = tail;
    Some(*byte)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_header() {
        // type 0, sizes 5 and 5, crc -1, and a data page header with a list that is not of the format.
        let header = [0x15, 0, 0x15, 10, 0x15, 10, 0x15, 1, 0x1c, 0x15, 2, 0x19, 0x21, 1, 2, 0, 0];
        assert_eq!(checksum(&header), Some(u32::MAX));
        // Without one; and behind the struct, by its number in full.
        assert_eq!(checksum(&[0x15, 0, 0x15, 10, 0x15, 10, 0x2c, 0x15, 2, 0, 0]), None);
        assert_eq!(checksum(&[0x15, 0, 0x4c, 0x15, 2, 0, 0x05, 8, 6, 0]), Some(3));
        for length in 0..header.len() {
            assert_eq!(checksum(&header[..length]), None, "cut after {length} bytes");
        }
    }
}
