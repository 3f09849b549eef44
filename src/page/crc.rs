//! Checksums of pages: of the bytes as they are stored, levels of V2 pages included, as parquet.thrift has it.

use crate::device::Stream;
use crate::device::staging::Staging;
use crate::error::{Error, Result};
use crate::kernels::abi::{CrcArgs, CrcItem};
use crate::page::PageTable;

/// Checks every page of `table` whose header states a checksum: one launch and one host wait, or none where no page has
/// one. Call it before anything else becomes of the pages.
///
/// # Errors
/// [`Error::Corrupt`] naming the first page whose bytes have another checksum; [`Error::Budget`] for 24 bytes a page;
/// [`Error::Device`].
///
/// # Safety
/// The bytes of every chunk in the table are valid device memory, and whatever writes them is ordered before the work
/// queued on `stream` from now on.
pub unsafe fn check(stream: &Stream, table: &PageTable) -> Result<()> {
    let mut items = Vec::new();
    for (at, chunk) in table.chunks().iter().enumerate() {
        for (page, header) in table.pages(at).zip(table.headers(at)).filter(|(_, header)| header.has_crc != 0) {
            items.push(CrcItem {
                source: chunk.address + header.body_offset,
                bytes: header.compressed_bytes,
                crc: header.crc,
                page: page as u32,
                _pad: 0,
            });
        }
    }
    if items.is_empty() {
        return Ok(());
    }
    let blocks = u32::try_from(items.len()).map_err(|_| Error::Argument("too many pages in one batch".into()))?;
    let mut staging = Staging::default();
    let item_slot = staging.push(&items);
    let fault_slot = staging.push(&[u64::MAX]);
    let staged = staging.upload(stream, "checksums of pages")?;
    let fault = staged.address(fault_slot);
    let args = CrcArgs { items: staged.address(item_slot), fault, count: u64::from(blocks) };
    // SAFETY: the pages are the caller's promise; the items live until the wait below.
    unsafe { stream.launch(blocks, &args)? };
    let mut word = [0u8; 8];
    // SAFETY: nothing touches `word` before the wait below; the address is that of eight bytes in `staged`.
    let copied = unsafe { stream.gpu().backend().copy_to_host(stream.raw(), word.as_mut_ptr(), fault, word.len()) };
    stream.synchronize()?;
    copied?;
    table.fault(u64::from_ne_bytes(word)).map_or(Ok(()), Err)
}
