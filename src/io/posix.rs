//! Reads on a thread pool: into host memory as they are, into device memory through bounce buffers.
//!
//! Each thread takes the next task, reads it into one of its two page-locked buffers and queues the copy on a stream of
//! its own; while that copy runs it reads the next task into the other buffer. No thread waits for a copy but to reuse
//! its buffer, and the caller's stream waits for the last copy of each thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use super::pool::Lane;
use super::source::Source;
use crate::device::{Event, Gpu, Stream};
use crate::error::{Error, Result};
use crate::options::IoOptions;

/// The most threads that are chosen unasked: with 4 MiB operations, twelve reach 52 of the 55 GB/s of an H200's link, and
/// sixteen no more.
const MOST_THREADS: usize = 12;
/// Requests to a remote store at a time: each waits for the network, not for a core.
const REMOTE_THREADS: usize = 16;

/// Threads that read a local file: as asked for, else three quarters of the cores, since the rest of the process wants
/// some.
pub(super) fn threads(options: &IoOptions) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    options.threads.unwrap_or((cores * 3).div_ceil(4).min(MOST_THREADS)).max(1)
}

/// Threads that read a source which is not a local file.
pub(super) fn remote_threads(options: &IoOptions) -> usize {
    options.threads.unwrap_or(REMOTE_THREADS).max(1)
}

/// Where a task's bytes go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// A device address.
    Device(u64),
    /// Host memory.
    Host(*mut u8),
}

/// One read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// First byte in the source.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) bytes: usize,
    /// Where they go.
    pub(crate) target: Target,
}

// SAFETY: the pointer is to memory that outlives the round and that this task alone writes: `Readers::start`'s contract.
unsafe impl Send for Task {}
// SAFETY: as above; each task is taken by one thread.
unsafe impl Sync for Task {}

/// The thread pool.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    limit: usize,
}

#[derive(Debug)]
struct Shared {
    gpu: Option<Gpu>,
    state: Mutex<State>,
    /// Threads wait here for a round.
    wake: Condvar,
    /// The caller waits here for its end.
    idle: Condvar,
    round: RwLock<Round>,
    next: AtomicUsize,
    stop: AtomicBool,
    /// The streams of all lanes.
    lanes: Mutex<Vec<Stream>>,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that the round still asks for.
    vacancies: usize,
    /// Threads at work.
    running: usize,
    failure: Option<Error>,
    quit: bool,
}

#[derive(Debug, Default)]
struct Round {
    source: Option<Arc<Source>>,
    tasks: Vec<Task>,
    /// What copies wait for, and the stream that waits for them.
    order: Option<(Arc<Event>, Stream)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    /// A pool of at most `limit` threads, none of them started.
    pub(crate) fn new(gpu: Option<Gpu>, limit: usize) -> Self {
        let shared = Shared {
            gpu,
            state: Mutex::default(),
            wake: Condvar::new(),
            idle: Condvar::new(),
            round: RwLock::default(),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            lanes: Mutex::default(),
        };
        Self { shared: Arc::new(shared), threads: Vec::new(), limit: limit.max(1) }
    }

    /// Starts reading `tasks`, which come back empty. Copies to the device come after the event and before later work on
    /// the stream of `order`.
    ///
    /// # Safety
    /// Every task's target is valid and used by nobody else until [`Running::finish`] has returned, for device targets
    /// until the stream has reached what `finish` queued on it. The result is not leaked.
    pub(crate) unsafe fn start(
        &mut self,
        source: &Arc<Source>,
        tasks: &mut Vec<Task>,
        order: Option<(Arc<Event>, Stream)>,
    ) -> Result<Running<'_>> {
        let wanted = tasks.len().min(self.limit);
        self.spawn(wanted)?;
        {
            let mut round = self.shared.round.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut round.tasks, tasks);
            round.source = Some(source.clone());
            round.order = order;
        }
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.stop.store(false, Ordering::Relaxed);
        lock(&self.shared.state).vacancies = wanted.min(self.threads.len());
        self.shared.wake.notify_all();
        Ok(Running { readers: self })
    }

    fn spawn(&mut self, wanted: usize) -> Result<()> {
        while self.threads.len() < wanted {
            let shared = self.shared.clone();
            let name = format!("pqgpu-io-{}", self.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || shared.work()) {
                Ok(thread) => self.threads.push(thread),
                Err(_) if !self.threads.is_empty() => break, // fewer threads read the same
                Err(error) => return Err(Error::io("with a thread of its own", error)),
            }
        }
        Ok(())
    }

    /// Waits until no copy is under way on any lane.
    pub(crate) fn drain(&self) {
        for stream in lock(&self.shared.lanes).iter() {
            // A failure is sticky, and whoever uses the device next reports it.
            let _ = stream.gpu().backend().synchronize(stream.raw());
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        lock(&self.shared.state).quit = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic was reported by the round that it happened in
        }
    }
}

/// A round under way. Dropped, it stops the threads and waits for them.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    readers: &'a Readers,
}

impl Running<'_> {
    /// Waits until every byte has been read, and the copies are queued.
    ///
    /// # Errors
    /// The first one; then no copy is under way any more.
    pub(crate) fn finish(self) -> Result<()> {
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        let shared = &self.readers.shared;
        let mut state = lock(&shared.state);
        while state.running > 0 || state.vacancies > 0 {
            state = shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let failure = state.failure.take();
        drop(state);
        {
            let mut round = shared.round.write().unwrap_or_else(PoisonError::into_inner);
            round.tasks.clear();
            round.source = None;
            round.order = None;
        }
        failure.map_or(Ok(()), |error| {
            self.readers.drain();
            Err(error)
        })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.readers.shared.stop.store(true, Ordering::Relaxed);
        // After `finish` this finds nothing left to wait for; without it the caller has an error of its own.
        let _ = self.wait();
    }
}

impl Shared {
    /// What a thread does until the pool goes.
    fn work(&self) {
        let mut lane = None;
        loop {
            {
                let mut state = lock(&self.state);
                while state.vacancies == 0 && !state.quit {
                    state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.quit {
                    return;
                }
                state.vacancies -= 1;
                state.running += 1;
            }
            let turn = std::panic::AssertUnwindSafe(|| self.turn(&mut lane));
            let result = std::panic::catch_unwind(turn)
                .unwrap_or_else(|_| Err(Error::io("a range", "a reading thread panicked")));
            let mut state = lock(&self.state);
            if let Err(error) = result {
                self.stop.store(true, Ordering::Relaxed);
                state.failure.get_or_insert(error);
            }
            state.running -= 1;
            if state.running == 0 && state.vacancies == 0 {
                self.idle.notify_all();
            }
        }
    }

    /// A thread's part of a round.
    fn turn(&self, lane: &mut Option<Lane>) -> Result<()> {
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner);
        let Some(source) = &round.source else { return Ok(()) };
        let done = self.take_tasks(&round, source, lane);
        let stream = round.order.as_ref().map(|(_, stream)| stream);
        let ended = lane.as_mut().map_or(Ok(()), |lane| lane.end(stream));
        done.and(ended)
    }

    fn take_tasks(&self, round: &Round, source: &Source, lane: &mut Option<Lane>) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(task) = round.tasks.get(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            match task.target {
                Target::Host(address) => {
                    // SAFETY: `start`'s contract: the memory is valid, initialised, and this task's alone.
                    let target = unsafe { std::slice::from_raw_parts_mut(address, task.bytes) };
                    source.read_at(task.offset, target)?;
                }
                Target::Device(address) => {
                    let ready = round.order.as_ref().map(|(ready, _)| ready.as_ref());
                    let lane = self.lane(lane)?;
                    // SAFETY: `start`'s contract.
                    unsafe { lane.send(address, task.bytes, ready, |buffer| source.read_at(task.offset, buffer))? };
                }
            }
        }
        Ok(())
    }

    fn lane<'a>(&self, lane: &'a mut Option<Lane>) -> Result<&'a mut Lane> {
        let lane = match lane {
            Some(lane) => lane,
            None => {
                let gpu = self.gpu.as_ref();
                let new = Lane::new(gpu.ok_or_else(|| Error::Argument("a device address without a device".into()))?)?;
                lock(&self.lanes).push(new.stream().clone());
                lane.insert(new)
            }
        };
        Ok(lane)
    }
}
