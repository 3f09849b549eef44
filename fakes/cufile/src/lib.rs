//! A libcufile for tests: the C API of both statistics generations, scripted per operation.
//!
//! It reads files for real, into host memory, and counts what its script says. The script is `FAKE_CUFILE_SCRIPT`, read
//! when the library is first called:
//!
//! ```text
//! version=1.20; reads=nvfs*253,posix*3; open=5001; handle=5027; buffer=5036; foreign=2; level=0; gpus=1; uuid=HEX
//! ```
//!
//! | word | meaning | default |
//! |---|---|---|
//! | `version` | what `cuFileGetVersion` says, and with it the layout of the statistics | 1.20 |
//! | `reads` | outcomes of `cuFileRead`, in order, the last one for ever: `nvfs`, `p2p`, `posix`, `unaligned` (posix, and counted as unaligned), `uncounted`, `short` (half of what was asked, by nvfs), `eof`, `error:N` (returns -N), `errno:N` (returns -1 with errno N); `*N` repeats | `posix` |
//! | `open`, `handle`, `buffer` | the code that opening the driver, registering a file or memory fails with | 0 |
//! | `direct` | the code that registering a file opened with O_DIRECT fails with | 0 |
//! | `foreign` | reads by nvfs that another user of cuFile adds to each of ours | 0 |
//! | `level` | the level that stays, whatever is asked for | what is asked for |
//! | `gpus` | GPUs in the statistics | 1 |
//! | `uuid` | the UUID of the first GPU, 32 hexadecimal digits | zeros |
//! | `other` | reads by POSIX that another user of cuFile adds to each of ours, to a GPU of its own in the second row | 0 |
//!
//! Misuse fails as measured of 1.18 and 1.20: 5023 for memory registered twice, 5024 for memory that is not registered,
//! 5028 for a file registered twice, 5008 for a kind of handle that it does not know, 5018 for what is no regular file,
//! 5006 for ending a registration before the driver is open. Reads return -1, with errno EINVAL for no handle or no memory,
//! 5027 for a handle that it does not know, 5022 for a negative place in the file, 5030 for one in registered memory and 5017
//! past its end, 5019 for a file that is open for writing alone. Registering opens a driver that is not open. `cuFileStatsStart` zeroes what was
//! counted, `cuFileStatsStop` sets the level to 0 and loses it, tails of structures stay untouched, and before 1.18
//! `read_ops.ok` counts twice.
#![allow(non_snake_case)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUfileError_t`.
#[repr(C)]
pub struct Status {
    code: c_int,
    cuda: c_int,
}

const OK: Status = Status { code: 0, cuda: 0 };

fn status(code: c_int) -> Status {
    Status { code, cuda: 0 }
}

const NOT_INITIALIZED: c_int = 5001;
const CLOSING: c_int = 5006;
const IO_NOT_SUPPORTED: c_int = 5008;
const INVALID_MAPPING_RANGE: c_int = 5017;
const INVALID_FILE_TYPE: c_int = 5018;
const INVALID_FILE_OPEN_FLAG: c_int = 5019;
const INVALID_VALUE: c_int = 5022;
const ALREADY_REGISTERED: c_int = 5023;
const NOT_REGISTERED: c_int = 5024;
const HANDLE_NOT_REGISTERED: c_int = 5027;
const HANDLE_ALREADY_REGISTERED: c_int = 5028;
const INTERNAL_ERROR: c_int = 5030;

/// One outcome of `cuFileRead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Nvfs,
    P2p,
    Posix,
    Unaligned,
    Uncounted,
    Short,
    End,
    Error(c_int),
    Errno(c_int),
}

#[derive(Debug, Default)]
struct Script {
    version: c_int,
    reads: Vec<(Outcome, u64)>,
    open: c_int,
    handle: c_int,
    direct: c_int,
    buffer: c_int,
    foreign: u64,
    other: u64,
    level: Option<c_int>,
    gpus: u32,
    uuid: [u8; 16],
}

impl Script {
    fn from_env() -> Self {
        let mut script = Self { version: 1200, reads: vec![(Outcome::Posix, u64::MAX)], gpus: 1, ..Self::default() };
        let text = std::env::var("FAKE_CUFILE_SCRIPT").unwrap_or_default();
        for word in text.split(';').map(str::trim).filter(|it| !it.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("FAKE_CUFILE_SCRIPT: {word}"));
            let number = || value.parse::<i64>().unwrap_or_else(|_| panic!("FAKE_CUFILE_SCRIPT: {word}"));
            match key {
                "version" => {
                    let (major, minor) = value.split_once('.').unwrap_or((value, "0"));
                    let part = |it: &str| it.parse::<c_int>().unwrap_or_else(|_| panic!("FAKE_CUFILE_SCRIPT: {word}"));
                    script.version = 1000 * part(major) + 10 * part(minor);
                }
                "reads" => script.reads = value.split(',').map(outcome).collect(),
                "open" => script.open = number() as c_int,
                "handle" => script.handle = number() as c_int,
                "direct" => script.direct = number() as c_int,
                "buffer" => script.buffer = number() as c_int,
                "foreign" => script.foreign = number() as u64,
                "other" => script.other = number() as u64,
                "level" => script.level = Some(number() as c_int),
                "gpus" => script.gpus = number() as u32,
                "uuid" => {
                    for (byte, digits) in script.uuid.iter_mut().zip(value.as_bytes().chunks(2)) {
                        let digits = std::str::from_utf8(digits).unwrap_or_default();
                        *byte = u8::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("FAKE_CUFILE_SCRIPT: {word}"));
                    }
                }
                _ => panic!("FAKE_CUFILE_SCRIPT: {word}"),
            }
        }
        script
    }
}

fn outcome(text: &str) -> (Outcome, u64) {
    let (name, times) = text.split_once('*').map_or((text, 1), |(name, times)| {
        (name, times.parse().unwrap_or_else(|_| panic!("FAKE_CUFILE_SCRIPT: {text}")))
    });
    let (name, code) = name.split_once(':').map_or((name, 0), |(name, code)| {
        (name, code.parse().unwrap_or_else(|_| panic!("FAKE_CUFILE_SCRIPT: {text}")))
    });
    let outcome = match name.trim() {
        "nvfs" => Outcome::Nvfs,
        "p2p" => Outcome::P2p,
        "posix" => Outcome::Posix,
        "unaligned" => Outcome::Unaligned,
        "uncounted" => Outcome::Uncounted,
        "short" => Outcome::Short,
        "eof" => Outcome::End,
        "error" => Outcome::Error(code),
        "errno" => Outcome::Errno(code),
        _ => panic!("FAKE_CUFILE_SCRIPT: {text}"),
    };
    (outcome, times)
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    bytes: u64,
    total: u64,
    nvfs: u64,
    p2p: u64,
    posix: u64,
    unaligned: u64,
    other: u64,
    errors: u64,
}

#[derive(Debug)]
struct State {
    script: Script,
    open: bool,
    level: c_int,
    counts: Counts,
    /// Registered files by handle.
    files: HashMap<usize, c_int>,
    next_handle: usize,
    /// Registered memory: address and bytes.
    memory: HashMap<usize, usize>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.get_or_insert_with(|| State {
        script: Script::from_env(),
        open: false,
        level: 0,
        counts: Counts::default(),
        files: HashMap::new(),
        next_handle: 1,
        memory: HashMap::new(),
    });
    state
}

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    let mut state = state();
    work(state.as_mut().expect("it was made"))
}

impl State {
    fn open(&mut self) -> Status {
        self.open = self.script.open == 0;
        status(self.script.open)
    }

    /// Registrations open a driver that is not open.
    fn ensure_open(&mut self) -> Result<(), Status> {
        if self.open {
            return Ok(());
        }
        let status = self.open();
        if status.code == 0 { Ok(()) } else { Err(status) }
    }
}

impl State {
    /// How often each read counts in `read_ops.ok`.
    fn times(&self) -> u64 {
        if self.script.version < 1180 { 2 } else { 1 }
    }

    /// The file of a read, or the errno that it fails with.
    fn check(&self, handle: usize, base: usize, bytes: usize, from: i64, offset: i64) -> Result<c_int, c_int> {
        if handle == 0 || base == 0 {
            return Err(libc::EINVAL);
        }
        let fd = self.files.get(&handle).copied().filter(|_| self.open).ok_or(HANDLE_NOT_REGISTERED)?;
        if from < 0 {
            return Err(INVALID_VALUE);
        }
        // Places in memory are checked where it is registered alone.
        if let Some(known) = self.memory.get(&base) {
            let offset = usize::try_from(offset).map_err(|_| INTERNAL_ERROR)?;
            if offset.checked_add(bytes).is_none_or(|end| end > *known) {
                return Err(INVALID_MAPPING_RANGE);
            }
        }
        // SAFETY: it only asks for the flags of a descriptor.
        match unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE {
            libc::O_WRONLY => Err(INVALID_FILE_OPEN_FLAG),
            _ => Ok(fd),
        }
    }
}

/// Opens the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverOpen() -> Status {
    with(State::open)
}

/// Closes the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverClose() -> Status {
    with(|it| {
        let was_open = std::mem::take(&mut it.open);
        status(if was_open { 0 } else { NOT_INITIALIZED })
    })
}

/// The version as 1000 · major + 10 · minor.
///
/// # Safety
/// `version` points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetVersion(version: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    unsafe { *version = with(|it| it.script.version) };
    OK
}

/// `CUfileDescr_t`.
#[repr(C)]
pub struct Descriptor {
    kind: c_int,
    /// A descriptor, in a union as wide as a pointer.
    fd: u64,
    _operations: u64,
}

/// Registers a file.
///
/// # Safety
/// `handle` and `descriptor` point to their structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(handle: *mut *mut c_void, descriptor: *mut Descriptor) -> Status {
    // SAFETY: the caller's promise.
    let (kind, fd) = unsafe { ((*descriptor).kind, (*descriptor).fd as u32 as c_int) };
    with(|it| {
        if let Err(status) = it.ensure_open() {
            return status;
        }
        if kind != 1 {
            return status(IO_NOT_SUPPORTED);
        }
        // SAFETY: it only asks for the flags of a descriptor.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags < 0 {
            return status(INVALID_VALUE);
        }
        if !is_regular(fd) {
            return status(INVALID_FILE_TYPE);
        }
        if it.script.direct != 0 && flags & libc::O_DIRECT != 0 {
            return status(it.script.direct);
        }
        if it.script.handle != 0 {
            return status(it.script.handle);
        }
        if it.files.values().any(|known| *known == fd) {
            return status(HANDLE_ALREADY_REGISTERED);
        }
        let number = it.next_handle;
        it.next_handle += 1;
        it.files.insert(number, fd);
        // SAFETY: the caller's promise.
        unsafe { *handle = number as *mut c_void };
        OK
    })
}

fn is_regular(fd: c_int) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it writes the structure, which is plain numbers and was zeroed.
    let found = unsafe {
        libc::fstat(fd, found.as_mut_ptr());
        found.assume_init()
    };
    found.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Forgets a file.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileHandleDeregister(handle: *mut c_void) {
    with(|it| it.files.remove(&(handle as usize)));
}

/// Registers memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufRegister(address: *const c_void, bytes: usize, _flags: c_int) -> Status {
    with(|it| {
        if let Err(status) = it.ensure_open() {
            return status;
        }
        if address.is_null() || bytes == 0 {
            return status(INVALID_VALUE);
        }
        if it.script.buffer != 0 {
            return status(it.script.buffer);
        }
        if it.memory.contains_key(&(address as usize)) {
            return status(ALREADY_REGISTERED);
        }
        it.memory.insert(address as usize, bytes);
        OK
    })
}

/// Forgets memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileBufDeregister(address: *const c_void) -> Status {
    with(|it| match it.memory.remove(&(address as usize)) {
        _ if !it.open => status(CLOSING),
        _ if address.is_null() => status(INVALID_VALUE),
        Some(_) => OK,
        None => status(NOT_REGISTERED),
    })
}

/// The next outcome of the script.
fn next(script: &mut Script) -> Outcome {
    let last = script.reads.len() == 1;
    let (outcome, times) = script.reads.first_mut().expect("a script has an outcome");
    let current = *outcome;
    if !last {
        *times -= 1;
        if *times == 0 {
            script.reads.remove(0);
        }
    }
    current
}

fn errno(code: c_int) -> isize {
    // SAFETY: it is this thread's errno.
    unsafe { *libc::__errno_location() = code };
    -1
}

/// Reads a file into memory.
///
/// # Safety
/// `base + offset` has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileRead(
    handle: *mut c_void,
    base: *mut c_void,
    bytes: usize,
    from: i64,
    offset: i64,
) -> isize {
    let found = with(|it| {
        let checked = it.check(handle as usize, base as usize, bytes, from, offset);
        if checked.is_err() {
            it.counts.errors += 1;
        }
        checked.map(|fd| (fd, next(&mut it.script)))
    });
    let (fd, outcome) = match found {
        Ok(found) => found,
        Err(code) => return errno(code),
    };
    match outcome {
        Outcome::Error(code) => {
            with(|it| it.counts.errors += 1);
            return -(code as isize);
        }
        Outcome::Errno(code) => {
            with(|it| it.counts.errors += 1);
            return errno(code);
        }
        _ => (),
    }
    let bytes = match outcome {
        Outcome::Short => bytes.div_ceil(2),
        Outcome::End => 0,
        _ => bytes,
    };
    // O_DIRECT wants aligned requests, which a kernel driver would make; a plain descriptor takes any.
    let path = format!("/proc/self/fd/{fd}");
    let Ok(file) = std::fs::File::open(path) else { return errno(libc::EBADF) };
    let mut done = 0usize;
    while done < bytes {
        let place = (base as usize + offset as usize + done) as *mut c_void;
        // SAFETY: the caller has room for `bytes` bytes there.
        let got =
            unsafe { libc::pread(std::os::fd::AsRawFd::as_raw_fd(&file), place, bytes - done, from + done as i64) };
        match got {
            0 => break,
            got if got < 0 => return -1,
            got => done += got as usize,
        }
    }
    with(|it| {
        let (foreign, other) = (it.script.foreign, it.script.other);
        let counts = &mut it.counts;
        if it.level >= 3 && outcome != Outcome::Uncounted {
            counts.total += 1 + foreign;
            counts.nvfs += foreign;
            counts.other += other;
            counts.bytes += (done as u64).next_multiple_of(4096); // a short read counts its aligned size
            match outcome {
                Outcome::P2p => counts.p2p += 1,
                Outcome::Posix => counts.posix += 1,
                Outcome::Unaligned => {
                    counts.posix += 1;
                    counts.unaligned += 1;
                }
                _ => counts.nvfs += 1,
            }
        }
    });
    done as isize
}

/// Sets the level of statistics.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileSetStatsLevel(level: c_int) -> Status {
    if !(0..=3).contains(&level) {
        return status(INVALID_VALUE);
    }
    with(|it| it.level = it.script.level.unwrap_or(level));
    OK
}

/// The level of statistics.
///
/// # Safety
/// `level` points to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsLevel(level: *mut c_int) -> Status {
    // SAFETY: the caller's promise.
    unsafe { *level = with(|it| it.level) };
    OK
}

/// Starts counting: from zero.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsStart() -> Status {
    with(|it| it.counts = Counts::default());
    OK
}

/// Stops counting, sets the level to 0 and loses what was counted.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsStop() -> Status {
    with(|it| (it.counts, it.level) = (Counts::default(), 0));
    OK
}

/// Zeroes the counters.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileStatsReset() -> Status {
    with(|it| it.counts = Counts::default());
    OK
}

/// Offsets of `num_gpus` and of the rows in level 3: the structure grew at 1.19.
fn layout(version: c_int) -> (usize, usize) {
    if version >= 1190 { (1136, 1144) } else { (1024, 1032) }
}

/// Writes a word of a structure.
///
/// # Safety
/// The structure has the word.
unsafe fn put<T>(structure: *mut c_void, at: usize, value: T) {
    // SAFETY: the caller's promise.
    unsafe { structure.cast::<u8>().add(at).cast::<T>().write_unaligned(value) };
}

/// Level 1: counters of calls. Before 1.18 reads count twice.
///
/// # Safety
/// `statistics` points to the structure of this version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL1(statistics: *mut c_void) -> Status {
    with(|it| {
        if !it.open {
            return status(NOT_INITIALIZED);
        }
        if it.level < 1 {
            return status(INVALID_VALUE);
        }
        // SAFETY: read_ops is the first field: what went well, what failed.
        unsafe {
            put(statistics, 0, it.counts.total * it.times());
            put(statistics, 8, it.counts.errors);
        }
        OK
    })
}

/// Level 3: a row a GPU. What lies behind the last row stays untouched.
///
/// # Safety
/// `statistics` points to the structure of this version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileGetStatsL3(statistics: *mut c_void) -> Status {
    with(|it| {
        if !it.open {
            return status(NOT_INITIALIZED);
        }
        if it.level < 3 || it.script.version < 1150 {
            return status(INVALID_VALUE);
        }
        let (gpus, rows) = layout(it.script.version);
        let counts = it.counts;
        // SAFETY: the structure has 16 rows of 248 bytes, and the script states at most as many GPUs.
        unsafe {
            put(statistics, 0, counts.total * it.times()); // level 1 comes first
            put(statistics, 8, counts.errors);
            put(statistics, gpus, it.script.gpus.min(16));
            if it.script.gpus > 0 {
                put(statistics, rows, it.script.uuid);
                for (at, value) in [
                    (16, counts.bytes),
                    (48, counts.total),
                    (56, counts.p2p),
                    (64, counts.nvfs),
                    (72, counts.posix),
                    (80, counts.unaligned),
                    (112, counts.errors),
                ] {
                    put(statistics, rows + at, value);
                }
            }
            if it.script.gpus > 1 {
                put(statistics, rows + 248, [0xffu8; 16]);
                put(statistics, rows + 248 + 48, counts.other);
                put(statistics, rows + 248 + 72, counts.other);
            }
        }
        OK
    })
}
