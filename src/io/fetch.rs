//! The ranges of a batch, each by its route.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::compat::{self, Choice};
use super::cufile::DirectReader;
use super::host::HostBytes;
use super::ledger::Ledger;
use super::posix::{self, Readers, Target, Task};
use super::scatter::Packed;
use super::source::Source;
use crate::device::{DeviceBuffer, Event, Gpu, Stream};
use crate::error::{Error, Result};
use crate::options::IoOptions;
use crate::plan::{RangePlan, Route, RouteReason};

/// The largest operation on the host path. Larger ones gain nothing, and each thread pins two buffers of this size.
const MAX_OPERATION: u64 = 64 << 20;
/// Ranges of at least this many bytes never travel with others, however high `gds_threshold` is: they fill a bounce
/// buffer well enough.
const SMALL: u64 = 64 << 10;
/// Small ranges that travel together have at most this many bytes; those that are left go one by one.
const MAX_PACKED: u64 = 64 << 20;

/// Reads ranges of one source. Threads, pinned buffers and cuFile are made on first use and kept.
#[derive(Debug)]
pub struct Fetcher {
    source: Arc<Source>,
    options: IoOptions,
    gpu: Option<Gpu>,
    ledger: Arc<Ledger>,
    direct: Direct,
    readers: Readers,
    packed: Packed,
    /// Marks what was queued on the caller's stream before a fetch.
    before: Option<Arc<Event>>,
    tasks: Vec<Task>,
}

/// What is known of cuFile and this file.
#[derive(Debug)]
enum Direct {
    Unopened,
    Open(Box<DirectReader>),
    Host(RouteReason),
}

/// A range on the host path.
#[derive(Debug, Clone, Copy)]
struct HostRange<'a> {
    range: &'a RangePlan,
    reason: &'a RouteReason,
}

impl Fetcher {
    /// A fetcher that has opened nothing yet.
    pub fn new(source: Arc<Source>, options: IoOptions, gpu: Option<Gpu>, ledger: Arc<Ledger>) -> Self {
        let threads = match source.file() {
            Some(_) => posix::threads(&options),
            None => posix::remote_threads(&options),
        };
        let readers = Readers::new(gpu.clone(), threads);
        let (direct, packed) = (Direct::Unopened, Packed::default());
        Self { source, options, gpu, ledger, direct, readers, packed, before: None, tasks: Vec::new() }
    }

    /// How bytes travel.
    pub fn options(&self) -> &IoOptions {
        &self.options
    }

    /// Reads every range: into `target.0` where the plan gives a slab offset, else into the host bytes returned. Work
    /// queued on `target.1` after this call sees the bytes, and they are written after all work that was queued on it
    /// before; every byte of the source has been read when it returns. On an error nothing writes to the slab any more.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::CuFile`] and [`Error::Library`] when cuFile is refused and compat mode is off, and for a
    /// read that fails after it was accepted; [`Error::Device`]; [`Error::Argument`] for ranges outside source or slab.
    pub fn fetch(&mut self, ranges: &[RangePlan], target: Option<(&DeviceBuffer, &Stream)>) -> Result<HostBytes> {
        for range in ranges {
            self.check(range, target.map(|(slab, _)| slab))?;
        }
        let (to_slab, to_host): (Vec<&RangePlan>, Vec<_>) = ranges.iter().partition(|it| it.slab_offset.is_some());
        let (mut direct, host): (Vec<_>, Vec<_>) = to_slab.into_iter().partition(|it| it.route == Route::Direct);
        let fallback = if direct.is_empty() { None } else { self.open_direct()? };
        let fallen_back = if fallback.is_some() { std::mem::take(&mut direct) } else { Vec::new() };
        let mut host: Vec<_> = host.into_iter().map(|range| HostRange { range, reason: &range.reason }).collect();
        if let Some(reason) = &fallback {
            host.extend(fallen_back.into_iter().map(|range| HostRange { range, reason }));
        }

        let order = match target {
            Some((_, stream)) if !host.is_empty() || !direct.is_empty() => Some((self.mark(stream)?, stream.clone())),
            _ => None,
        };
        let slab = target.map(|(slab, _)| slab);
        let packed = self.queue_slab(&host, slab)?;
        let mut buffers = self.queue_host(&to_host)?;
        // SAFETY: every device target lies in the slab, as `check` saw, which the caller keeps for its stream; host targets
        // lie in `buffers` and in the packed buffer, which are not touched until `finish`. Each range has its own place.
        let running = unsafe { self.readers.start(&self.source, &mut self.tasks, order.clone())? };
        let direct_read = match (&mut self.direct, slab, &order) {
            (Direct::Open(reader), Some(slab), Some((before, _))) if !direct.is_empty() => {
                // cuFile knows nothing of streams: what still uses the slab must be done.
                before.synchronize().and_then(|()| reader.read(&direct, slab, &self.ledger))
            }
            _ => Ok(()),
        };
        if direct_read.is_err() {
            drop(running); // stops it
        } else {
            running.finish()?;
        }
        if let Err(error) = direct_read {
            self.readers.drain();
            return Err(error);
        }
        if let (true, Some((_, stream))) = (packed, target) {
            // SAFETY: the ranges were read, and their targets lie in the slab.
            unsafe { self.packed.scatter(stream) }.inspect_err(|_| self.readers.drain())?;
        }

        let mut bytes = HostBytes::new(self.source.len());
        for (range, buffer) in to_host.iter().zip(&mut buffers) {
            bytes.insert(range.read.start, std::mem::take(buffer).into_bytes());
        }
        let on_host = to_host.iter().map(|range| HostRange { range, reason: &range.reason });
        for HostRange { range, reason } in host.iter().copied().chain(on_host) {
            let ops = range.tasks.iter().map(|task| pieces(task, self.operation()).count() as u64).sum();
            self.ledger.host(reason, ops, range.read.end - range.read.start);
        }
        Ok(bytes)
    }

    /// Whether a range lies in the source and the slab, and its operations are the whole of it.
    fn check(&self, range: &RangePlan, slab: Option<&DeviceBuffer>) -> Result<()> {
        let wrong = |what: &str| {
            let Range { start, end } = range.read;
            Err(Error::Argument(format!("range {start}..{end} of {}: {what}", self.source.name())))
        };
        if range.read.start > range.read.end || range.read.end > self.source.len() {
            return wrong(&format!("the source has {} bytes", self.source.len()));
        }
        let mut at = range.read.start;
        for task in &range.tasks {
            if task.start != at || task.end < at {
                return wrong("its operations leave gaps");
            }
            at = task.end;
        }
        if at != range.read.end {
            return wrong("its operations are not all of it");
        }
        match (range.slab_offset, slab) {
            (None, _) if range.route == Route::Direct => wrong("cuFile reads into device memory alone"),
            (None, _) => Ok(()),
            (Some(_), None) => wrong("there is no slab"),
            (Some(offset), Some(slab)) => match offset.checked_add(range.read.end - range.read.start) {
                Some(end) if end <= slab.len() => Ok(()),
                _ => wrong(&format!("it does not fit into the slab of {} bytes at {offset}", slab.len())),
            },
        }
    }

    /// Bytes of one operation on the host path.
    fn operation(&self) -> u64 {
        self.options.task_size.clamp(1, MAX_OPERATION)
    }

    /// Opens cuFile for this file, once. `Some`: its direct ranges go through the host, and why.
    fn open_direct(&mut self) -> Result<Option<RouteReason>> {
        if matches!(self.direct, Direct::Unopened) {
            let choice = compat::choose(self.options.compat_mode, || {
                let gpu = self.gpu.as_ref().ok_or_else(|| Error::Argument("a direct range without a GPU".into()))?;
                DirectReader::open(&self.source, &self.options, gpu)
            })?;
            self.direct = match choice {
                Choice::Direct(reader) => Direct::Open(Box::new(reader)),
                Choice::Host(reason) => Direct::Host(reason),
            };
        }
        match &self.direct {
            Direct::Host(reason) => Ok(Some(reason.clone())),
            Direct::Open(_) | Direct::Unopened => Ok(None),
        }
    }

    /// Marks what is queued on the caller's stream, such as the decoding of the batch before from the same slab.
    fn mark(&mut self, stream: &Stream) -> Result<Arc<Event>> {
        let event = match &self.before {
            Some(event) => event.clone(),
            None => self.before.insert(Arc::new(stream.gpu().new_event()?)).clone(),
        };
        event.record(stream)?;
        Ok(event)
    }

    /// Queues the reads of ranges that go to the slab. `true`: some of them travel together and must be scattered.
    fn queue_slab(&mut self, ranges: &[HostRange<'_>], slab: Option<&DeviceBuffer>) -> Result<bool> {
        self.tasks.clear();
        let Some(slab) = slab.filter(|_| !ranges.is_empty()) else { return Ok(false) };
        let operation = self.operation();
        let small = self.options.gds_threshold.min(SMALL);
        let length = |it: &HostRange<'_>| it.range.read.end - it.range.read.start;
        let mut room = MAX_PACKED;
        let mut fits = |it: &HostRange<'_>| {
            let fits = length(it) < small && length(it) <= room;
            room -= if fits { length(it) } else { 0 };
            fits
        };
        let (mut little, mut large): (Vec<HostRange<'_>>, Vec<_>) = ranges.iter().partition(|it| fits(it));
        if little.len() == 1 {
            large.append(&mut little); // a bounce buffer does as well, without a kernel
        }
        let address = |it: &HostRange<'_>| slab.address() + it.range.slab_offset.unwrap_or(0);

        self.packed.begin(little.len());
        little.iter().for_each(|it| self.packed.push(address(it), length(it)));
        if !little.is_empty() {
            let (memory, places) = self.packed.memory(slab.gpu())?;
            for (it, place) in little.iter().zip(places) {
                let start = it.range.read.start;
                let pieces = it.range.tasks.iter().flat_map(|task| pieces(task, operation));
                self.tasks.extend(pieces.map(|piece| Task {
                    offset: piece.start,
                    bytes: (piece.end - piece.start) as usize,
                    target: Target::Host(memory.wrapping_add(place + (piece.start - start) as usize)),
                }));
            }
        }
        for it in &large {
            let pieces = it.range.tasks.iter().flat_map(|task| pieces(task, operation));
            self.tasks.extend(pieces.map(|piece| Task {
                offset: piece.start,
                bytes: (piece.end - piece.start) as usize,
                target: Target::Device(address(it) + (piece.start - it.range.read.start)),
            }));
        }
        Ok(!little.is_empty())
    }

    /// Queues the reads of ranges that stay in host memory, and returns where they go, a buffer a range.
    fn queue_host(&mut self, ranges: &[&RangePlan]) -> Result<Vec<Landing>> {
        let operation = self.operation();
        let mut buffers = Vec::with_capacity(ranges.len());
        for range in ranges {
            if let Some(bytes) = self.source.slice(&range.read) {
                buffers.push(Landing::Shared(bytes));
                continue;
            }
            let mut buffer = zeroed(range, self.source.name())?;
            let memory = buffer.as_mut_ptr();
            buffers.push(Landing::Read(buffer));
            let pieces = range.tasks.iter().flat_map(|task| pieces(task, operation));
            self.tasks.extend(pieces.map(|piece| Task {
                offset: piece.start,
                bytes: (piece.end - piece.start) as usize,
                target: Target::Host(memory.wrapping_add((piece.start - range.read.start) as usize)),
            }));
        }
        Ok(buffers)
    }

    /// Ends what ties the slab to cuFile. Call it before a slab that was fetched into is freed.
    pub fn release_slab(&mut self) {
        if let Direct::Open(reader) = &mut self.direct {
            reader.release();
        }
    }
}

/// Where a range in host memory lies.
#[derive(Debug)]
enum Landing {
    Read(Vec<u8>),
    /// The source is in memory itself.
    Shared(Bytes),
}

impl Default for Landing {
    fn default() -> Self {
        Self::Read(Vec::new())
    }
}

impl Landing {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Read(buffer) => buffer.into(),
            Self::Shared(bytes) => bytes,
        }
    }
}

/// An operation of a plan in parts of at most `most` bytes: one, unless the plan was made with another task size.
fn pieces(task: &Range<u64>, most: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { mut start, end } = *task;
    std::iter::from_fn(move || {
        let piece = start..end.min(start.saturating_add(most));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Memory for a range. A file may claim any size up to its own, and a sparse file's own is cheap: no memory is an error.
fn zeroed(range: &RangePlan, name: &str) -> Result<Vec<u8>> {
    let bytes = range.read.end - range.read.start;
    let refuse = || Error::io(format!("{bytes} bytes of {name}"), "not enough memory");
    let layout = usize::try_from(bytes).ok().and_then(|it| std::alloc::Layout::array::<u8>(it).ok());
    let layout = layout.ok_or_else(refuse)?;
    if layout.size() == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the size is not zero.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(refuse());
    }
    // SAFETY: allocated with this layout, which is that of a vector of this capacity, and zeroed: initialised.
    Ok(unsafe { Vec::from_raw_parts(memory, layout.size(), layout.size()) })
}
