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
mod pages;
pub mod strings;
pub mod utf8;
mod zero;

use parquet::basic::Encoding;

pub use pages::unsupported;

use crate::batch::DeviceArray;
use crate::decompress;
use crate::device::staging::Staging;
use crate::device::{DeviceBuffer, PinnedBuffer, Stream};
use crate::error::{Error, Result};
use crate::footer::{Leaf, LeafDecode};
use crate::kernels::abi::{FaultSlot, PageState, StringRef};
use crate::page::PageTable;
use output::Output;
use pages::Work;
use zero::Zeros;

/// Encodings that kernels decode, for [`plan::Context`](crate::plan::Context). RLE stands for levels and booleans; a
/// footer lists BIT_PACKED for levels that a flat column does not even have. What a page really uses is checked by
/// [`unsupported`], once its header has been read.
#[allow(deprecated)] // BIT_PACKED: in every file that parquet-mr 1.x wrote
pub const GPU_ENCODINGS: &[Encoding] =
    &[Encoding::PLAIN, Encoding::PLAIN_DICTIONARY, Encoding::RLE_DICTIONARY, Encoding::RLE, Encoding::BIT_PACKED];

/// A batch to decode.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The columns, in the order in which their arrays come out.
    pub leaves: &'a [&'a Leaf],
    /// Rows of the batch.
    pub rows: u64,
    /// The pages of the batch's chunks.
    pub table: &'a PageTable,
    /// For each chunk of the table, the index of its leaf in `leaves`. Chunks of one column are in the order of rows,
    /// and together they have the rows of the batch.
    pub columns: &'a [usize],
}

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

/// Decompresses and decodes the pages of a batch into one array a leaf. Everything is done when it returns; it waits for
/// the device once, twice when there are strings.
///
/// While it runs it holds, beside the arrays: plain bodies of the compressed pages, about 110 bytes a page for its
/// descriptor, state and places in work lists, 16 bytes a row of each string column and 16 bytes an entry of each string dictionary.
///
/// # Errors
/// [`Error::Corrupt`] with row group, column, page and offset for the first page in the table that is malformed;
/// [`Error::Unsupported`] for what [`unsupported`] would have told, and when strings outgrow their offsets;
/// [`Error::Budget`]; [`Error::Device`]; [`Error::Argument`] when the chunks do not make up the batch.
///
/// # Safety
/// The bytes of every chunk in the table are valid device memory, and whatever writes them is ordered before the work
/// queued on `stream` from now on.
pub unsafe fn decode_batch(stream: &Stream, request: &Request<'_>) -> Result<Vec<DeviceArray>> {
    let gpu = stream.gpu();
    let mut pages = request.table.describe();
    let placed = decompress::place(stream, request.table, &mut pages)?;
    let mut work = Work::new(request, pages)?;
    let entries = gpu.alloc(work.entry_bytes, stream, "entries of dictionaries")?;
    work.place_entries(entries.address());

    let mut zeros = Zeros::default();
    let mut outputs = Vec::with_capacity(request.leaves.len());
    let mut columns = Vec::with_capacity(request.leaves.len());
    for leaf in request.leaves {
        let mut column = pages::column(leaf, request.rows);
        outputs.push(Output::alloc(stream, leaf, &mut column, &mut zeros)?);
        columns.push(column);
    }
    let string_columns: Vec<usize> =
        (0..columns.len()).filter(|it| matches!(request.leaves[*it].decode, LeafDecode::Strings { .. })).collect();
    let what = "references to strings";
    let ref_bytes = request.rows.checked_mul(size_of::<StringRef>() as u64);
    let all_ref_bytes = ref_bytes
        .and_then(|it| it.checked_mul(string_columns.len() as u64))
        .ok_or_else(|| Error::Budget { what: what.into(), needed: u64::MAX, left: gpu.budget().limit() })?;
    let refs = gpu.alloc(all_ref_bytes, stream, what)?;
    for (nth, &column) in string_columns.iter().enumerate() {
        columns[column].refs = refs.address() + nth as u64 * ref_bytes.unwrap_or(0);
    }
    let mut reports = Reports::new(stream, work.pages.len())?;

    let mut staging = Staging::default();
    let page_slot = staging.push(&work.pages);
    let column_slot = staging.push(&columns);
    let zero_slot = zeros.stage(&mut staging);
    let [compressed, data, dictionaries, fixed, strings] =
        [&placed.snappy, &work.data, &work.string_dictionaries, &work.fixed, &work.strings].map(|it| staging.push(it));
    let staged = staging.upload(stream, "page table")?;
    let table = Table {
        pages: staged.address(page_slot),
        columns: staged.address(column_slot),
        states: reports.device.address() + Reports::STATES as u64,
        fault: reports.device.address(),
    };

    zeros.launch(stream, staged.address(zero_slot))?;
    // SAFETY: the chunks are the caller's promise; plain bodies lie in the scratch memory of `placed`.
    unsafe {
        decompress::snappy::launch(stream, table.pages, staged.address(compressed), placed.snappy.len(), table.fault)?;
    }
    levels::launch(stream, &table, staged.address(data), blocks(work.data.len())?)?;
    dictionary::launch(stream, &table, staged.address(dictionaries), blocks(work.string_dictionaries.len())?)?;
    fixed::launch(stream, &table, staged.address(fixed), blocks(work.fixed.len())?)?;
    strings::launch_refs(stream, &table, staged.address(strings), blocks(work.strings.len())?)?;
    let report_bytes = reports.host.len();
    reports.read(stream, report_bytes)?;
    request.table.fault(reports.fault()).map_or(Ok(()), Err)?;
    let states = reports.states();

    if !string_columns.is_empty() {
        strings::gather(stream, request, &work, &states, &mut outputs, &mut columns, &table, || {
            reports.read(stream, Reports::STATES)
        })?;
        request.table.fault(reports.fault()).map_or(Ok(()), Err)?;
    }

    let mut nulls = vec![0u64; columns.len()];
    for &index in &work.data {
        let page = &work.pages[index as usize];
        nulls[page.column as usize] += u64::from(page.num_values.saturating_sub(states[index as usize].valid));
    }
    let arrays = outputs.into_iter().zip(request.leaves).zip(nulls);
    arrays.map(|((output, leaf), nulls)| output.into_array(leaf.root_type.clone(), request.rows, nulls)).collect()
}
