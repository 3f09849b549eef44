//! A batch on a device that runs kernels: fetch into a slab, find the pages, decompress, decode; what no kernel decodes
//! goes through arrow-rs and is copied over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::datatypes::DataType;
use parquet::arrow::ProjectionMask;
use parquet::file::reader::ChunkReader;
use rayon::prelude::*;

use super::Scan;
use crate::batch::{DeviceArray, DeviceBatch};
use crate::cpu;
use crate::decode::{self, SelectedRows};
use crate::decompress::host::HostDecompressor;
use crate::decompress::nvcomp;
use crate::device::{DeviceBuffer, Gpu, PinnedBuffer, Stream};
use crate::error::{Error, Place, Result};
use crate::footer::{Field, Leaf};
use crate::io::fetch::Fetcher;
use crate::io::host::HostBytes;
use crate::page::{self, ChunkInput, PageTable};
use crate::plan::{self, BatchPlan, ChunkPlan, RangePlan, Route, RouteReason};
use crate::sys::nvcomp::NvComp;

/// The device side of a scan.
#[derive(Debug)]
pub(super) struct Engine {
    gpu: Gpu,
    stream: Stream,
    /// Kept between batches: cuFile registers it once.
    slab: Option<DeviceBuffer>,
    /// On their way to the slab until the stream has been waited for.
    stored: Option<PinnedBuffer>,
    decompressor: HostDecompressor,
    /// Where the plan leaves codecs to it.
    nvcomp: Option<Arc<NvComp>>,
}

/// A batch, and which of its columns arrow-rs decoded.
pub(super) struct Read {
    pub(super) batch: DeviceBatch,
    pub(super) columns_on_cpu: BTreeMap<String, String>,
    /// Chunks that the CPU decompressed for kernels, by codec.
    pub(super) decompressed_on_cpu: BTreeMap<String, usize>,
}

/// What arrow-rs decodes of a batch.
struct OnCpu {
    /// Top-level fields, with the reason.
    roots: BTreeMap<usize, String>,
    bytes: HostBytes,
}

impl OnCpu {
    /// Whether no column is left for kernels.
    fn is_all(&self, scan: &Scan) -> bool {
        scan.leaves.iter().all(|leaf| self.roots.contains_key(&scan.footer.leaves[*leaf].root))
    }
}

impl Engine {
    pub(super) fn new(gpu: Gpu, nvcomp: Option<Arc<NvComp>>) -> Result<Self> {
        let stream = gpu.new_stream()?;
        Ok(Self { gpu, stream, slab: None, stored: None, decompressor: HostDecompressor::default(), nvcomp })
    }

    pub(super) fn read(&mut self, scan: &Scan, batch: &BatchPlan, fetcher: &mut Fetcher) -> Result<Read> {
        let read = self.try_read(scan, batch, fetcher);
        if read.is_err() {
            // Work that was queued before the failure still uses the slab. Its own failure is not the first.
            let _ = self.stream.synchronize();
        }
        self.stored = None; // the stream has been waited for
        read
    }

    fn try_read(&mut self, scan: &Scan, batch: &BatchPlan, fetcher: &mut Fetcher) -> Result<Read> {
        self.reserve_slab(batch.slab_bytes, fetcher)?;
        let slab = self.slab.as_ref().map(|slab| (slab, &self.stream));
        let bytes = fetcher.fetch(&batch.ranges, slab)?;
        let mut on_cpu = OnCpu { roots: BTreeMap::new(), bytes };
        for chunk in &batch.chunks {
            if let Some(reason) = &chunk.on_cpu {
                on_cpu.roots.entry(scan.footer.leaves[chunk.leaf].root).or_insert_with(|| reason.clone());
            }
        }

        let chunks: Vec<&ChunkPlan> = batch.chunks.iter().filter(|chunk| chunk.slab_offset.is_some()).collect();
        self.upload(&chunks, &on_cpu.bytes)?;
        let table = page::header::parse(&self.stream, &self.inputs(scan, batch, &chunks))?;
        if scan.check_crc {
            // SAFETY: the chunks lie in the slab, which `self` keeps, and their bytes are ordered before the stream.
            unsafe { page::crc::check(&self.stream, &table)? };
        }
        let (mut table, chunks) = self.divert(scan, batch, table, chunks, &mut on_cpu, fetcher)?;
        let (_plain, decompressed_on_cpu) = self.decompress(scan, &mut table, &chunks, &mut on_cpu.bytes, fetcher)?;
        let leaves: BTreeSet<usize> = chunks.iter().map(|chunk| chunk.leaf).collect();
        let leaves: Vec<_> = leaves.into_iter().map(|leaf| &scan.footer.leaves[leaf]).collect();
        let columns: Vec<usize> =
            chunks.iter().map(|chunk| leaves.partition_point(|leaf| leaf.index < chunk.leaf)).collect();
        let (roots, fields) = self.fields(scan, &leaves);
        let selected = selected_rows(batch);
        let request = decode::Request {
            leaves: &leaves,
            fields: &fields,
            rows: batch.rows,
            selected: selected.as_ref(),
            table: &table,
            columns: &columns,
        };

        // arrow-rs decodes while kernels do.
        let (on_gpu, from_cpu) = rayon::join(
            // SAFETY: the chunks lie in the slab, which `self` keeps, and `fetch` ordered their bytes before the stream;
            // what was decompressed before lies in `_plain`.
            || unsafe { decode::decode_batch(&self.stream, &request) },
            || decode_on_cpu(scan, batch, &on_cpu),
        );
        let mut columns = BTreeMap::new();
        for (root, array) in roots.into_iter().zip(on_gpu?) {
            columns.insert(root, array);
        }
        let (roots, arrays) = from_cpu?;
        for (root, array) in roots.into_iter().zip(DeviceArray::upload(&arrays, &self.stream)?) {
            columns.insert(root, array);
        }
        let mut columns: Vec<DeviceArray> = columns.into_values().collect();
        columns.iter_mut().for_each(DeviceArray::hand_over);

        let leaves = scan.leaves.iter().map(|leaf| &scan.footer.leaves[*leaf]);
        let columns_on_cpu =
            leaves.filter_map(|leaf| Some((leaf.path.clone(), on_cpu.roots.get(&leaf.root)?.clone()))).collect();
        // What arrow-rs found counts where it decoded everything.
        let rows = match columns.first() {
            Some(first) if on_cpu.is_all(scan) => first.len,
            _ => usize::try_from(batch.rows)
                .map_err(|_| Error::corrupt(Place::default(), format!("{} rows in one batch", batch.rows)))?,
        };
        let done = DeviceBatch { schema: scan.schema.clone(), rows, columns, stream: Some(self.stream.clone()) };
        Ok(Read { batch: done, columns_on_cpu, decompressed_on_cpu })
    }

    /// Copies the chunks that the CPU decompresses from host memory to their places in the slab, for the kernel that reads
    /// page headers.
    fn upload(&mut self, chunks: &[&ChunkPlan], bytes: &HostBytes) -> Result<()> {
        let Some(slab) = &self.slab else { return Ok(()) };
        let of = |chunk: &&&ChunkPlan| chunk.host_codec.is_some() && !chunk.bytes.is_empty();
        let chunks: Vec<_> = chunks.iter().filter(of).collect();
        let length = |chunk: &ChunkPlan| (chunk.bytes.end - chunk.bytes.start) as usize; // they are in memory
        let mut pinned = self.gpu.alloc_pinned(chunks.iter().map(|it| length(it)).sum())?;
        let mut rest = &mut pinned[..];
        for chunk in &chunks {
            let (target, after) = std::mem::take(&mut rest).split_at_mut(length(chunk));
            let stored = bytes.get_bytes(chunk.bytes.start, target.len());
            target.copy_from_slice(&stored.map_err(|it| Error::from_parquet(Place::default(), it))?);
            rest = after;
        }
        let pinned = self.stored.insert(pinned);
        let mut at = 0;
        for chunk in &chunks {
            let source = &pinned[at..][..length(chunk)];
            at += source.len();
            // SAFETY: the memory is kept until the stream has been waited for.
            unsafe { self.stream.copy_to_device(slab, chunk.slab_offset.unwrap_or(0), source)? };
        }
        Ok(())
    }

    /// Has nvCOMP and the CPU decompress what no kernel does, and enters the plain bodies in the table. They live as long
    /// as the buffers returned; beside them, how many chunks of which codec the CPU decompressed.
    fn decompress(
        &mut self,
        scan: &Scan,
        table: &mut PageTable,
        chunks: &[&ChunkPlan],
        bytes: &mut HostBytes,
        fetcher: &mut Fetcher,
    ) -> Result<(Vec<DeviceBuffer>, BTreeMap<String, usize>)> {
        let codec_of = |at: usize| table.chunks()[at].codec;
        let mut on_cpu: Vec<usize> = (0..chunks.len()).filter(|at| chunks[*at].host_codec.is_some()).collect();
        let on_gpu: Vec<usize> = (0..chunks.len())
            .filter(|at| chunks[*at].host_codec.is_none() && plan::is_among(codec_of(*at), &nvcomp::codecs()))
            .collect();
        let names: Vec<String> = (0..chunks.len()).map(|at| plan::codec_name(codec_of(at))).collect();
        let mut plain = Vec::new();
        if let Some(library) = self.nvcomp.as_ref().filter(|_| !on_gpu.is_empty()) {
            // SAFETY: the chunks lie in the slab, which `self` keeps, and their bytes are ordered before the stream.
            let outcome = unsafe { nvcomp::run(library, &self.stream, table, &on_gpu)? };
            plain.extend(outcome.scratch);
            let ranges: Vec<RangePlan> = outcome
                .refused
                .iter()
                .map(|(at, why)| {
                    let reason = RouteReason::CpuDecompress(format!("{}, {why}", names[*at]));
                    host_range(chunks[*at].bytes.clone(), reason, fetcher)
                })
                .collect();
            if !ranges.is_empty() {
                bytes.extend(fetcher.fetch(&ranges, None)?);
            }
            on_cpu.extend(outcome.refused.into_keys());
            on_cpu.sort_unstable();
        }
        let mut codecs: BTreeMap<String, usize> = BTreeMap::new();
        for &at in &on_cpu {
            *codecs.entry(names[at].clone()).or_default() += usize::from(chunks[at].is_first_part());
        }
        let group = |chunk: &ChunkPlan| scan.footer.metadata().row_group(chunk.row_group);
        let sources: Vec<_> = on_cpu.iter().map(|at| (*at, group(chunks[*at]).column(chunks[*at].leaf))).collect();
        plain.push(self.decompressor.run(&self.stream, table, &sources, bytes)?);
        Ok((plain, codecs))
    }

    fn reserve_slab(&mut self, bytes: u64, fetcher: &mut Fetcher) -> Result<()> {
        if self.slab.as_ref().is_none_or(|slab| slab.len() < bytes) {
            fetcher.release_slab();
            self.slab = None; // before the larger one is asked for, so that both need not fit
            self.slab = Some(self.gpu.alloc_slab(bytes, "column chunks as stored")?);
        }
        Ok(())
    }

    /// The top-level fields to which `leaves` belong, by index in the file's Arrow schema, as trees over those leaves.
    fn fields(&self, scan: &Scan, leaves: &[&Leaf]) -> (Vec<usize>, Vec<(Field, DataType)>) {
        let number = |leaf: usize| leaves.binary_search_by_key(&leaf, |it| it.index).ok();
        let projected: BTreeSet<usize> = scan.leaves.iter().map(|leaf| scan.footer.leaves[*leaf].root).collect();
        let mut roots = Vec::new();
        let mut fields = Vec::new();
        for (root, field) in projected.iter().zip(scan.schema.fields()) {
            let tree = scan.footer.fields[*root].as_ref().and_then(|tree| tree.select(&number));
            if let Some(tree) = tree {
                roots.push(*root);
                fields.push((tree, field.data_type().clone()));
            }
        }
        (roots, fields)
    }

    fn inputs(&self, scan: &Scan, batch: &BatchPlan, chunks: &[&ChunkPlan]) -> Vec<ChunkInput> {
        let slab = self.slab.as_ref().map_or(0, DeviceBuffer::address);
        let metadata = scan.footer.metadata();
        let input = |chunk: &&ChunkPlan| {
            let leaf = &scan.footer.leaves[chunk.leaf];
            let group = &batch.row_groups[chunk.group];
            let (num_rows, first_row) =
                chunk.pages.map_or((group.rows, group.first_row), |it| (it.rows, group.first_row + it.first_row));
            let stated = metadata.row_group(chunk.row_group).column(chunk.leaf).num_values();
            ChunkInput {
                address: slab + chunk.slab_offset.unwrap_or(0),
                bytes: chunk.bytes.end - chunk.bytes.start,
                file_offset: chunk.bytes.start,
                num_values: match chunk.pages {
                    Some(_) => page::ALL_VALUES,
                    None if leaf.max_rep > 0 => u64::try_from(stated).unwrap_or(0),
                    None => num_rows,
                },
                num_rows,
                first_row,
                first_page: chunk.pages.map_or(0, |it| it.first_page),
                continues: !chunk.is_first_part(),
                row_group: chunk.row_group,
                column: leaf.path.as_str().into(),
                codec: metadata.row_group(chunk.row_group).column(chunk.leaf).compression(),
                physical_type: leaf.physical,
                expected_pages: scan.footer.data_pages(chunk.row_group, chunk.leaf).filter(|_| chunk.pages.is_none()),
            }
        };
        chunks.iter().map(input).collect()
    }

    /// Sends the columns to arrow-rs of which a page turns out to be beyond the kernels, although the footer did not say.
    fn divert<'a>(
        &self,
        scan: &Scan,
        batch: &BatchPlan,
        table: PageTable,
        chunks: Vec<&'a ChunkPlan>,
        on_cpu: &mut OnCpu,
        fetcher: &mut Fetcher,
    ) -> Result<(PageTable, Vec<&'a ChunkPlan>)> {
        let mut diverted = BTreeMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            let leaf = &scan.footer.leaves[chunk.leaf];
            if let Some(reason) = table.headers(at).iter().find_map(|header| decode::unsupported(leaf, header)) {
                diverted.entry(leaf.root).or_insert_with(|| format!("no kernel for {reason}"));
            }
        }
        let mut by_leaf: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            by_leaf.entry(chunk.leaf).or_default().push(at);
        }
        for (leaf, chunks) in &by_leaf {
            let leaf = &scan.footer.leaves[*leaf];
            if let Some(reason) = decode::too_many_entries(leaf, chunks.iter().flat_map(|at| table.headers(*at))) {
                diverted.entry(leaf.root).or_insert_with(|| reason.to_string());
            }
        }
        if diverted.is_empty() {
            return Ok((table, chunks));
        }
        let root = |chunk: &ChunkPlan| scan.footer.leaves[chunk.leaf].root;
        let ranges: Vec<RangePlan> = batch
            .chunks
            .iter()
            .filter(|chunk| chunk.is_first_part()) // arrow-rs wants all pages
            .filter(|chunk| chunk.host_codec.is_none() || chunk.pages.is_some()) // it has those already
            .filter_map(|chunk| Some((chunk, diverted.get(&root(chunk))?)))
            .map(|(chunk, reason)| {
                let bytes = plan::chunk_bytes(&scan.footer, chunk.row_group, chunk.leaf)?;
                Ok(host_range(bytes, RouteReason::CpuDecode(reason.clone()), fetcher))
            })
            .collect::<Result<_>>()?;
        on_cpu.bytes.extend(fetcher.fetch(&ranges, None)?);
        let kept: Vec<usize> = (0..chunks.len()).filter(|at| !diverted.contains_key(&root(chunks[*at]))).collect();
        on_cpu.roots.extend(diverted);
        Ok((table.select(&kept), kept.into_iter().map(|at| chunks[at]).collect()))
    }
}

/// A range of a chunk that turns out to be wanted in host memory.
fn host_range(bytes: Range<u64>, reason: RouteReason, fetcher: &Fetcher) -> RangePlan {
    RangePlan {
        read: bytes.clone(),
        wasted: 0,
        route: Route::Host,
        reason,
        slab_offset: None,
        tasks: plan::split(&bytes, fetcher.options().task_size),
        bytes,
    }
}

/// The rows that are wanted of all rows of the batch's row groups; `None`: all.
fn selected_rows(batch: &BatchPlan) -> Option<SelectedRows> {
    batch.row_groups.iter().any(|group| group.selected.is_some()).then(|| {
        let ranges = batch.row_groups.iter().flat_map(|group| {
            let wanted = group.selected.clone().unwrap_or_else(|| vec![Range { start: 0, end: group.rows }]);
            wanted.into_iter().map(|it| group.first_row + it.start..group.first_row + it.end)
        });
        SelectedRows::new(batch.all_rows, ranges)
    })
}

/// Decodes the top-level fields that arrow-rs decodes, row groups side by side, into one array a field.
fn decode_on_cpu(scan: &Scan, batch: &BatchPlan, on_cpu: &OnCpu) -> Result<(Vec<usize>, Vec<ArrayData>)> {
    let roots: BTreeSet<usize> = on_cpu.roots.keys().copied().collect();
    if roots.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let projection: ProjectionMask = scan.projection_of(&roots);
    let decoded = batch
        .row_groups
        .par_iter()
        .map(|it| {
            if scan.check_crc {
                cpu::check_crc(&scan.footer, &projection, it.index, &on_cpu.bytes)?;
            }
            cpu::decode(&scan.footer, &projection, it.index, it.selection().as_ref(), &on_cpu.bytes)
        })
        .collect::<Result<Vec<_>>>()?;
    let schema = cpu::projected_schema(&scan.footer, &projection)?;
    let arrays = cpu::join(&schema, &decoded.into_iter().flatten().collect::<Vec<_>>())?;
    let rows = arrays.first().map_or(0, |it| it.len() as u64);
    let alone = on_cpu.is_all(scan);
    if arrays.len() != roots.len() || (rows != batch.rows && !alone) {
        let message = format!("{} fields of {rows} rows, not {} of {}", arrays.len(), roots.len(), batch.rows);
        return Err(Error::corrupt(Place::default(), message));
    }
    Ok((roots.into_iter().collect(), arrays))
}
