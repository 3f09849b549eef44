//! What a scan will read, decided before anything is read: pure, printable, without I/O and without a GPU.

pub mod budget;
pub mod prune;
pub mod ranges;
pub mod route;

use std::ops::Range;

use parquet::arrow::ProjectionMask;
use parquet::basic::{Compression, Encoding};

use crate::error::Result;
use crate::footer::Footer;
use crate::options::ReadOptions;
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
    /// [`Error::Argument`](crate::Error::Argument) for a row group that is not there, [`Error::Corrupt`](crate::Error::Corrupt)
    /// for chunks outside the file, [`Error::Budget`](crate::Error::Budget) when one row group does not fit.
    pub fn new(footer: &Footer, selection: &Selection, options: &ReadOptions, context: &Context<'_>) -> Result<Self> {
        let _ = (footer, selection, options, context);
        Ok(Self { leaves: Vec::new(), batches: Vec::new() })
    }
}

/// Plans to read a whole file raw into a slab: one range.
pub fn raw(file_bytes: u64, options: &ReadOptions, context: &Context<'_>) -> RangePlan {
    ranges::raw(file_bytes, &options.io, context)
}
