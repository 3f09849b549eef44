//! Plain values that say how to read. Each setter documents its cost.

use std::path::PathBuf;

/// When cuFile is used, with the meaning that KvikIO gives the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CompatMode {
    /// Prefer cuFile and fall back a file at a time, keeping the reason.
    #[default]
    Auto,
    /// Never use cuFile.
    On,
    /// Fail when cuFile is refused.
    Off,
}

/// How bytes travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoOptions {
    /// When cuFile is used.
    pub compat_mode: CompatMode,
    /// Ranges of at least this many bytes go through cuFile. 16 KiB, as in KvikIO.
    pub gds_threshold: u64,
    /// Bytes of one I/O operation. 4 MiB, as in KvikIO.
    pub task_size: u64,
    /// Threads that read. `None`: chosen from the machine.
    pub threads: Option<usize>,
    /// Two ranges with a gap of at most this many bytes between them are read as one.
    pub merge_gap: u64,
    /// A merged range may waste at most this many bytes in gaps.
    pub merge_waste: u64,
    /// An operation that provably did not take an accelerated path becomes an error.
    pub require_gds: bool,
    /// The libcufile to load instead of the one that is found.
    pub cufile_library: Option<PathBuf>,
}

impl Default for IoOptions {
    fn default() -> Self {
        Self {
            compat_mode: CompatMode::Auto,
            gds_threshold: 16 << 10,
            task_size: 4 << 20,
            threads: None,
            merge_gap: 64 << 10,
            merge_waste: 1 << 20,
            require_gds: false,
            cufile_library: None,
        }
    }
}

impl IoOptions {
    /// Sets when cuFile is used. Opening cuFile costs 0.1 to 0.5 s, once in a process, at the first direct range.
    pub fn with_compat_mode(mut self, mode: CompatMode) -> Self {
        self.compat_mode = mode;
        self
    }

    /// Sets the size from which ranges go through cuFile, in bytes. Below it one request costs more than a host copy.
    pub fn with_gds_threshold(mut self, bytes: u64) -> Self {
        self.gds_threshold = bytes;
        self
    }

    /// Sets the bytes of one I/O operation. Each reading thread pins two buffers of this size on the host path.
    pub fn with_task_size(mut self, bytes: u64) -> Self {
        self.task_size = bytes;
        self
    }

    /// Sets the number of reading threads. On the host path each owns a stream and two pinned buffers of `task_size`.
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets how large a gap between two ranges is read along, and how many wasted bytes a merged range may hold.
    pub fn with_merge(mut self, gap: u64, waste: u64) -> Self {
        self.merge_gap = gap;
        self.merge_waste = waste;
        self
    }

    /// Turns any operation that did not provably take an accelerated path into an error.
    pub fn with_require_gds(mut self, require: bool) -> Self {
        self.require_gds = require;
        self
    }

    /// Names the libcufile to load. A process has one cuFile: the first library that was loaded stays.
    pub fn with_cufile_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.cufile_library = Some(path.into());
        self
    }
}

/// What is read, and within what memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// How bytes travel.
    pub io: IoOptions,
    /// Device memory that one scan may hold at a time, in bytes, everything counted. `None`: 80 % of what is free.
    pub memory: Option<u64>,
    /// Rows a batch holds at most, in whole row groups. `None`: as many as the memory budget allows.
    pub batch_rows: Option<u64>,
}

impl ReadOptions {
    /// Sets how bytes travel.
    pub fn with_io(mut self, io: IoOptions) -> Self {
        self.io = io;
        self
    }

    /// Sets the device-memory budget in bytes. A smaller one cuts the scan into more batches; one row group must fit.
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets the most rows that a batch holds; a batch is at least one row group.
    pub fn with_batch_rows(mut self, rows: u64) -> Self {
        self.batch_rows = Some(rows);
        self
    }
}
