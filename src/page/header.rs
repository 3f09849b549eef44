//! Parses the page headers of chunks on the device.

use std::mem::size_of;

use parquet::basic::Type;

use super::desc::{ALL_VALUES, ChunkInput, PageTable};
use crate::device::Stream;
use crate::device::staging::Staging;
use crate::error::{Error, Place, Result};
use crate::kernels::abi::{self, ChunkDesc, ChunkResult, PageHeader, PageHeadersArgs};

/// The shortest header of a data page: three integers and, in a struct, four more, of two bytes each; the struct's
/// own byte, and two that end structs.
const SMALLEST_HEADER: u64 = 3 * 2 + 4 * 2 + 1 + 2;

/// Bytes of a page, for a first guess at their number. Writers aim at 1 MiB; pages of 20,000 rows (arrow-rs's and
/// parquet-java's limit) of small values are this short.
const GUESSED_PAGE: u64 = 16 << 10;

/// Pages that a fault word can name.
const MOST_PAGES: usize = 1 << 28;

/// Reads the page headers of `chunks`: one launch and one host wait, and one more of each for all chunks with more
/// pages than guessed.
///
/// Headers are read until the data pages hold the chunk's values; bytes after that are not looked at. The memory is
/// taken from the budget of `stream`'s device: 56 bytes a page, and a page takes 17 bytes of the file at the least.
///
/// # Errors
/// [`Error::Corrupt`] naming row group, column, page and offset: a header that is malformed or runs past the chunk, data
/// pages that hold fewer or more values than the chunk, a second dictionary where arrow-rs refuses one.
/// [`Error::Unsupported`] for a dictionary page that is not PLAIN. [`Error::Budget`], [`Error::Device`].
pub fn parse(stream: &Stream, chunks: &[ChunkInput]) -> Result<PageTable> {
    let guesses: Vec<u64> = chunks.iter().map(guess).collect();
    let mut found = launch(stream, chunks, &guesses)?;
    let again: Vec<usize> = (0..chunks.len()).filter(|&at| u64::from(found.results[at].pages) > guesses[at]).collect();
    if !again.is_empty() {
        let inputs: Vec<ChunkInput> = again.iter().map(|&at| chunks[at].clone()).collect();
        let counts: Vec<u64> = again.iter().map(|&at| u64::from(found.results[at].pages)).collect();
        let second = launch(stream, &inputs, &counts)?;
        for (&at, headers) in again.iter().zip(second.headers) {
            found.headers[at] = headers;
        }
    }
    let mut first = Vec::with_capacity(chunks.len() + 1);
    first.push(0);
    let mut headers = Vec::with_capacity(found.headers.iter().map(Vec::len).sum());
    for (chunk, mut found) in chunks.iter().zip(found.headers) {
        check(chunk, &found)?;
        headers.append(&mut found);
        first.push(headers.len());
    }
    if headers.len() >= MOST_PAGES {
        return Err(Error::unsupported(Place::default(), format!("{} pages in one batch", headers.len())));
    }
    Ok(PageTable::new(chunks.to_vec(), first, headers))
}

/// Slots for a chunk's headers.
fn guess(chunk: &ChunkInput) -> u64 {
    let most = chunk.bytes / SMALLEST_HEADER + 1;
    match chunk.expected_pages {
        Some(pages) => most.min((pages as u64).saturating_add(1)), // and a dictionary page
        None => most.min(chunk.bytes / GUESSED_PAGE + 8),
    }
}

/// What a launch found.
struct Found {
    results: Vec<ChunkResult>,
    /// By chunk, as many as fitted.
    headers: Vec<Vec<PageHeader>>,
}

/// One launch over `chunks` with `capacities` slots each, waited for. A fault is an error.
fn launch(stream: &Stream, chunks: &[ChunkInput], capacities: &[u64]) -> Result<Found> {
    if chunks.is_empty() {
        return Ok(Found { results: Vec::new(), headers: Vec::new() });
    }
    let too_many = || Error::unsupported(Place::default(), "more than 4 billion pages in one batch");
    let mut slots = 0u32;
    let mut descs = Vec::with_capacity(chunks.len());
    for (chunk, &capacity) in chunks.iter().zip(capacities) {
        let capacity = u32::try_from(capacity).map_err(|_| too_many())?;
        descs.push(ChunkDesc {
            address: chunk.address,
            bytes: chunk.bytes,
            num_values: chunk.num_values,
            first_page: slots,
            capacity,
        });
        slots = slots.checked_add(capacity).ok_or_else(too_many)?;
    }
    let blocks = u32::try_from(chunks.len())
        .map_err(|_| Error::unsupported(Place::default(), "more than 4 billion column chunks in one batch"))?;

    // Results first, then headers, so that one copy brings both. Slots that no page fills are copied too, so they are
    // given a value.
    let result_bytes = chunks.len() * size_of::<ChunkResult>();
    let bytes = result_bytes as u64 + u64::from(slots) * size_of::<PageHeader>() as u64;
    let host_bytes = usize::try_from(bytes).map_err(|_| too_many())?;
    let device = stream.gpu().alloc(bytes, stream, "the page table")?;
    let mut host = stream.gpu().alloc_pinned(host_bytes)?;
    stream.fill(&device, 0, host_bytes, 0)?;
    let mut staging = Staging::default();
    let slot = staging.push(&descs);
    let staged = staging.upload(stream, "column chunk descriptors")?;
    let args = PageHeadersArgs {
        chunks: staged.address(slot),
        results: device.address(),
        headers: device.address() + result_bytes as u64,
        count: u64::from(blocks),
    };
    // SAFETY: the chunks are the caller's; table and descriptors live until the wait below, or their owners wait.
    unsafe { stream.launch(blocks, &args)? };
    // SAFETY: nothing touches `host` before the wait below.
    let copied = unsafe { stream.copy_to_host(&mut host, &device, 0) };
    stream.synchronize()?;
    copied?;

    let results: Vec<ChunkResult> =
        host[..result_bytes].chunks_exact(size_of::<ChunkResult>()).map(bytemuck::pod_read_unaligned).collect();
    let mut headers = Vec::with_capacity(chunks.len());
    for ((chunk, desc), result) in chunks.iter().zip(&descs).zip(&results) {
        if result.fault != abi::fault::NONE {
            let place = Place::chunk(chunk.row_group, &*chunk.column)
                .with_page(chunk.first_page + result.pages as usize)
                .with_offset(chunk.file_offset.saturating_add(result.fault_offset));
            return Err(Error::corrupt(place, abi::fault_message(result.fault)));
        }
        let from = result_bytes + desc.first_page as usize * size_of::<PageHeader>();
        let bytes = &host[from..][..result.pages.min(desc.capacity) as usize * size_of::<PageHeader>()];
        headers.push(bytes.chunks_exact(size_of::<PageHeader>()).map(bytemuck::pod_read_unaligned).collect());
    }
    Ok(Found { results, headers })
}

/// What one header alone does not show.
fn check(chunk: &ChunkInput, headers: &[PageHeader]) -> Result<()> {
    let place = |page: usize, header: &PageHeader| {
        Place::chunk(chunk.row_group, &*chunk.column)
            .with_page(chunk.first_page + page)
            .with_offset(chunk.file_offset.saturating_add(header.header_offset))
    };
    let mut values = 0u64;
    let mut dictionaries = 0;
    for (page, header) in headers.iter().enumerate() {
        if header.kind != abi::page_kind::DICTIONARY {
            values += u64::from(header.num_values); // fewer than 2^28 pages of less than 2^31 values
            if values > chunk.num_values {
                let message = format!("data pages hold {values} values and the column chunk {}", chunk.num_values);
                return Err(Error::corrupt(place(page, header), message));
            }
            continue;
        }
        use abi::encoding::{PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY};
        if ![PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY].contains(&header.encoding) {
            let message = format!("a dictionary page with encoding {}", header.encoding);
            return Err(Error::unsupported(place(page, header), message));
        }
        dictionaries += 1;
        // arrow-rs lets a later dictionary of byte arrays replace the one before, and no other.
        if dictionaries > 1 && !matches!(chunk.physical_type, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY) {
            return Err(Error::corrupt(place(page, header), "a second dictionary page"));
        }
    }
    if chunk.num_values != ALL_VALUES && values < chunk.num_values {
        let message = format!("the column chunk ends after {values} of {} values", chunk.num_values);
        let end = chunk.file_offset.saturating_add(chunk.bytes);
        let place =
            Place::chunk(chunk.row_group, &*chunk.column).with_page(chunk.first_page + headers.len()).with_offset(end);
        return Err(Error::corrupt(place, message));
    }
    Ok(())
}
