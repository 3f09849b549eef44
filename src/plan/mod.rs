//! What a scan will read, decided before anything is read: pure, printable, without I/O and without a GPU.

mod budget;
mod display;
pub mod prune;
mod ranges;
mod route;

use std::collections::BTreeMap;
use std::ops::Range;

use parquet::arrow::ProjectionMask;
use parquet::basic::{Compression, Encoding};

use crate::error::{Error, Place, Result};
use crate::footer::{Footer, LeafDecode};
use crate::options::{IoOptions, ReadOptions};
pub use ranges::EDGE;
pub(crate) use ranges::split;
pub use route::{Route, RouteReason};

/// What the plan must know of the world; values, so that the plan stays pure.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// Whether the source is a local file, which cuFile can read.
    pub local: bool,
    /// Whether arrays end up on a device that runs kernels.
    pub gpu: bool,
    /// Codecs that kernels decompress.
    pub codecs: &'a [Compression],
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
}

/// A scan: batches in the order in which they are read.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPlan {
    /// Indices of the projected leaves, ascending.
    pub leaves: Vec<usize>,
    /// The batches.
    pub batches: Vec<BatchPlan>,
}

/// One batch: whole row groups that fit the memory budget together.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchPlan {
    /// Row groups, and where their rows start in the batch.
    pub row_groups: Vec<RowGroupPlan>,
    /// Rows of the batch.
    pub rows: u64,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroupPlan {
    /// Index in the file.
    pub index: usize,
    /// Rows.
    pub rows: u64,
    /// Its first row in the batch.
    pub first_row: u64,
}

/// A column chunk in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Row group in the file.
    pub row_group: usize,
    /// Leaf.
    pub leaf: usize,
    /// Its bytes in the file: dictionary and data pages.
    pub bytes: Range<u64>,
    /// Where it lands in the slab; `None`: in host memory, for arrow-rs.
    pub slab_offset: Option<u64>,
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
        let metadata = footer.metadata();
        let leaves: Vec<usize> =
            (0..footer.leaves.len()).filter(|leaf| selection.projection.leaf_included(*leaf)).collect();
        let row_groups = row_groups(footer, selection)?;
        let on_cpu = match context.gpu {
            true => on_cpu(footer, &row_groups, &leaves, context),
            false => BTreeMap::new(),
        };

        let mut costs = Vec::with_capacity(row_groups.len());
        for &index in &row_groups {
            let rows = u64::try_from(metadata.row_group(index).num_rows()).unwrap_or(0); // see `on_cpu`
            let is_on_cpu = |leaf: usize| !context.gpu || on_cpu.contains_key(&footer.leaves[leaf].root);
            costs.push((index, budget::cost(footer, index, rows, &leaves, is_on_cpu)));
        }
        let batches = budget::cut(&costs, options, context.memory, context.gpu || options.memory.is_some())?;

        let batch = |groups: Vec<(usize, budget::Cost)>| {
            let mut rows = 0u64;
            let mut chunks = Vec::with_capacity(groups.len() * leaves.len());
            let mut placed = Vec::with_capacity(groups.len());
            for (index, cost) in &groups {
                placed.push(RowGroupPlan { index: *index, rows: cost.rows, first_row: rows });
                rows = rows.saturating_add(cost.rows);
                for &leaf in &leaves {
                    let on_cpu = on_cpu.get(&footer.leaves[leaf].root).cloned();
                    let bytes = chunk_bytes(footer, *index, leaf)?;
                    chunks.push(ChunkPlan { row_group: *index, leaf, bytes, slab_offset: None, on_cpu });
                }
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
            Ok(BatchPlan { row_groups: placed, rows, chunks, ranges, slab_bytes, memory })
        };
        let batches = batches.into_iter().map(batch).collect::<Result<_>>()?;
        Ok(Self { leaves, batches })
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
    // arrow-rs reads such a row group to the end of its pages; kernels must know beforehand how many rows come.
    let unclear = row_groups.iter().any(|group| {
        let group = footer.metadata().row_group(*group);
        group.num_rows() < 0
            || (group.num_rows() == 0 && leaves.iter().any(|leaf| group.column(*leaf).num_values() != 0))
    });
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
            let codec =
                chunks().map(|it| it.compression()).find(|codec| !context.codecs.iter().any(|it| same(it, codec)))?;
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

/// Whether two codecs are the same; their levels matter to writers alone.
fn same(one: &Compression, other: &Compression) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// The name of a codec, without its level.
pub(crate) fn codec_name(codec: Compression) -> String {
    let text = codec.to_string();
    text.split('(').next().unwrap_or(&text).to_string()
}

/// A chunk's bytes, cut at the file's end: arrow-rs, too, only fails when it needs what is not there.
fn chunk_bytes(footer: &Footer, row_group: usize, leaf: usize) -> Result<Range<u64>> {
    let place = || Place::chunk(row_group, &footer.leaves[leaf].path);
    if footer.encrypted.contains(&(row_group, leaf)) {
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

/// Plans to read a whole file raw into a slab: one range.
pub fn raw(file_bytes: u64, options: &ReadOptions, context: &Context<'_>) -> RangePlan {
    ranges::raw(file_bytes, &options.io, context)
}
