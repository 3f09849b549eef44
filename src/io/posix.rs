//! Our own reads: into host memory, or through page-locked bounce buffers into device memory.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::host::HostBytes;
use super::pool::{Lane, Packed};
use super::scatter;
use super::source::Source;
use crate::device::{DeviceBuffer, Stream};
use crate::error::{Error, Result};
use crate::options::IoOptions;
use crate::plan::RangePlan;

/// The most threads that are chosen unasked: with 4 MiB operations, twelve reach 52 of the 55 GB/s of an H200's link, and
/// sixteen no more.
const MOST_THREADS: usize = 12;

/// Reading threads: as asked for, else three quarters of the cores, since the rest of the process wants some.
pub(super) fn threads(options: &IoOptions) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    options.threads.unwrap_or((cores * 3).div_ceil(4).min(MOST_THREADS)).max(1)
}

/// Reads a source with `pread`, or an object store's ranged requests, on a pool of threads of its own.
#[derive(Debug)]
pub(super) struct HostReader {
    source: Arc<Source>,
    task_size: u64,
    threads: usize,
    pool: Option<rayon::ThreadPool>,
    /// One a thread: its stream and bounce buffers.
    lanes: Vec<Mutex<Option<Lane>>>,
    packed: Option<Packed>,
}

/// One operation into the slab.
#[derive(Debug, Clone)]
struct Task {
    file: Range<u64>,
    slab_offset: u64,
}

impl HostReader {
    pub(super) fn new(source: Arc<Source>, options: &IoOptions) -> Self {
        let threads = threads(options);
        let lanes = (0..threads).map(|_| Mutex::new(None)).collect();
        Self { source, task_size: options.task_size.max(1), threads, pool: None, lanes, packed: None }
    }

    fn pool(&mut self) -> Result<&rayon::ThreadPool> {
        if self.pool.is_none() {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(self.threads);
            let pool = builder.thread_name(|at| format!("parquet-gpu-read-{at}")).build();
            self.pool = Some(pool.map_err(|error| Error::io("threads for reading", error))?);
        }
        self.pool.as_ref().ok_or_else(|| Error::Argument("no reading threads".into()))
    }

    /// Reads ranges into host memory.
    pub(super) fn read_to_host(&mut self, ranges: &[&RangePlan]) -> Result<HostBytes> {
        let mut host = HostBytes::new(self.source.len());
        if ranges.is_empty() {
            return Ok(host);
        }
        let source = self.source.clone();
        let mut buffers: Vec<Vec<u8>> =
            ranges.iter().map(|it| vec![0; (it.read.end - it.read.start) as usize]).collect();
        let mut tasks = Vec::new();
        for (range, buffer) in ranges.iter().zip(&mut buffers) {
            let mut rest = buffer.as_mut_slice();
            for task in &range.tasks {
                let (part, after) = rest.split_at_mut((task.end - task.start) as usize);
                tasks.push((task.start, part));
                rest = after;
            }
        }
        let read = |(offset, part): &mut (u64, &mut [u8])| source.read_at(*offset, part);
        match tasks.as_mut_slice() {
            [only] => read(only)?, // no thread is worth it
            many => self.pool()?.install(|| many.par_iter_mut().try_for_each(read))?,
        }
        for (range, buffer) in ranges.iter().zip(buffers) {
            host.insert(range.read.start, buffer.into());
        }
        Ok(host)
    }

    /// Reads ranges into the slab; `stream` waits for the last byte, the host for the last read. Ranges shorter than
    /// `small` travel together: one buffer, one copy, one scatter.
    pub(super) fn read_to_device(
        &mut self,
        ranges: &[&RangePlan],
        slab: &DeviceBuffer,
        stream: &Stream,
        small: u64,
    ) -> Result<()> {
        let small = small.min(self.task_size);
        let is_small = |range: &&&RangePlan| range.read.end - range.read.start < small;
        let (little, large): (Vec<&RangePlan>, Vec<&RangePlan>) = ranges.iter().partition(is_small);
        let task = |range: &RangePlan, file: &Range<u64>| Task {
            file: file.clone(),
            slab_offset: range.slab_offset.unwrap_or(0) + (file.start - range.read.start),
        };
        let tasks: Vec<Task> = large.iter().flat_map(|it| it.tasks.iter().map(|file| task(it, file))).collect();
        let little: Vec<Task> = little.iter().map(|it| task(it, &it.read)).collect();
        self.read_packed(&little, slab, stream)?;
        self.read_bounced(&tasks, slab, stream)
    }

    /// Large ranges, through bounce buffers: a thread reads into one while the copy from its other is under way.
    fn read_bounced(&mut self, tasks: &[Task], slab: &DeviceBuffer, stream: &Stream) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let bytes = tasks.iter().map(|it| it.file.end - it.file.start).max().unwrap_or(0) as usize;
        let gpu = stream.gpu().clone();
        // Earlier work on the slab, such as the batch before this one.
        let free = gpu.new_event()?;
        free.record(stream)?;
        self.pool()?;
        let (Some(pool), source, lanes) = (&self.pool, &self.source, &self.lanes) else { return Ok(()) };
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = |at: usize| -> Result<()> {
            if at >= tasks.len() {
                return Ok(()); // fewer operations than threads
            }
            let mut lane = lanes[at].lock().unwrap_or_else(PoisonError::into_inner);
            let lane = Lane::of_size(&mut lane, &gpu, bytes)?;
            lane.stream().wait(&free)?;
            while !failed.load(Ordering::Relaxed) {
                let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                lane.copy(slab, task.slab_offset, (task.file.end - task.file.start) as usize, |buffer| {
                    source.read_at(task.file.start, buffer)
                })?;
            }
            lane.finish()
        };
        let outcomes =
            pool.broadcast(|context| work(context.index()).inspect_err(|_| failed.store(true, Ordering::Relaxed)));
        let outcome: Result<()> = outcomes.into_iter().collect();
        for lane in lanes.iter().take(tasks.len()) {
            if let Some(lane) = &*lane.lock().unwrap_or_else(PoisonError::into_inner) {
                match &outcome {
                    Ok(()) => stream.wait(lane.finished())?,
                    // Nothing may write to the slab after an error is out. Its own failure is not the first.
                    Err(_) => drop(gpu.backend().synchronize(lane.stream().raw())),
                }
            }
        }
        outcome
    }

    /// Small ranges: read side by side into one page-locked buffer, copied once, scattered by a kernel.
    fn read_packed(&mut self, tasks: &[Task], slab: &DeviceBuffer, stream: &Stream) -> Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let lengths: Vec<usize> = tasks.iter().map(|it| (it.file.end - it.file.start) as usize).collect();
        let places: Vec<usize> = lengths
            .iter()
            .scan(0, |end, length| {
                let place = *end;
                *end = (place + length).next_multiple_of(scatter::ALIGN);
                Some(place)
            })
            .collect();
        let total = places.last().zip(lengths.last()).map_or(0, |(place, length)| place + length);
        self.pool()?;
        let packed = Packed::of_size(&mut self.packed, stream.gpu(), total)?;
        let mut parts = Vec::with_capacity(tasks.len());
        let mut rest = packed.buffer()?;
        let mut start = 0;
        for ((task, place), length) in tasks.iter().zip(&places).zip(&lengths) {
            let (_, from) = rest.split_at_mut(place - start);
            let (part, after) = from.split_at_mut(*length);
            parts.push((task.file.start, part));
            (rest, start) = (after, place + length);
        }
        let read = |(offset, part): &mut (u64, &mut [u8])| self.source.read_at(*offset, part);
        match (parts.as_mut_slice(), &self.pool) {
            ([only], _) | ([only], None) => read(only)?,
            (many, Some(pool)) => pool.install(|| many.par_iter_mut().try_for_each(read))?,
            (many, None) => many.iter_mut().try_for_each(read)?,
        }
        let entries: Vec<scatter::Entry> = tasks
            .iter()
            .zip(places.iter().zip(&lengths))
            .map(|(task, (place, length))| scatter::Entry { from: *place, to: task.slab_offset, bytes: *length })
            .collect();
        packed.send(&entries, slab, stream)
    }
}
