//! The kernels on the CPU: the same sources, launches, streams and copies as on a GPU, with more checks.
//!
//! Device memory is host memory, one allocation a block, filled with a pattern before use and after. Work is queued and
//! runs only when somebody waits, so what a real GPU does later is late here too: a missing wait shows as a wrong
//! result. Seed 0 runs no more than what is waited for, at the last moment; any other seed also runs unrelated work and
//! work that nobody waits for yet, and varies the order of blocks and threads.

use std::alloc::Layout;
use std::collections::{BTreeMap, VecDeque};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::{Backend, Properties, RawEvent, RawStream, simt};
use crate::error::{Error, Result};
use crate::kernels::{Kernel, emulated};

pub use super::simt::KernelBody;

const DEVICE: &str = "emulated";
/// Bytes of device memory unless `PARQUET_GPU_EMULATED_MEMORY` says otherwise.
const MEMORY: u64 = 4 << 30;
/// What memory holds when it is handed out, and after it was freed: never zero, and neither is a likely value.
const UNDEFINED: u8 = 0xc5;
const FREED: u8 = 0xdf;
/// Bytes behind each block that must stay as they were. AddressSanitizer has its own, which see reads as well.
const RED_ZONE: usize = if cfg!(sanitize_kernels) { 0 } else { 64 };
const RED: u8 = 0x9d;
/// CUDA's limit of a one-dimensional grid.
const MAX_BLOCKS: u32 = i32::MAX as u32;

/// The emulated device.
#[derive(Debug)]
pub struct EmulatedBackend {
    properties: Properties,
    seed: u64,
    state: Mutex<State>,
    /// Held while queued work runs, so that it runs in one order. Taken before `state`.
    runner: Mutex<Runner>,
}

#[derive(Debug)]
struct State {
    /// The first failure; every later call returns it.
    failure: Option<String>,
    handles: u64,
    streams: BTreeMap<RawStream, VecDeque<Op>>,
    /// The last record of each event.
    events: BTreeMap<RawEvent, Option<Arc<Mark>>>,
    /// By address.
    blocks: BTreeMap<u64, Block>,
    used: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    bytes: u64,
    layout: Layout,
    slab: bool,
}

#[derive(Debug)]
struct Runner {
    random: u64,
}

/// One record of an event.
#[derive(Debug)]
struct Mark {
    stream: RawStream,
    reached: AtomicBool,
}

impl Mark {
    fn reached(&self) -> bool {
        self.reached.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
enum Op {
    Copy { target: Side, source: Side, bytes: usize },
    Fill { target: u64, value: u8, bytes: usize },
    Launch { kernel: Code, blocks: u32, args: Vec<u64> },
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
    Free(u64),
}

/// A kernel as the launcher takes it.
#[derive(Debug, Clone, Copy)]
struct Code {
    name: &'static str,
    body: KernelBody,
    threads: u32,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
enum Side {
    Host(usize),
    Device(u64),
}

impl Side {
    fn address(self) -> usize {
        match self {
            Self::Host(address) => address,
            Self::Device(address) => address as usize,
        }
    }
}

/// What `run` works towards.
#[derive(Debug, Clone)]
enum Goal {
    Stream(RawStream),
    Mark(Arc<Mark>),
    Everything,
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |message| Err(error(message.clone())))
    }

    fn handle(&mut self) -> u64 {
        self.handles += 1;
        self.handles
    }

    /// Whether the range lies in one block.
    fn check_range(&self, address: u64, bytes: usize) -> Result<(), String> {
        let end = address.checked_add(bytes as u64);
        match self.blocks.range(..=address).next_back() {
            Some((start, block)) if end.is_some_and(|end| end - start <= block.bytes) => Ok(()),
            _ => Err(format!("{bytes} bytes at {address:#x} do not lie in device memory that is allocated")),
        }
    }

    fn check_side(&self, side: Side, bytes: usize) -> Result<(), String> {
        match side {
            Side::Device(address) => self.check_range(address, bytes),
            Side::Host(_) => Ok(()),
        }
    }

    fn is_blocked(op: &Op) -> bool {
        matches!(op, Op::Wait(mark) if !mark.reached())
    }

    fn is_done(&self, goal: &Goal) -> bool {
        match goal {
            Goal::Stream(stream) => self.streams.get(stream).is_none_or(VecDeque::is_empty),
            Goal::Mark(mark) => mark.reached(),
            Goal::Everything => self.streams.values().all(VecDeque::is_empty),
        }
    }

    /// The stream whose first operation can run and brings the goal nearer.
    fn needed(&self, goal: &Goal) -> Option<RawStream> {
        let mut stream = match goal {
            Goal::Stream(stream) => *stream,
            Goal::Mark(mark) => mark.stream,
            Goal::Everything => *self.streams.iter().find(|(_, queue)| !queue.is_empty())?.0,
        };
        // Each wait is for something queued earlier, so this ends.
        while let Op::Wait(mark) = self.streams.get(&stream)?.front()?
            && !mark.reached()
        {
            stream = mark.stream;
        }
        Some(stream)
    }

    fn free(&mut self, address: u64) -> Result<(), String> {
        let Some(block) = self.blocks.remove(&address) else {
            return Err(format!("{address:#x} was freed but not allocated"));
        };
        self.used -= block.bytes;
        release(address, block)
    }
}

/// Gives a block back to the host. Fails when something wrote behind it.
fn release(address: u64, block: Block) -> Result<(), String> {
    let start = ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the block is allocated with this layout and no longer in the table, so this is the last use.
    unsafe {
        let behind = std::slice::from_raw_parts(start.add(block.bytes as usize), RED_ZONE);
        let intact = behind.iter().all(|it| *it == RED);
        start.write_bytes(FREED, block.layout.size());
        std::alloc::dealloc(start, block.layout);
        if intact { Ok(()) } else { Err(format!("something wrote behind a block of {} bytes", block.bytes)) }
    }
}

fn error(message: impl Into<String>) -> Error {
    Error::Device { device: DEVICE.into(), message: message.into() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves queues and tables whole: each change is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// xorshift64.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 32) as usize % limit
    }
}

impl EmulatedBackend {
    /// A device whose work runs in an order that `seed` chooses.
    #[expect(clippy::new_ret_no_self, reason = "the type is of no use but as a backend, as with `CudaBackend::open`")]
    pub fn new(seed: u64) -> Arc<dyn Backend> {
        Arc::new(Self::open(seed))
    }

    fn open(seed: u64) -> Self {
        let memory = std::env::var("PARQUET_GPU_EMULATED_MEMORY").ok().and_then(|it| it.parse().ok()).unwrap_or(MEMORY);
        Self {
            properties: Properties {
                name: DEVICE.into(),
                product: "kernels on the CPU".into(),
                ordinal: 0,
                host_addressable: true,
                uuid: Some(*b"pqgpu-emulated\0\0"),
                capability: (0, 0),
                multiprocessors: 4,
                memory,
            },
            seed,
            state: Mutex::new(State {
                failure: None,
                handles: 0,
                streams: BTreeMap::new(),
                events: BTreeMap::new(),
                blocks: BTreeMap::new(),
                used: 0,
            }),
            runner: Mutex::new(Runner { random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }),
        }
    }

    /// Runs queued work until the goal is reached.
    fn run(&self, goal: &Goal) {
        let mut runner = lock(&self.runner);
        while let Some(op) = self.pick(&mut runner, Some(goal)) {
            self.execute(&mut runner, op);
        }
    }

    /// Takes the next operation from its queue; `None` when the goal is reached, or nothing can run.
    fn pick(&self, runner: &mut Runner, goal: Option<&Goal>) -> Option<Op> {
        let mut state = lock(&self.state);
        if goal.is_some_and(|goal| state.is_done(goal)) {
            return None;
        }
        let stream = match goal {
            Some(goal) if self.seed == 0 => state.needed(goal)?,
            _ => {
                let able = |queue: &VecDeque<Op>| queue.front().is_some_and(|op| !State::is_blocked(op));
                let streams: Vec<_> =
                    state.streams.iter().filter(|(_, queue)| able(queue)).map(|(it, _)| *it).collect();
                *streams.get(runner.below(streams.len().max(1)))?
            }
        };
        state.streams.get_mut(&stream)?.pop_front()
    }

    fn execute(&self, runner: &mut Runner, op: Op) {
        let failed = lock(&self.state).failure.is_some();
        let result = match op {
            // After a failure nothing touches memory, but nobody is left waiting and memory is given back.
            Op::Record(mark) => {
                mark.reached.store(true, Ordering::Release);
                Ok(())
            }
            Op::Free(address) => lock(&self.state).free(address),
            _ if failed => Ok(()),
            Op::Wait(_) => Ok(()),
            Op::Copy { target, source, bytes } => self.copy_now(target, source, bytes),
            Op::Fill { target, value, bytes } => {
                let checked = lock(&self.state).check_range(target, bytes);
                checked.map(|()| {
                    // SAFETY: the range lies in a block, and only the runner frees blocks.
                    unsafe { ptr::with_exposed_provenance_mut::<u8>(target as usize).write_bytes(value, bytes) }
                })
            }
            Op::Launch { kernel, blocks, args } => {
                let seed = if self.seed == 0 { 0 } else { runner.next() };
                // SAFETY: `launch` checked the struct's size against the kernel; its addresses are its caller's promise.
                unsafe { simt::launch(kernel.name, kernel.body, blocks, kernel.threads, &args, seed) }
            }
        };
        if let Err(message) = result {
            lock(&self.state).failure.get_or_insert(message);
        }
    }

    fn copy_now(&self, target: Side, source: Side, bytes: usize) -> Result<(), String> {
        let state = lock(&self.state);
        state.check_side(target, bytes)?;
        state.check_side(source, bytes)?;
        drop(state);
        if target.address().abs_diff(source.address()) < bytes {
            return Err(format!("a copy of {bytes} bytes between ranges that overlap"));
        }
        let from = ptr::with_exposed_provenance::<u8>(source.address());
        let to = ptr::with_exposed_provenance_mut::<u8>(target.address());
        // SAFETY: device ranges lie in blocks, which only the runner frees; host ranges are the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    }

    fn queue(&self, stream: RawStream, op: impl FnOnce(&State) -> Result<Op, String>) -> Result<()> {
        {
            let mut state = lock(&self.state);
            state.check()?;
            let op = op(&state).map_err(error)?;
            state.streams.get_mut(&stream).ok_or_else(|| error("no such stream"))?.push_back(op);
        }
        self.run_early();
        Ok(())
    }

    /// Some seeds run work as soon as it is queued, some now and then: a GPU does not wait for the host to wait.
    fn run_early(&self) {
        if self.seed.is_multiple_of(3) {
            return;
        }
        let mut runner = match self.runner.try_lock() {
            Ok(runner) => runner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if (self.seed % 3 == 1 || runner.below(4) == 0)
            && let Some(op) = self.pick(&mut runner, None)
        {
            self.execute(&mut runner, op);
        }
    }

    fn allocate(&self, bytes: u64, align: usize, slab: bool) -> Result<u64> {
        let fits = |state: &State| state.used.checked_add(bytes).is_some_and(|it| it <= self.properties.memory);
        if !fits(&lock(&self.state)) {
            self.run(&Goal::Everything); // queued frees
        }
        let mut state = lock(&self.state);
        state.check()?;
        let layout = usize::try_from(bytes)
            .ok()
            .and_then(|it| it.checked_add(RED_ZONE))
            .and_then(|it| Layout::from_size_align(it, align).ok());
        let layout = match layout {
            Some(layout) if fits(&state) && layout.size() > 0 => layout,
            _ => {
                let left = self.properties.memory.saturating_sub(state.used);
                return Err(error(format!("out of memory: {bytes} bytes asked for, {left} left")));
            }
        };
        // SAFETY: the size is not zero.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return Err(error(format!("the host has no {bytes} bytes left")));
        }
        // SAFETY: the block was allocated with this layout just now.
        unsafe {
            start.write_bytes(UNDEFINED, bytes as usize);
            start.add(bytes as usize).write_bytes(RED, RED_ZONE);
        }
        let address = start.expose_provenance() as u64;
        state.used += bytes;
        state.blocks.insert(address, Block { bytes, layout, slab });
        Ok(address)
    }
}

impl Drop for EmulatedBackend {
    fn drop(&mut self) {
        self.run(&Goal::Everything);
        let blocks = std::mem::take(&mut lock(&self.state).blocks);
        for (address, block) in blocks {
            // Whoever leaked the block will not read an error.
            let _ = release(address, block);
        }
    }
}

fn pinned_layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes.max(1), 4096).map_err(|it| error(it.to_string()))
}

impl Backend for EmulatedBackend {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn bind(&self) -> Result<()> {
        lock(&self.state).check()
    }

    fn free_memory(&self) -> Result<u64> {
        let state = lock(&self.state);
        state.check()?;
        Ok(self.properties.memory.saturating_sub(state.used))
    }

    fn alloc(&self, bytes: u64, stream: RawStream) -> Result<u64> {
        if !lock(&self.state).streams.contains_key(&stream) {
            return Err(error("no such stream"));
        }
        self.allocate(bytes, 256, false)
    }

    unsafe fn free(&self, address: u64, stream: RawStream) {
        let mut state = lock(&self.state);
        match state.streams.get_mut(&stream) {
            Some(queue) => queue.push_back(Op::Free(address)),
            None => {
                if let Err(message) = state.free(address) {
                    state.failure.get_or_insert(message);
                }
            }
        }
    }

    fn alloc_slab(&self, bytes: u64) -> Result<u64> {
        self.allocate(bytes, 4096, true)
    }

    unsafe fn free_slab(&self, address: u64) {
        // As cuMemFree does.
        self.run(&Goal::Everything);
        let _runner = lock(&self.runner);
        let mut state = lock(&self.state);
        let result = match state.blocks.get(&address) {
            Some(Block { slab: false, .. }) => Err(format!("{address:#x} is pooled, not a slab")),
            _ => state.free(address),
        };
        if let Err(message) = result {
            state.failure.get_or_insert(message);
        }
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<NonNull<u8>> {
        lock(&self.state).check()?;
        let layout = pinned_layout(bytes)?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
            .ok_or_else(|| error(format!("the host has no {bytes} bytes left")))
    }

    unsafe fn free_pinned(&self, address: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = pinned_layout(bytes) {
            // SAFETY: `alloc_pinned` made it with this layout, as the caller promises.
            unsafe { std::alloc::dealloc(address.as_ptr(), layout) }
        }
    }

    fn create_stream(&self) -> Result<RawStream> {
        let mut state = lock(&self.state);
        state.check()?;
        let stream = state.handle();
        state.streams.insert(stream, VecDeque::new());
        Ok(stream)
    }

    fn destroy_stream(&self, stream: RawStream) {
        self.run(&Goal::Stream(stream));
        lock(&self.state).streams.remove(&stream);
    }

    fn synchronize(&self, stream: RawStream) -> Result<()> {
        self.run(&Goal::Stream(stream));
        lock(&self.state).check()
    }

    fn create_event(&self) -> Result<RawEvent> {
        let mut state = lock(&self.state);
        state.check()?;
        let event = state.handle();
        state.events.insert(event, None);
        Ok(event)
    }

    fn destroy_event(&self, event: RawEvent) {
        lock(&self.state).events.remove(&event);
    }

    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let mark = Arc::new(Mark { stream, reached: AtomicBool::new(false) });
        {
            let mut state = lock(&self.state);
            state.check()?;
            let queue = state.streams.get_mut(&stream).ok_or_else(|| error("no such stream"))?;
            queue.push_back(Op::Record(mark.clone()));
            *state.events.get_mut(&event).ok_or_else(|| error("no such event"))? = Some(mark);
        }
        self.run_early();
        Ok(())
    }

    fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let mark = {
            let state = lock(&self.state);
            state.check()?;
            state.events.get(&event).ok_or_else(|| error("no such event"))?.clone()
        };
        // As in CUDA, an event that was never recorded holds nothing up.
        mark.map_or(Ok(()), |mark| self.queue(stream, |_| Ok(Op::Wait(mark))))
    }

    fn synchronize_event(&self, event: RawEvent) -> Result<()> {
        let mark = lock(&self.state).events.get(&event).ok_or_else(|| error("no such event"))?.clone();
        if let Some(mark) = mark {
            self.run(&Goal::Mark(mark));
        }
        lock(&self.state).check()
    }

    unsafe fn copy_to_device(&self, stream: RawStream, target: u64, source: *const u8, bytes: usize) -> Result<()> {
        self.copy(stream, Side::Device(target), Side::Host(source.expose_provenance()), bytes)
    }

    unsafe fn copy_to_host(&self, stream: RawStream, target: *mut u8, source: u64, bytes: usize) -> Result<()> {
        self.copy(stream, Side::Host(target.expose_provenance()), Side::Device(source), bytes)
    }

    unsafe fn copy_on_device(&self, stream: RawStream, target: u64, source: u64, bytes: usize) -> Result<()> {
        self.copy(stream, Side::Device(target), Side::Device(source), bytes)
    }

    unsafe fn fill(&self, stream: RawStream, target: u64, value: u8, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return lock(&self.state).check();
        }
        self.queue(stream, |state| {
            state.check_range(target, bytes)?;
            Ok(Op::Fill { target, value, bytes })
        })
    }

    unsafe fn launch(&self, stream: RawStream, kernel: Kernel, blocks: u32, args: &[u8]) -> Result<()> {
        let kernel = Code { name: kernel.symbol(), body: emulated::body(kernel), threads: kernel.threads() };
        self.launch_code(stream, kernel, blocks, args)
    }
}

impl EmulatedBackend {
    fn copy(&self, stream: RawStream, target: Side, source: Side, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return lock(&self.state).check();
        }
        self.queue(stream, |state| {
            state.check_side(target, bytes)?;
            state.check_side(source, bytes)?;
            Ok(Op::Copy { target, source, bytes })
        })
    }

    fn launch_code(&self, stream: RawStream, kernel: Code, blocks: u32, args: &[u8]) -> Result<()> {
        let name = kernel.name;
        if blocks == 0 || blocks > MAX_BLOCKS {
            return Err(error(format!("kernel {name}: a grid of {blocks} blocks")));
        }
        if simt::declared(name) != Some((kernel.threads, args.len() as u32)) {
            return Err(error(format!("kernel {name}: block or argument size differs from its source")));
        }
        // Whole words, so that the struct lies aligned.
        let mut words = vec![0u64; args.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..args.len()].copy_from_slice(args);
        self.queue(stream, |_| Ok(Op::Launch { kernel, blocks, args: words }))
    }
}

#[cfg(test)]
#[path = "emulated_tests.rs"]
mod tests;
