//! From plain page bodies to arrays.
//!
//! Every kernel runs once over one list of pages, of all columns and row groups together, so that launches and host
//! waits do not grow with either:
//!
//! ```text
//!  zero ─► snappy ─► levels ─► dictionary ─► fixed ─► string refs ─► wait ─► zero ─► gather ─► utf8 ─► wait
//!                    validity,  entries of   values   a reference    counts,         offsets,  only with strings
//!                    counts     strings               a row          sizes           bytes
//! ```

pub mod dictionary;
pub mod fixed;
pub mod levels;
mod output;
pub mod pages;
pub mod strings;
pub mod utf8;

use parquet::basic::Encoding;

pub use pages::{ChunkPages, Pages, unsupported};

use crate::batch::DeviceArray;
use crate::device::staging::Staging;
use crate::device::{DeviceBuffer, PinnedBuffer, Stream};
use crate::error::{Error, Result};
use crate::footer::LeafDecode;
use crate::kernels::abi::{self, FaultSlot, PageState, SnappyArgs, StringRef};
use output::{Output, Zeros};

/// Encodings that kernels decode, for [`plan::Context`](crate::plan::Context). RLE stands for levels and booleans; a
/// footer lists BIT_PACKED for levels that a flat column does not even have. What a page really uses is checked by
/// [`unsupported`], once its header has been read.
#[allow(deprecated)] // BIT_PACKED: in every file that parquet-mr 1.x wrote
pub const GPU_ENCODINGS: &[Encoding] =
    &[Encoding::PLAIN, Encoding::PLAIN_DICTIONARY, Encoding::RLE_DICTIONARY, Encoding::RLE, Encoding::BIT_PACKED];

/// Addresses of what the kernels share.
#[derive(Debug, Clone, Copy)]
struct Table {
    pages: u64,
    columns: u64,
    states: u64,
    fault: u64,
}

/// The fault word and the page states: what kernels report, and its copy on the host.
struct Reports {
    device: DeviceBuffer,
    host: PinnedBuffer,
}

impl Reports {
    /// The fault word has the first 64 bytes to itself: kernels hammer it only when a file is corrupt, but every page
    /// writes its state.
    const STATES: usize = 64;

    fn new(stream: &Stream, pages: usize) -> Result<Self> {
        let bytes = Self::STATES + pages * size_of::<PageState>();
        let device = stream.gpu().alloc(bytes as u64, stream, "page states")?;
        stream.fill(&device, 0, Self::STATES, 0xff)?;
        stream.fill(&device, Self::STATES as u64, bytes - Self::STATES, 0)?;
        Ok(Self { device, host: stream.gpu().alloc_pinned(bytes)? })
    }

    /// Copies the first `bytes` bytes to the host and waits.
    fn read(&mut self, stream: &Stream, bytes: usize) -> Result<()> {
        // SAFETY: the host copy is not touched before the wait below, and freed after it.
        unsafe { stream.copy_to_host(&mut self.host[..bytes], &self.device, 0)? };
        stream.synchronize()
    }

    fn fault(&self) -> u64 {
        bytemuck::pod_read_unaligned::<FaultSlot>(&self.host[..size_of::<FaultSlot>()]).word
    }

    fn states(&self) -> Vec<PageState> {
        self.host[Self::STATES..].chunks_exact(size_of::<PageState>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

/// Blocks of a launch over `items`, a block each.
fn blocks(items: usize) -> Result<u32> {
    // The largest grid that CUDA launches in x.
    u32::try_from(items)
        .ok()
        .filter(|it| *it <= i32::MAX as u32)
        .ok_or_else(|| Error::Argument("too much work for one batch: read fewer rows at a time".into()))
}

/// Decompresses and decodes the pages of a batch into one array a leaf, in their order. Everything is done when it
/// returns; it waits for the device once, twice when there are strings.
///
/// # Errors
/// [`Error::Corrupt`] with row group, column, page and offset for the first page in the table that is malformed;
/// [`Error::Unsupported`] when strings outgrow their offsets; [`Error::Budget`]; [`Error::Device`].
///
/// # Safety
/// The bytes of every chunk in `pages` are valid device memory, and whatever writes them is ordered before the work
/// queued on `stream` from now on.
pub unsafe fn decode_batch(stream: &Stream, pages: &Pages<'_>) -> Result<Vec<DeviceArray>> {
    pages.check()?;
    let gpu = stream.gpu();
    let is_strings = |column: usize| matches!(pages.leaves[column].decode, LeafDecode::Strings { .. });

    let mut zeros = Zeros::default();
    let mut outputs = Vec::with_capacity(pages.leaves.len());
    let mut columns = Vec::with_capacity(pages.leaves.len());
    for (index, leaf) in pages.leaves.iter().enumerate() {
        let mut column = pages.column(index);
        outputs.push(Output::alloc(stream, leaf, &mut column, &mut zeros)?);
        columns.push(column);
    }
    let string_columns = (0..columns.len()).filter(|it| is_strings(*it)).count() as u64;
    let ref_bytes = pages.rows.checked_mul(size_of::<StringRef>() as u64);
    let all_ref_bytes = ref_bytes.and_then(|it| it.checked_mul(string_columns)).ok_or_else(|| Error::Budget {
        what: "references to strings".into(),
        needed: u64::MAX,
        left: gpu.budget().limit(),
    })?;
    let refs = gpu.alloc(all_ref_bytes, stream, "references to strings")?;
    let string_outputs = (0..columns.len()).filter(|it| is_strings(*it));
    for (nth, column) in string_outputs.enumerate() {
        columns[column].refs = refs.address() + nth as u64 * ref_bytes.unwrap_or(0);
    }
    let plain = gpu.alloc(pages.plain_bytes, stream, "decompressed pages")?;
    let entries = gpu.alloc(pages.entry_bytes, stream, "entries of dictionaries")?;
    let mut reports = Reports::new(stream, pages.pages.len())?;

    let mut placed: Vec<abi::Page> = pages.pages.clone();
    for &index in &pages.work.compressed {
        placed[index as usize].body += plain.address();
    }
    for &index in &pages.work.string_dictionaries {
        placed[index as usize].entries += entries.address();
    }

    let work = &pages.work;
    let mut staging = Staging::default();
    let page_slot = staging.push(&placed);
    let column_slot = staging.push(&columns);
    let zero_slot = zeros.stage(&mut staging);
    let [compressed, data, dictionaries, fixed, strings] =
        [&work.compressed, &work.data, &work.string_dictionaries, &work.fixed, &work.strings]
            .map(|it| staging.push(it));
    let staged = staging.upload(stream, "page table")?;
    let table = Table {
        pages: staged.address(page_slot),
        columns: staged.address(column_slot),
        states: reports.device.address() + Reports::STATES as u64,
        fault: reports.device.address(),
    };

    zeros.launch(stream, staged.address(zero_slot))?;
    let count = blocks(work.compressed.len())?;
    let Table { pages: page_table, fault, .. } = table;
    let snappy = SnappyArgs { pages: page_table, items: staged.address(compressed), fault, count: count.into() };
    // SAFETY: the chunks are the caller's promise; the plain bodies lie in `plain`.
    unsafe { stream.launch(count, &snappy)? };
    levels::launch(stream, &table, staged.address(data), blocks(work.data.len())?)?;
    dictionary::launch(stream, &table, staged.address(dictionaries), blocks(work.string_dictionaries.len())?)?;
    fixed::launch(stream, &table, staged.address(fixed), blocks(work.fixed.len())?)?;
    strings::launch_refs(stream, &table, staged.address(strings), blocks(work.strings.len())?)?;
    let report_bytes = reports.host.len();
    reports.read(stream, report_bytes)?;
    pages.fault(reports.fault()).map_or(Ok(()), Err)?;
    let states = reports.states();

    if string_columns > 0 {
        strings::gather(stream, pages, &states, &mut outputs, &mut columns, &table, || {
            reports.read(stream, Reports::STATES)
        })?;
        pages.fault(reports.fault()).map_or(Ok(()), Err)?;
    }

    let mut nulls = vec![0u64; columns.len()];
    for &index in &work.data {
        let page = &pages.pages[index as usize];
        nulls[page.column as usize] += u64::from(page.num_values.saturating_sub(states[index as usize].valid));
    }
    let arrays = outputs.into_iter().zip(pages.leaves).zip(nulls);
    arrays.map(|((output, leaf), nulls)| output.into_array(leaf.root_type.clone(), pages.rows, nulls)).collect()
}
