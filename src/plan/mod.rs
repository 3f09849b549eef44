//! What a scan will read, decided before anything is read: pure, printable, without I/O and without a GPU.

mod budget;
mod display;
pub mod prune;
mod ranges;
mod route;
mod rows;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::RowSelection;
use parquet::basic::{Compression, Encoding};

use crate::error::{Error, Place, Result};
use crate::footer::{Footer, LeafDecode};
use crate::options::{IoOptions, ReadOptions};
pub use ranges::EDGE;
pub(crate) use ranges::split;
pub use route::{Route, RouteReason};
use rows::as_selection;

/// What the plan must know of the world; values, so that the plan stays pure.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// Whether the source is a local file, which cuFile can read.
    pub local: bool,
    /// Whether arrays end up on a device that runs kernels.
    pub gpu: bool,
    /// Codecs that kernels decompress.
    pub codecs: &'a [Compression],
    /// Codecs that the CPU decompresses for kernels, where they are not among `codecs`.
    pub host_codecs: &'a [Compression],
    /// Encodings that kernels decode.
    pub encodings: &'a [Encoding],
    /// Device memory that one batch may hold, in bytes.
    pub memory: u64,
}

/// What to read.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Which leaves.
    pub projection: ProjectionMask,
    /// Which row groups, in the order given. `None`: all.
    pub row_groups: Option<Vec<usize>>,
    /// Which rows, counted through the row groups above in their order. `None`: all.
    pub rows: Option<RowSelection>,
}

/// A scan: batches in the order in which they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPlan {
    /// Indices of the projected leaves, ascending.
    pub leaves: Vec<usize>,
    /// What was mended in the footer, as [`Footer::repaired`] has it.
    pub repaired: Arc<[&'static str]>,
    /// The batches.
    pub batches: Vec<BatchPlan>,
}

/// One batch: whole row groups that fit the memory budget together.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchPlan {
    /// Row groups, and where their rows start in the batch.
    pub row_groups: Vec<RowGroupPlan>,
    /// Rows of the batch, of those selected.
    pub rows: u64,
    /// Rows of its row groups.
    pub all_rows: u64,
    /// Column chunks, by row group and then leaf.
    pub chunks: Vec<ChunkPlan>,
    /// What is read, by file offset.
    pub ranges: Vec<RangePlan>,
    /// Bytes of the device slab that ranges land in.
    pub slab_bytes: u64,
    /// Device memory that the footer lets us expect, in bytes: slab, page bodies, scratch and arrays.
    pub memory: u64,
}

/// A row group in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowGroupPlan {
    /// Index in the file.
    pub index: usize,
    /// Rows.
    pub rows: u64,
    /// Its first row among all rows of the batch's row groups.
    pub first_row: u64,
    /// Which of its rows are wanted, ascending. `None`: all.
    pub selected: Option<Vec<Range<u64>>>,
}

/// Pages of a column chunk that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSpan {
    /// The first, counted from the chunk's dictionary page or, where it has none, its first data page.
    pub first_page: usize,
    /// The row of the row group with which they start.
    pub first_row: u64,
    /// Their rows; 0 for a dictionary page alone.
    pub rows: u64,
    /// Whether it is the first part of its chunk.
    pub is_first: bool,
}

/// A column chunk in a batch, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Row group in the file.
    pub row_group: usize,
    /// Index of the row group among those of the batch.
    pub group: usize,
    /// Leaf.
    pub leaf: usize,
    /// Its bytes in the file: dictionary and data pages.
    pub bytes: Range<u64>,
    /// Which of its pages these are, where rows are selected; `None`: all.
    pub pages: Option<PageSpan>,
    /// Where it lands in the slab; `None`: in host memory, for arrow-rs.
    pub slab_offset: Option<u64>,
    /// The codec by which the CPU decompresses its pages for the kernels. It is read into host memory and copied to
    /// its place in the slab.
    pub host_codec: Option<Compression>,
    /// Why arrow-rs decodes it, when it does.
    pub on_cpu: Option<String>,
}

/// A contiguous read, of one or more chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangePlan {
    /// From the first chunk's first byte to the last chunk's last, gaps included.
    pub bytes: Range<u64>,
    /// What is read: `bytes`, for direct ranges widened to 4 KiB edges and cut at the file's end.
    pub read: Range<u64>,
    /// Bytes of `read` that no chunk asked for.
    pub wasted: u64,
    /// Which way.
    pub route: Route,
    /// Why.
    pub reason: RouteReason,
    /// Where `read.start` lands in the slab, congruent to it modulo 4096; `None`: in host memory.
    pub slab_offset: Option<u64>,
    /// The operations, each of at most `task_size` bytes, in order, covering `read`.
    pub tasks: Vec<Range<u64>>,
}

impl ScanPlan {
    /// Plans a scan.
    ///
    /// # Errors
    /// [`Error::Argument`] for a row group that is not there, [`Error::Corrupt`] for chunks with a negative offset or
    /// size, [`Error::Unsupported`] for encrypted ones, [`Error::Budget`] when one row group does not fit.
    pub fn new(footer: &Footer, selection: &Selection, options: &ReadOptions, context: &Context<'_>) -> Result<Self> {
        let leaves: Vec<usize> =
            (0..footer.leaves.len()).filter(|leaf| selection.projection.leaf_included(*leaf)).collect();
        let row_groups = row_groups(footer, selection)?;
        let on_cpu = match context.gpu {
            true => on_cpu(footer, &row_groups, &leaves, context),
            false => BTreeMap::new(),
        };

        let rows_of = |index: usize| rows_of(footer, index, &leaves).unwrap_or(0); // for arrow-rs then, see `on_cpu`
        let counts: Vec<u64> = row_groups.iter().map(|index| rows_of(*index)).collect();
        // The rows wanted of each row group; `None`: all. Row groups of which none are wanted are left out.
        let wanted: Vec<Option<Vec<Range<u64>>>> = match &selection.rows {
            None => vec![None; row_groups.len()],
            Some(selected) => rows::split(selected, &counts).into_iter().map(Some).collect(),
        };
        let groups = row_groups.iter().zip(counts).zip(wanted);
        let groups = groups.map(|((index, rows), wanted)| (*index, wanted.filter(|it| rows::count(it) < rows)));
        let groups = groups.filter(|(_, wanted)| wanted.as_ref().is_none_or(|it| !it.is_empty()));
        let (groups, mut wanted): (Vec<usize>, VecDeque<_>) = groups.unzip();

        let mut costs = Vec::with_capacity(groups.len());
        for &index in &groups {
            let is_on_cpu = |leaf: usize| !context.gpu || on_cpu.contains_key(&footer.leaves[leaf].root);
            costs.push((index, budget::cost(footer, index, rows_of(index), &leaves, is_on_cpu)));
        }
        let batches = budget::cut(&costs, options, context.memory, context.gpu || options.memory.is_some())?;

        let batch = |groups: Vec<(usize, budget::Cost)>| {
            let (mut rows, mut all_rows) = (0u64, 0u64);
            let mut chunks = Vec::with_capacity(groups.len() * leaves.len());
            let mut placed = Vec::with_capacity(groups.len());
            for (index, cost) in &groups {
                let selected = wanted.pop_front().flatten();
                let count = selected.as_ref().map_or(cost.rows, |it| rows::count(it));
                for &leaf in &leaves {
                    let on_cpu = on_cpu.get(&footer.leaves[leaf].root).cloned();
                    let bytes = chunk_bytes(footer, *index, leaf)?;
                    // arrow-rs looks for its rows itself, header by header.
                    let parts = match &selected {
                        Some(selected) if on_cpu.is_none() && context.gpu => {
                            rows::parts(footer, *index, leaf, cost.rows, &bytes, selected)
                        }
                        _ => None,
                    };
                    let (row_group, group) = (*index, placed.len());
                    let codec = footer.metadata().row_group(row_group).column(leaf).compression();
                    let host_codec =
                        (context.gpu && on_cpu.is_none() && !is_among(codec, context.codecs)).then_some(codec);
                    let (pages, slab_offset) = (None, None);
                    let chunk = ChunkPlan { row_group, group, leaf, bytes, pages, slab_offset, host_codec, on_cpu };
                    match parts {
                        None => chunks.push(chunk),
                        Some(parts) => chunks.extend(parts.into_iter().map(|(bytes, pages)| ChunkPlan {
                            bytes,
                            pages: Some(pages),
                            ..chunk.clone()
                        })),
                    }
                }
                placed.push(RowGroupPlan { index: *index, rows: cost.rows, first_row: all_rows, selected });
                rows = rows.saturating_add(count);
                all_rows = all_rows.saturating_add(cost.rows);
            }
            let expected = groups.iter().fold(0u64, |sum, (_, cost)| sum.saturating_add(cost.memory));
            let mut plan = |io: &IoOptions| {
                let (ranges, slab_bytes) = ranges::plan(&mut chunks, footer.file_bytes, io, context);
                (ranges, slab_bytes, expected.saturating_add(budget::gaps(&chunks, slab_bytes)))
            };
            let (mut ranges, mut slab_bytes, mut memory) = plan(&options.io);
            if memory > context.memory {
                // Gaps between chunks are read for speed, never beyond the budget.
                (ranges, slab_bytes, memory) = plan(&options.io.clone().with_merge(0, 0));
            }
            Ok(BatchPlan { row_groups: placed, rows, all_rows, chunks, ranges, slab_bytes, memory })
        };
        let batches = batches.into_iter().map(batch).collect::<Result<_>>()?;
        Ok(Self { leaves, repaired: footer.repaired.clone(), batches })
    }
}

/// The selected row groups.
fn row_groups(footer: &Footer, selection: &Selection) -> Result<Vec<usize>> {
    let metadata = footer.metadata();
    let count = metadata.num_row_groups();
    let selected = selection.row_groups.clone().unwrap_or_else(|| (0..count).collect());
    if let Some(missing) = selected.iter().find(|index| **index >= count) {
        return Err(Error::Argument(format!("there is no row group {missing}: the file has {count}")));
    }
    // arrow-rs goes by the file's own count of rows before it looks at row groups, and so must whoever is to equal it.
    Ok(if metadata.file_metadata().num_rows() == 0 { Vec::new() } else { selected })
}

/// The top-level fields that arrow-rs decodes, with the reason: one chunk that no kernel decodes is enough, since a
/// column of a batch is one array.
fn on_cpu(footer: &Footer, row_groups: &[usize], leaves: &[usize], context: &Context<'_>) -> BTreeMap<usize, String> {
    let mut on_cpu = BTreeMap::new();
    let unclear = row_groups.iter().any(|group| rows_of(footer, *group, leaves).is_none());
    for &index in leaves {
        let leaf = &footer.leaves[index];
        if unclear {
            on_cpu.entry(leaf.root).or_insert("a row count in the footer that cannot be".into());
        }
        let by_type = match leaf.decode {
            LeafDecode::Cpu(reason) => Some(reason.to_string()),
            _ => None,
        };
        let chunks = || row_groups.iter().map(|group| footer.metadata().row_group(*group).column(index));
        let by_codec = || {
            let is_known = |codec| is_among(codec, context.codecs) || is_among(codec, context.host_codecs);
            let codec = chunks().map(|it| it.compression()).find(|codec| !is_known(*codec))?;
            Some(format!("no kernel for {}", codec_name(codec)))
        };
        let by_encoding = || {
            let encoding = chunks().flat_map(|it| it.encodings()).find(|it| !context.encodings.contains(it))?;
            Some(format!("no kernel for {encoding}"))
        };
        if let Some(reason) = by_type.or_else(by_codec).or_else(by_encoding) {
            on_cpu.entry(leaf.root).or_insert(reason);
        }
    }
    on_cpu
}

/// Rows of a row group. Where its own count cannot be, because it is negative or 0 beside pages with values, arrow-rs reads
/// to the end of the pages, whose number of values a column that does not repeat has from the footer. `None`: there is no
/// such column.
fn rows_of(footer: &Footer, group: usize, leaves: &[usize]) -> Option<u64> {
    let group = footer.metadata().row_group(group);
    let values = |leaf: usize| u64::try_from(group.column(leaf).num_values()).unwrap_or(0);
    let rows = u64::try_from(group.num_rows()).ok();
    if let Some(rows) = rows.filter(|rows| *rows > 0 || leaves.iter().all(|leaf| values(*leaf) == 0)) {
        return Some(rows);
    }
    leaves.iter().find(|leaf| footer.leaves[**leaf].max_rep == 0).map(|leaf| values(*leaf))
}

/// Whether a codec is among others; its level matters to writers alone.
pub(crate) fn is_among(codec: Compression, codecs: &[Compression]) -> bool {
    codecs.iter().any(|it| std::mem::discriminant(it) == std::mem::discriminant(&codec))
}

/// The name of a codec, without its level.
pub(crate) fn codec_name(codec: Compression) -> String {
    let text = codec.to_string();
    text.split('(').next().unwrap_or(&text).to_string()
}

/// A chunk's bytes, cut at the file's end: arrow-rs, too, only fails when it needs what is not there.
pub(crate) fn chunk_bytes(footer: &Footer, row_group: usize, leaf: usize) -> Result<Range<u64>> {
    let place = || Place::chunk(row_group, &footer.leaves[leaf].path);
    if footer.encryption.certain.contains(&(row_group, leaf)) {
        return Err(Error::unsupported(place(), "the column is encrypted; decryption is not supported"));
    }
    let chunk = footer.metadata().row_group(row_group).column(leaf);
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let (Ok(start), Ok(length)) = (u64::try_from(start), u64::try_from(chunk.compressed_size())) else {
        return Err(Error::corrupt(place(), "the column chunk has a negative offset or size"));
    };
    let start = start.min(footer.file_bytes);
    Ok(start..start.saturating_add(length).min(footer.file_bytes))
}

impl ChunkPlan {
    /// Whether it is a chunk, or the first part of one.
    pub fn is_first_part(&self) -> bool {
        self.pages.is_none_or(|pages| pages.is_first)
    }
}

impl RowGroupPlan {
    /// Its rows that are wanted, as arrow-rs has them.
    pub(crate) fn selection(&self) -> Option<RowSelection> {
        self.selected.as_deref().map(as_selection)
    }
}

/// Plans to read a whole file raw into a slab: one range.
pub fn raw(file_bytes: u64, options: &ReadOptions, context: &Context<'_>) -> RangePlan {
    ranges::raw(file_bytes, &options.io, context)
}
