//! Pages that the CPU decompresses and kernels decode.
//!
//! In: the page table, whose headers the device has read, and the same chunks in host memory. Out: plain bodies in
//! device memory, entered in the table as if the chunks had never been compressed. The `parquet` crate decompresses, so
//! that every codec and every stream that arrow-rs takes is taken here.

use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;
use rayon::prelude::*;

use super::{ALIGN, check_levels};
use crate::device::{DeviceBuffer, Event, Stream};
use crate::error::{Error, Result};
use crate::guard;
use crate::io::host::HostBytes;
use crate::io::pool::Lane;
use crate::kernels::abi::page_kind;
use crate::page::PageTable;

/// Codecs that the `parquet` crate decompresses here, beside those of kernels. LZO it refuses.
pub fn codecs() -> Vec<Compression> {
    vec![
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::ZSTD(ZstdLevel::default()),
    ]
}

/// Plain bytes that are decompressed before they are sent, unless a page is larger. Two buffers of this size are pinned.
const WINDOW: u64 = 32 << 20;

/// Plain bytes of one piece of work, unless a page is larger: enough to be worth a decompressor's start.
const PIECE: u64 = 1 << 20;

/// Plain bytes for a compressed one, at the most, of DEFLATE: 258 for two bits, see its RFC 1951.
const DEFLATE_RATIO: u64 = 1032;

/// Decompresses on the CPU. Its pinned buffers are made on first use and kept.
#[derive(Debug, Default)]
pub struct HostDecompressor(Option<Way>);

#[derive(Debug)]
struct Way {
    lane: Lane,
    ready: Event,
}

/// A page to decompress.
#[derive(Debug, Clone, Copy)]
struct Item {
    /// In the table, and of the pages that belong to it in `sources`.
    page: usize,
    source: usize,
    /// Of its plain body in the scratch memory.
    offset: u64,
    bytes: u64,
}

/// Pages of one chunk that one thread decompresses, in their order.
#[derive(Debug)]
struct Piece<'a> {
    items: &'a [Item],
    target: &'a mut [u8],
}

impl HostDecompressor {
    /// Decompresses the pages of some chunks of `table`, pieces of them side by side, and enters their plain bodies in
    /// the table. `sources` are these chunks by index in the table, ascending, each with its metadata in the footer;
    /// their bytes are in `bytes`. Work queued on `stream` from now on sees the bodies, which live as long as the result.
    ///
    /// # Errors
    /// [`Error::Budget`] when the plain bodies as the headers state them do not fit, before anything else is allocated;
    /// [`Error::Corrupt`] and [`Error::Unsupported`] for the first page that the `parquet` crate does not decompress to
    /// the size in its header.
    pub fn run(
        &mut self,
        stream: &Stream,
        table: &mut PageTable,
        sources: &[(usize, &ColumnChunkMetaData)],
        bytes: &HostBytes,
    ) -> Result<DeviceBuffer> {
        let (items, total) = items(table, sources)?;
        let scratch = stream.gpu().alloc(total, stream, "plain page bodies")?;
        if !items.is_empty() {
            let way = match &mut self.0 {
                Some(way) => way,
                none => none.insert(Way { lane: Lane::new(stream.gpu())?, ready: stream.gpu().new_event()? }),
            };
            way.ready.record(stream)?; // the memory may have been another's before
            let sent = send(way, table, sources, &items, bytes, &scratch);
            way.lane.end(Some(stream))?; // also after a failure: copies before it may be under way
            sent?;
        }
        for (source, (chunk, _)) in sources.iter().enumerate() {
            let from = items.partition_point(|it| it.source < source);
            let to = items.partition_point(|it| it.source <= source);
            let bodies = items[from..to].iter().map(|it| (it.page, scratch.address() + it.offset));
            table.set_plain(*chunk, bodies);
        }
        Ok(scratch)
    }
}

/// The compressed pages of the chunks, and the bytes of all their bodies. Pages whose body is empty are among them, with
/// no bytes.
fn items(table: &PageTable, sources: &[(usize, &ColumnChunkMetaData)]) -> Result<(Vec<Item>, u64)> {
    let mut items = Vec::new();
    let mut total = 0u64; // at most 2^28 pages of at most 2 GiB
    for (source, (chunk, metadata)) in sources.iter().enumerate() {
        for page in table.pages(*chunk) {
            let header = table.header(page);
            check_levels(table, page, header.compressed_bytes)?;
            if header.kind == page_kind::DATA_V2 && header.is_compressed == 0 {
                continue;
            }
            let bytes = u64::from(header.uncompressed_bytes);
            let is_gzip = matches!(metadata.compression(), Compression::GZIP(_));
            if is_gzip && bytes > u64::from(header.compressed_bytes) * DEFLATE_RATIO {
                let message = "a page does not decompress to the length that its header states";
                return Err(Error::corrupt(table.place(page), message));
            }
            items.push(Item { page, source, offset: total, bytes });
            total += bytes.next_multiple_of(ALIGN);
        }
    }
    Ok((items, total))
}

/// Decompresses window by window: while one is copied, the next is filled.
fn send(
    way: &mut Way,
    table: &PageTable,
    sources: &[(usize, &ColumnChunkMetaData)],
    items: &[Item],
    bytes: &HostBytes,
    scratch: &DeviceBuffer,
) -> Result<()> {
    let mut rest = items;
    while let Some(first) = rest.first() {
        let begin = first.offset;
        let count = 1 + rest[1..].iter().take_while(|it| it.offset + it.bytes - begin <= WINDOW).count();
        let (window, after) = rest.split_at(count);
        rest = after;
        let last = window[count - 1];
        let length = usize::try_from(last.offset + last.bytes - begin)
            .map_err(|_| Error::unsupported(table.place(first.page), "a page that this machine cannot address"))?;
        if length == 0 {
            continue;
        }
        let fill = |buffer: &mut [u8]| {
            let failed = pieces(window, buffer)
                .into_par_iter()
                .map(|piece| decompress(table, sources[piece.items[0].source].1, piece, bytes))
                .collect::<Vec<_>>();
            failed.into_iter().collect::<Result<()>>() // the first in the order of the file
        };
        // SAFETY: the range lies in `scratch`, whose owner ends the lane's round before it is freed.
        unsafe { way.lane.send(scratch.address() + begin, length, Some(&way.ready), fill)? };
    }
    Ok(())
}

/// Cuts a window into pieces, each of one chunk, with the part of the buffer that its bodies go to.
fn pieces<'a>(window: &'a [Item], mut buffer: &'a mut [u8]) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut rest = window;
    while let Some(first) = rest.first() {
        let fits = |it: &&Item| it.source == first.source && it.offset + it.bytes - first.offset <= PIECE;
        let (items, after) = rest.split_at(1 + rest[1..].iter().take_while(fits).count());
        rest = after;
        let end = after.first().map_or(buffer.len(), |next| (next.offset - first.offset) as usize);
        let (target, left) = std::mem::take(&mut buffer).split_at_mut(end);
        buffer = left;
        pieces.push(Piece { items, target });
    }
    pieces
}

/// Decompresses the pages of one piece.
fn decompress(table: &PageTable, metadata: &ColumnChunkMetaData, piece: Piece<'_>, bytes: &HostBytes) -> Result<()> {
    let begin = piece.items[0].offset;
    let mut reader = None;
    for item in piece.items.iter().filter(|it| it.bytes > 0) {
        let place = || table.place(item.page);
        let refused = |error| Error::from_parquet(place(), error);
        if reader.is_none() {
            let opened = guard::catch(|| open(table, metadata, piece.items, bytes.clone())).map_err(refused)?;
            reader = Some(opened);
        }
        let Some(reader) = &mut reader else { continue };
        let page = guard::catch(|| reader.get_next_page()).map_err(refused)?;
        let plain = page.as_ref().map_or(&[][..], |page: &Page| page.buffer());
        if plain.len() as u64 != item.bytes {
            let message = "a page does not decompress to the length that its header states";
            return Err(Error::corrupt(place(), message));
        }
        piece.target[(item.offset - begin) as usize..][..plain.len()].copy_from_slice(plain);
    }
    Ok(())
}

/// A page reader over the pages of one piece that are not empty.
fn open(
    table: &PageTable,
    metadata: &ColumnChunkMetaData,
    items: &[Item],
    bytes: HostBytes,
) -> parquet::errors::Result<SerializedPageReader<HostBytes>> {
    let location = |item: &Item| {
        let header = table.header(item.page);
        let chunk = &table.chunks()[table.chunk_of(item.page)];
        let length = header.body_offset - header.header_offset + u64::from(header.compressed_bytes);
        Ok(PageLocation {
            offset: i64::try_from(chunk.file_offset + header.header_offset)?,
            compressed_page_size: i32::try_from(length)?,
            first_row_index: 0,
        })
    };
    let locations: Vec<PageLocation> =
        items.iter().filter(|it| it.bytes > 0).map(location).collect::<parquet::errors::Result<_>>()?;
    // A chunk that starts with the first of these pages: else the reader takes what lies before it for a dictionary.
    let first = locations.first().map_or(0, |it| it.offset);
    let metadata = ColumnChunkMetaData::builder(metadata.column_descr_ptr())
        .set_compression(metadata.compression())
        .set_data_page_offset(first)
        .build()?;
    SerializedPageReader::new(Arc::new(bytes), &metadata, 0, Some(locations))
}
