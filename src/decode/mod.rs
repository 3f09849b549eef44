//! From plain page bodies to arrays.
//!
//! Every kernel runs once over one list of pages, of all columns and row groups together, so that launches and host
//! waits do not grow with either:
//!
//! ```text
//!  zero ─► codecs ─► levels ─────────► dictionary ─► fixed ─► string refs ─► wait ─► zero ─► gather ─► utf8 ─► wait
//!                    validity,         entries of   values   a reference    counts,         offsets,  only with strings
//!                    counts            strings               a slot         sizes           bytes
//!                                                                                   (or decimals)
//!                    nested levels ─► wait ─► zero ─► shape
//!                    slots by class   sizes           offsets of lists, validity: only with columns below lists or structs
//! ```
//!
//! A column's values go to slots: of a flat column, its rows; below lists, the elements of the last one ([`Field`]).

pub mod decimals;
mod delta;
pub mod dictionary;
pub mod fixed;
mod keys;
pub mod levels;
mod nested;
mod output;
mod pages;
mod selected;
mod split;
pub mod strings;
pub mod utf8;
mod zero;

use arrow::datatypes::DataType;
use parquet::basic::Encoding;

pub use keys::too_many_entries;
pub use pages::unsupported;
pub use selected::SelectedRows;

use crate::batch::DeviceArray;
use crate::decompress;
use crate::device::staging::Staging;
use crate::device::{DeviceBuffer, PinnedBuffer, Stream};
use crate::error::{Error, Result};
use crate::footer::{Field, Leaf};
use crate::kernels::abi::{self, FaultSlot, PageState, StringRef};
use crate::page::PageTable;
use keys::Keys;
use nested::Shapes;
use output::Output;
use pages::Work;
use zero::Zeros;

/// Encodings that kernels decode, for [`plan::Context`](crate::plan::Context). RLE stands for levels and booleans; a
/// footer lists BIT_PACKED for levels that a flat column does not even have. What a page really uses is checked by
/// [`unsupported`], once its header has been read.
#[allow(deprecated)] // BIT_PACKED: in every file that parquet-mr 1.x wrote
pub const GPU_ENCODINGS: &[Encoding] = &[
    Encoding::PLAIN,
    Encoding::PLAIN_DICTIONARY,
    Encoding::RLE_DICTIONARY,
    Encoding::RLE,
    Encoding::BIT_PACKED,
    Encoding::DELTA_BINARY_PACKED,
    Encoding::DELTA_LENGTH_BYTE_ARRAY,
    Encoding::DELTA_BYTE_ARRAY,
    Encoding::BYTE_STREAM_SPLIT,
];

/// A batch to decode.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The leaf columns, in the order in which they lie in the fields.
    pub leaves: &'a [&'a Leaf],
    /// The top-level fields, in the order in which their arrays come out, each with its Arrow type. Their leaves are numbered as
    /// in `leaves`.
    pub fields: &'a [(Field, DataType)],
    /// Rows of the batch, of those selected.
    pub rows: u64,
    /// Which rows of the chunks are wanted; `None`: all.
    pub selected: Option<&'a SelectedRows>,
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

/// The fault word, the page states, and the bytes of the strings of each part: what kernels report, and its copy on the
/// host.
struct Reports {
    device: DeviceBuffer,
    host: PinnedBuffer,
    pages: usize,
}

impl Reports {
    /// The fault word has the first 64 bytes to itself: kernels hammer it only when a file is corrupt, but every page
    /// writes its state.
    const STATES: usize = 64;

    fn new(stream: &Stream, pages: usize, parts: usize) -> Result<Self> {
        let bytes = Self::STATES + pages * size_of::<PageState>() + parts * size_of::<u64>();
        let device = stream.gpu().alloc(bytes as u64, stream, "page states")?;
        stream.fill(&device, 0, Self::STATES, 0xff)?;
        stream.fill(&device, Self::STATES as u64, bytes - Self::STATES, 0)?;
        Ok(Self { device, host: stream.gpu().alloc_pinned(bytes)?, pages })
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

    /// Where the bytes of the parts start.
    fn parts(&self) -> usize {
        Self::STATES + self.pages * size_of::<PageState>()
    }

    fn states(&self) -> Vec<PageState> {
        let states = &self.host[Self::STATES..self.parts()];
        states.chunks_exact(size_of::<PageState>()).map(bytemuck::pod_read_unaligned).collect()
    }

    fn part_bytes(&self) -> Vec<u64> {
        self.host[self.parts()..].chunks_exact(size_of::<u64>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

/// What the index of a page is multiplied with in a fault word (`FaultSlot` in abi.h).
const FAULT_PAGE: u64 = 1 << 36;

/// Blocks of a launch over `items`, a block each.
fn blocks(items: usize) -> Result<u32> {
    // The largest grid that CUDA launches in x.
    u32::try_from(items)
        .ok()
        .filter(|it| *it <= i32::MAX as u32)
        .ok_or_else(|| Error::Argument("too much work for one batch: read fewer rows at a time".into()))
}

/// Decompresses and decodes the pages of a batch into one array a field. Everything is done when it returns; it waits for
/// the device once, once more when there are byte arrays, and once more when there are columns below lists or structs.
///
/// While it runs it holds, beside the arrays: plain bodies of the compressed pages, about 130 bytes a page for its
/// descriptor and state and 50 bytes for each of its parts in work lists, 16 bytes a slot of each column of byte arrays and 16 bytes an entry of each of
/// their dictionaries, and below lists and structs a byte for each level.
///
/// # Errors
/// [`Error::Corrupt`] with row group, column, page and offset for the first page in the table that is malformed, and for
/// columns that do not have the rows of the batch; [`Error::Unsupported`] for what [`unsupported`] would have told, and
/// when strings or lists outgrow their offsets; [`Error::Budget`]; [`Error::Device`]; [`Error::Argument`] when the chunks
/// do not make up the batch.
///
/// # Safety
/// The bytes of every chunk in the table are valid device memory, and whatever writes them is ordered before the work
/// queued on `stream` from now on.
pub unsafe fn decode_batch(stream: &Stream, request: &Request<'_>) -> Result<Vec<DeviceArray>> {
    let gpu = stream.gpu();
    let mut pages = request.table.describe();
    let placed = decompress::place(stream, request.table, &mut pages)?;
    let mut shapes = Shapes::new(request)?;
    let mut work = Work::new(request, &shapes, pages)?;
    let entries = gpu.alloc(work.entry_bytes, stream, "entries of dictionaries")?;
    work.place_entries(entries.address());
    let _expanded = work.expand.place(stream, &mut work.pages)?;
    let entry_leaves = keys::entry_leaves(request);
    let keys = Keys::new(request, &entry_leaves, &mut work);
    let leaves: Vec<&Leaf> = request.leaves.iter().copied().chain(entry_leaves.iter().map(|(_, leaf)| leaf)).collect();
    let with_entries = &Request { leaves: &leaves, ..*request };
    work.is_shaped.resize(leaves.len(), false);
    let levels = shapes.place(stream, request, &mut work)?;
    let [fixed_parts, byte_array_parts, decimal_parts] =
        [&work.fixed, &work.byte_arrays, &work.decimals].map(|it| work.parts(it));
    let mut reports = Reports::new(stream, work.pages.len(), byte_array_parts.len())?;
    let mut columns: Vec<_> =
        request.leaves.iter().map(|leaf| pages::column(leaf, request.rows, request.selected.is_some())).collect();
    let nodes = shapes.describe(&mut columns);
    columns.extend(entry_leaves.iter().zip(&keys.bounds).map(|((_, leaf), bound)| pages::column(leaf, *bound, false)));
    let mut zeros = Zeros::default();
    let mut arrays = Arrays::new(with_entries);
    arrays.alloc(stream, with_entries, &shapes, &mut columns, &mut zeros, |column| !work.is_shaped[column])?;

    let mut staging = Staging::default();
    let page_slot = staging.push(&work.pages);
    let column_slot = staging.push(&columns);
    let node_slot = staging.push(&nodes);
    let zero_slot = zeros.stage(&mut staging);
    let selected_slot = request.selected.map(|it| (staging.push(it.words()), staging.push(&work.runs)));
    let [snappy, lz4, flat, shaped, dictionaries] =
        [&placed.snappy, &placed.lz4, &work.flat, &work.shaped, &work.string_dictionaries].map(|it| staging.push(it));
    let [fixed, byte_arrays, decimals] = [&fixed_parts, &byte_array_parts, &decimal_parts].map(|it| staging.push(it));
    let (entry_pages, entry_runs, key_pages) = keys.lists();
    let (entry_pages, entry_runs) = (staging.push(entry_pages), staging.push(entry_runs));
    let key_pages = staging.push(key_pages);
    let expand_lists = work.expand.stage(&mut staging);
    let staged = staging.upload(stream, "page table")?;
    let mut table = Table {
        pages: staged.address(page_slot),
        columns: staged.address(column_slot),
        states: reports.device.address() + Reports::STATES as u64,
        fault: reports.device.address(),
    };
    let report_bytes = reports.host.len();

    zeros.launch(stream, staged.address(zero_slot))?;
    // SAFETY: the chunks are the caller's promise; plain bodies lie in the scratch memory of `placed`.
    unsafe {
        decompress::snappy::launch(stream, table.pages, staged.address(snappy), placed.snappy.len(), table.fault)?;
        decompress::lz4::launch(stream, table.pages, staged.address(lz4), placed.lz4.len(), table.fault)?;
    }
    levels::launch(stream, &table, staged.address(flat), blocks(work.flat.len())?)?;
    let selected = selected_slot.map(|(bits, runs)| (staged.address(bits), staged.address(runs)));
    let (node_address, shaped) = (staged.address(node_slot), staged.address(shaped));
    nested::count(stream, request, &work, &table, node_address, shaped, selected)?;

    work.expand.launch(stream, &table, &staged, expand_lists)?;

    // How many slots the levels make decides how large the arrays below lists are, and lengths how large strings are that are
    // put together from parts.
    let mut sizes = nested::Sizes::default();
    let (mut shaped, mut _strings) = (None, None);
    let any_shaped = work.is_shaped.contains(&true);
    if any_shaped || work.expand.has_strings() {
        let counts = levels.read_counts(stream, || reports.read(stream, report_bytes))?;
        no_fault(request, &keys, &reports)?;
        _strings = work.expand.launch_strings(stream, &table, &staged, expand_lists, &reports.states())?;
        if any_shaped {
            sizes = shapes.size(request, &work, &reports.states(), &counts)?;
            let mut zeros = Zeros::default();
            for (at, column) in columns.iter_mut().enumerate().filter(|(at, _)| work.is_shaped[*at]) {
                column.rows = sizes.slots[at];
            }
            arrays.alloc(stream, with_entries, &shapes, &mut columns, &mut zeros, |column| work.is_shaped[column])?;
            shaped = Some(nested::shape(stream, &mut shapes, &work, &mut columns, &sizes, zeros, &mut table)?);
        }
    }

    dictionary::launch(stream, &table, staged.address(dictionaries), blocks(work.string_dictionaries.len())?)?;
    let [entry_pages, entry_runs, key_pages] = [entry_pages, entry_runs, key_pages].map(|it| staged.address(it));
    keys.launch(stream, &table, entry_pages, entry_runs, key_pages)?;
    fixed::launch(stream, &table, staged.address(fixed), blocks(fixed_parts.len())?)?;
    let bytes = reports.device.address() + reports.parts() as u64;
    strings::launch_refs(stream, &table, staged.address(byte_arrays), bytes, blocks(byte_array_parts.len())?)?;
    reports.read(stream, report_bytes)?;
    no_fault(request, &keys, &reports)?;
    let states = reports.states();
    let counts = keys.counts(&states);
    for (column, count) in columns[request.leaves.len()..].iter_mut().zip(&counts) {
        column.rows = *count;
    }

    if !arrays.refs.is_empty() {
        decimals::launch(stream, &table, staged.address(decimals), blocks(decimal_parts.len())?)?;
        let bytes = reports.part_bytes();
        let (outputs, columns) = (&mut arrays.outputs, &mut columns);
        strings::gather(stream, with_entries, &work, &byte_array_parts, &bytes, outputs, columns, &table, || {
            reports.read(stream, Reports::STATES)
        })?;
        no_fault(request, &keys, &reports)?;
    }

    let mut valid = sizes.leaf_valid.clone();
    valid.resize(columns.len(), 0);
    for &index in &work.flat {
        valid[work.pages[index as usize].column as usize] += u64::from(states[index as usize].valid);
    }
    let entry_outputs = arrays.outputs.split_off(request.leaves.len());
    let leaves = arrays.outputs.into_iter().zip(&columns).zip(valid);
    let leaves = leaves.map(|((output, column), valid)| nested::Leaf {
        output,
        slots: column.rows,
        nulls: column.rows.saturating_sub(valid),
        children: Vec::new(),
    });
    let mut leaves: Vec<_> = leaves.collect();
    for (((column, leaf), output), count) in entry_leaves.iter().zip(entry_outputs).zip(counts) {
        leaves[*column].children.push(output.into_array(leaf.data_type.clone(), count, 0)?);
    }
    shapes.assemble(request, leaves, shaped.map(|(nodes, _)| nodes).unwrap_or_default(), &sizes)
}

/// The first fault that kernels found, as an error.
fn no_fault(request: &Request<'_>, keys: &Keys, reports: &Reports) -> Result<()> {
    let word = reports.fault();
    let word = match word {
        u64::MAX => word,
        _ => (word & (FAULT_PAGE - 1)) | (keys.source(word / FAULT_PAGE) * FAULT_PAGE),
    };
    request.table.fault(word).map_or(Ok(()), Err)
}

/// The arrays of the leaves, and what is needed to fill them.
struct Arrays {
    /// By column.
    outputs: Vec<Output>,
    /// References to byte arrays, of the columns of such.
    refs: Vec<DeviceBuffer>,
    /// Ranks, where rows are selected.
    ranks: Vec<DeviceBuffer>,
}

impl Arrays {
    fn new(request: &Request<'_>) -> Self {
        Self {
            outputs: request.leaves.iter().map(|_| Output::default()).collect(),
            refs: Vec::new(),
            ranks: Vec::new(),
        }
    }

    /// Allocates for those of the columns for which `wanted` says so, and enters the addresses.
    fn alloc(
        &mut self,
        stream: &Stream,
        request: &Request<'_>,
        shapes: &Shapes,
        columns: &mut [abi::Column],
        zeros: &mut Zeros,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<()> {
        for (at, column) in columns.iter_mut().enumerate().filter(|(at, _)| wanted(*at)) {
            let leaf = request.leaves[at];
            self.outputs[at] = Output::alloc(stream, leaf, shapes.has_nulls(request, at), column, zeros)?;
            if at >= shapes.leaves() {
                self.outputs[at].zero(zeros); // how many entries there are is told later
            }
            if column.flags & abi::column_flag::SELECTED != 0 {
                let bytes = column.rows.checked_mul(size_of::<u32>() as u64);
                let ranks = output::alloc(stream, bytes, "ranks of selected values")?;
                column.ranks = ranks.address();
                self.ranks.push(ranks);
            }
            if leaf.decode.is_byte_array() {
                let bytes = column.rows.checked_mul(size_of::<StringRef>() as u64);
                let refs = output::alloc(stream, bytes, "references to byte arrays")?;
                column.refs = refs.address();
                self.refs.push(refs);
            }
        }
        Ok(())
    }
}
