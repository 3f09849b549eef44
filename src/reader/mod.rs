//! Wires the stages together: a builder that people know from arrow-rs, and an iterator of batches.

mod gpu;
mod host;
mod raw;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::RowSelection;
use parquet::file::metadata::RowGroupMetaData;

use crate::batch::DeviceBatch;
use crate::device::{Device, Gpu};
use crate::error::Result;
use crate::footer::Footer;
use crate::io::fetch::Fetcher;
use crate::io::ledger::{Ledger, PathReport};
use crate::io::source::Source;
use crate::options::ReadOptions;
use crate::plan::{self, BatchPlan, Context, ScanPlan, Selection};
use crate::sys::nvcomp::NvComp;
use crate::{cpu, decode, decompress};
pub use raw::RawReader;

/// Bytes that a batch on the CPU may come to, by the footer's sizes. A row group a core fits, and the file need not.
const HOST_BATCH: u64 = 1 << 30;

/// Builds a [`GpuReader`], as arrow-rs's `ParquetRecordBatchReaderBuilder` builds its reader.
#[derive(Debug)]
pub struct GpuReaderBuilder {
    source: Arc<Source>,
    device: Device,
    footer: Footer,
    options: ReadOptions,
    selection: Selection,
}

impl GpuReaderBuilder {
    /// Reads the footer of `source`, and nothing else.
    ///
    /// # Errors
    /// As [`Footer::read`].
    pub fn try_new(source: Arc<Source>, device: Device) -> Result<Self> {
        let footer = Footer::read(&source)?;
        Ok(Self::new_with_footer(source, device, footer))
    }

    /// A builder for a source whose footer was read before.
    pub fn new_with_footer(source: Arc<Source>, device: Device, footer: Footer) -> Self {
        let selection = Selection { projection: ProjectionMask::all(), row_groups: None, rows: None };
        Self { source, device, footer, options: ReadOptions::default(), selection }
    }

    /// Sets how and within what memory it reads.
    pub fn with_options(mut self, options: ReadOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets which columns are read; what is left out costs nothing.
    pub fn with_projection(mut self, projection: ProjectionMask) -> Self {
        self.selection.projection = projection;
        self
    }

    /// Sets which row groups are read, in this order; what is left out costs nothing.
    pub fn with_row_groups(mut self, row_groups: Vec<usize>) -> Self {
        self.selection.row_groups = Some(row_groups);
        self
    }

    /// Sets which rows are read, counted through the selected row groups in their order. Pages without such rows are neither
    /// read nor decoded where the file has an offset index; elsewhere it saves memory and time of what comes after. A
    /// scan that selects rows takes one more byte for each level of each column.
    pub fn with_row_selection(mut self, selection: RowSelection) -> Self {
        self.selection.rows = Some(selection);
        self
    }

    /// The footer, with the types that arrow-rs chooses; [`Footer::with_types`] tells those that the options ask for.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// What would be read, by which route, and why. Reads nothing.
    ///
    /// # Errors
    /// As [`ScanPlan::new`] and [`Footer::with_types`].
    pub fn plan(&self) -> Result<ScanPlan> {
        let footer = self.footer.with_types(&self.options)?;
        self.plan_within(&footer, self.memory()?, matches!(self.nvcomp(&footer), Some(Ok(_))))
    }

    /// The device-memory budget: what was asked for, or 80 % of what is free. On the CPU it sizes batches and no more.
    fn memory(&self) -> Result<u64> {
        match (&self.device, self.options.memory) {
            (_, Some(bytes)) => Ok(bytes),
            (Device::Gpu(gpu), None) => Ok(gpu.free_memory()? / 10 * 8),
            (Device::Cpu, None) => Ok(HOST_BATCH),
        }
    }

    /// nvCOMP, or why there is none; `None`: nothing would use it, and nothing is loaded. It works on a GPU; a library that
    /// is named and stands in for it in tests works on the emulated device.
    fn nvcomp(&self, footer: &Footer) -> Option<Result<Arc<NvComp>>> {
        let Device::Gpu(gpu) = &self.device else { return None };
        let is_cuda = !gpu.properties().host_addressable;
        let named = self.options.nvcomp_library.as_deref();
        let codecs = decompress::nvcomp::codecs();
        let uses = |group: &RowGroupMetaData| {
            let mut chunks = group.columns().iter().enumerate();
            chunks.any(|(leaf, chunk)| {
                self.selection.projection.leaf_included(leaf) && plan::is_among(chunk.compression(), &codecs)
            })
        };
        if !(is_cuda || named.is_some()) || !footer.metadata().row_groups().iter().any(uses) {
            return None;
        }
        Some(NvComp::get(named)).filter(|found| is_cuda || found.as_ref().is_ok_and(|it| it.is_fake()))
    }

    fn plan_within(&self, footer: &Footer, memory: u64, nvcomp: bool) -> Result<ScanPlan> {
        let host_codecs = decompress::host::codecs();
        let mut codecs = decompress::GPU_CODECS.to_vec();
        if nvcomp {
            codecs.extend(decompress::nvcomp::codecs());
        }
        let context = Context {
            local: self.source.file().is_some(),
            gpu: matches!(self.device, Device::Gpu(_)),
            codecs: &codecs,
            host_codecs: &host_codecs,
            encodings: decode::GPU_ENCODINGS,
            memory,
        };
        ScanPlan::new(footer, &self.selection, &self.options, &context)
    }

    /// Plans the scan. Nothing but the footer has been read before the first batch is asked for.
    ///
    /// # Errors
    /// As [`ScanPlan::new`] and [`Footer::with_types`], and [`Error::Device`](crate::Error::Device).
    pub fn build(self) -> Result<GpuReader> {
        let memory = self.memory()?;
        let footer = self.footer.with_types(&self.options)?;
        let nvcomp = self.nvcomp(&footer);
        let plan = self.plan_within(&footer, memory, matches!(nvcomp, Some(Ok(_))))?;
        let schema = cpu::projected_schema(&footer, &self.selection.projection)?;
        let gpu = match &self.device {
            Device::Gpu(gpu) => Some(gpu.with_budget(memory)),
            Device::Cpu => None,
        };
        let ledger = Arc::new(Ledger::default());
        let fetcher = Fetcher::new(self.source, self.options.io, gpu.clone(), ledger.clone());
        let nvcomp = nvcomp.and_then(|found| {
            let missing = |why| ledger.remark(format!("ZSTD and GZIP are decompressed on the CPU: {why}"));
            found.map_err(missing).ok()
        });
        let engine = gpu.clone().map(|gpu| gpu::Engine::new(gpu, nvcomp)).transpose()?;
        let chunks = || plan.batches.iter().flat_map(|batch| &batch.chunks);
        let page_bytes = chunks().filter(|chunk| chunk.is_first_part()).map(|chunk| {
            let chunk = footer.metadata().row_group(chunk.row_group).column(chunk.leaf);
            u64::try_from(chunk.uncompressed_size()).unwrap_or(0)
        });
        let report = ScanReport {
            row_groups: plan.batches.iter().map(|batch| batch.row_groups.len()).sum(),
            columns: plan.leaves.len(),
            footer_repaired: plan.repaired.clone(),
            file_bytes: chunks().map(|chunk| chunk.bytes.end - chunk.bytes.start).sum(),
            page_bytes: page_bytes.fold(0, u64::saturating_add),
            ..ScanReport::default()
        };
        let (projection, leaves) = (self.selection.projection, plan.leaves);
        let scan = Scan { footer, projection, schema, leaves, check_crc: self.options.check_crc };
        let queue = VecDeque::new();
        Ok(GpuReader { scan, batches: plan.batches.into(), fetcher, engine, gpu, ledger, queue, report })
    }
}

/// What stays the same for every batch of a scan.
#[derive(Debug)]
struct Scan {
    footer: Footer,
    projection: ProjectionMask,
    schema: SchemaRef,
    /// Projected leaves, ascending.
    leaves: Vec<usize>,
    /// Whether checksums of pages are checked.
    check_crc: bool,
}

impl Scan {
    /// The projected leaves of these top-level fields, as a projection of their own.
    fn projection_of(&self, roots: &BTreeSet<usize>) -> ProjectionMask {
        let leaves = self.leaves.iter().copied().filter(|leaf| roots.contains(&self.footer.leaves[*leaf].root));
        ProjectionMask::leaves(self.footer.metadata().file_metadata().schema_descr(), leaves)
    }
}

/// An iterator of [`DeviceBatch`]es. After an error it ends.
#[derive(Debug)]
pub struct GpuReader {
    scan: Scan,
    batches: VecDeque<BatchPlan>,
    fetcher: Fetcher,
    engine: Option<gpu::Engine>,
    gpu: Option<Gpu>,
    ledger: Arc<Ledger>,
    /// Batches that are done: on the CPU a row group may come as several.
    queue: VecDeque<DeviceBatch>,
    report: ScanReport,
}

impl GpuReader {
    /// The Arrow schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.scan.schema
    }

    /// What the scan has done so far.
    pub fn report(&self) -> ScanReport {
        let mut report = self.report.clone();
        if let Some(gpu) = &self.gpu {
            report.launches = gpu.counters().launches();
            report.syncs = gpu.counters().syncs();
            report.peak_device_bytes = gpu.budget().peak();
        }
        report.paths = self.ledger.report();
        report
    }

    fn read(&mut self, plan: &BatchPlan) -> Result<()> {
        match &mut self.engine {
            Some(engine) => {
                let read = engine.read(&self.scan, plan, &mut self.fetcher)?;
                self.report.columns_on_cpu.extend(read.columns_on_cpu);
                for (codec, chunks) in read.decompressed_on_cpu {
                    *self.report.decompressed_on_cpu.entry(codec).or_default() += chunks;
                }
                self.queue.push_back(read.batch);
            }
            None => self.queue.extend(host::read(&self.scan, plan, &mut self.fetcher)?),
        }
        Ok(())
    }
}

impl Iterator for GpuReader {
    type Item = Result<DeviceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.queue.pop_front() {
                self.report.batches += 1;
                self.report.rows += batch.num_rows() as u64;
                self.report.arrow_bytes += batch.memory();
                return Some(Ok(batch));
            }
            let plan = self.batches.pop_front()?;
            if let Err(error) = self.read(&plan) {
                self.batches.clear();
                return Some(Err(self.scan.footer.explain(error)));
            }
        }
    }
}

/// What a scan did.
#[derive(Debug, Clone, Default)]
pub struct ScanReport {
    /// Rows handed out.
    pub rows: u64,
    /// Row groups of the plan.
    pub row_groups: usize,
    /// Batches handed out.
    pub batches: usize,
    /// Projected leaf columns.
    pub columns: usize,
    /// Fields of the footer that were left out or changed, as [`Footer::repaired`] has them; empty for almost every file.
    pub footer_repaired: Arc<[&'static str]>,
    /// Leaf columns that arrow-rs decoded in place of a kernel, in any batch, with the reason.
    pub columns_on_cpu: BTreeMap<String, String>,
    /// Column chunks whose pages the CPU decompressed and kernels decoded, by codec.
    pub decompressed_on_cpu: BTreeMap<String, usize>,
    /// Bytes of the column chunks as stored.
    pub file_bytes: u64,
    /// Bytes of their pages uncompressed, as the footer states.
    pub page_bytes: u64,
    /// Bytes of the arrays handed out, padding included.
    pub arrow_bytes: u64,
    /// Kernel launches.
    pub launches: u64,
    /// Times that the host waited for the device.
    pub syncs: u64,
    /// The most device memory held at one time.
    pub peak_device_bytes: u64,
    /// Which path every operation took.
    pub paths: PathReport,
}
