//! From page bodies as stored to plain page bodies.
//!
//! [`place`] decides for each page where its plain body lies: where it is stored, when it is not compressed, or in
//! scratch memory, and which kernel writes it there. The caller uploads the pages and the work lists and launches.
//!
//! What no kernel here decompresses is made plain before: [`nvcomp`] or, on the CPU, [`host`] does it, and enters the bodies in the page
//! table, so that [`place`] and all that comes after see pages that were never compressed.

pub mod host;
pub mod lz4;
pub mod nvcomp;
pub mod snappy;

use parquet::basic::Compression;

use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::kernels::abi::{self, page_kind};
use crate::page::PageTable;

/// Codecs of which kernels here make plain bodies.
pub const GPU_CODECS: &[Compression] = &[Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW];

/// Plain bytes that a byte of Snappy can stand for: its densest element copies 64 and takes 3. Memory for a page that
/// claims more is not even asked for.
const SNAPPY_RATIO: u64 = 22;

/// The same of LZ4: each byte that lengthens a copy adds 255.
const LZ4_RATIO: u64 = 255;

/// Bodies in scratch memory start at multiples of this, so that aligned PLAIN values can be loaded whole.
const ALIGN: u64 = 16;

/// Where bodies lie, and what is to be done for it.
#[derive(Debug)]
#[must_use]
pub struct Placed {
    /// Memory of the bodies that are written here; keep it until the last kernel that reads pages is done.
    pub scratch: DeviceBuffer,
    /// Pages for [`snappy::launch`], by index.
    pub snappy: Vec<u32>,
    /// Pages for [`lz4::launch`], by index.
    pub lz4: Vec<u32>,
}

/// Sets `body` and `body_bytes` of `pages`, which [`PageTable::describe`] made for `table`.
///
/// A body is the page's levels and values: of `uncompressed_bytes` where it is decompressed, else of
/// `compressed_bytes`, as arrow-rs has it. Bodies in scratch memory are aligned to 16 bytes; others lie where the file
/// put them. No kernel may read past `body_bytes`.
///
/// # Errors
/// [`Error::Corrupt`] for a V2 page whose levels do not fit its bytes, [`Error::Unsupported`] for a codec that is not
/// among [`GPU_CODECS`], [`Error::Budget`] when the bodies do not fit the budget: nothing is allocated before that is
/// known.
pub fn place(stream: &Stream, table: &PageTable, pages: &mut [abi::Page]) -> Result<Placed> {
    if pages.len() != table.len() {
        return Err(Error::Argument(format!("{} pages for a table of {}", pages.len(), table.len())));
    }
    let (mut snappy, mut lz4) = (Vec::new(), Vec::new());
    let mut scratch_bytes = 0u64; // at most 2^28 pages of at most 2 GiB
    for (index, chunk) in table.chunks().iter().enumerate() {
        if table.pages(index).is_empty() {
            continue;
        }
        let list = match chunk.codec {
            Compression::UNCOMPRESSED => None,
            Compression::SNAPPY => Some((&mut snappy, SNAPPY_RATIO)),
            Compression::LZ4_RAW => Some((&mut lz4, LZ4_RATIO)),
            codec => {
                let place = table.place(table.pages(index).start);
                return Err(Error::unsupported(place, format!("no kernel decompresses {codec}")));
            }
        };
        let Some((list, ratio)) = list else {
            for at in table.pages(index) {
                check_levels(table, at, table.header(at).compressed_bytes)?;
            }
            continue;
        };
        for at in table.pages(index) {
            let header = table.header(at);
            check_levels(table, at, header.compressed_bytes)?;
            if header.kind == page_kind::DATA_V2 && header.is_compressed == 0 {
                continue;
            }
            let levels = u64::from(header.def_bytes) + u64::from(header.rep_bytes);
            let stored = u64::from(header.compressed_bytes).saturating_sub(levels);
            if u64::from(header.uncompressed_bytes) > levels + stored * ratio {
                let message = "a page does not decompress to the length that its header states";
                return Err(Error::corrupt(table.place(at), message));
            }
            let page = &mut pages[at];
            page.body_bytes = header.uncompressed_bytes;
            // Nothing makes nothing, whatever is stored: arrow-rs does not look at the bytes of such a page.
            if header.uncompressed_bytes > 0 {
                page.body = scratch_bytes; // an offset, until the memory is there
                scratch_bytes += u64::from(header.uncompressed_bytes).next_multiple_of(ALIGN);
                list.push(at as u32);
            }
        }
    }
    let scratch = stream.gpu().alloc(scratch_bytes, stream, "plain page bodies")?;
    for &at in snappy.iter().chain(&lz4) {
        pages[at as usize].body += scratch.address();
    }
    Ok(Placed { scratch, snappy, lz4 })
}

/// The levels of a V2 page lie uncompressed at its start.
fn check_levels(table: &PageTable, page: usize, bytes: u32) -> Result<()> {
    let header = table.header(page);
    let levels = u64::from(header.def_bytes) + u64::from(header.rep_bytes);
    if levels > u64::from(bytes) {
        let message = format!("{levels} bytes of levels in a page of {bytes} bytes");
        return Err(Error::corrupt(table.place(page), message));
    }
    Ok(())
}
