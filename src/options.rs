//! Plain values that say how to read. Each setter documents its cost.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, Result};

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

/// The Arrow type of strings; binary columns get the one alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StringType {
    /// What arrow-rs chooses: the file's Arrow schema, or `Utf8` and `Binary`.
    #[default]
    File,
    /// `Utf8` and `Binary`.
    Utf8,
    /// `LargeUtf8` and `LargeBinary`.
    Large,
    /// `Utf8View` and `BinaryView`.
    View,
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
    /// Device memory that one scan may hold at a time, in bytes, everything counted; on the CPU device, what the footer
    /// says that one batch comes to. `None`: 80 % of what is free; on the CPU no limit for a row group.
    pub memory: Option<u64>,
    /// Rows a batch holds at most, in whole row groups. `None`: as many as the memory budget allows.
    pub batch_rows: Option<u64>,
    /// Pages whose header states a checksum are compared with it.
    pub check_crc: bool,
    /// The libnvcomp to load instead of the one that is found.
    pub nvcomp_library: Option<PathBuf>,
    /// The Arrow type of strings.
    pub strings: StringType,
    /// Whether decimals get their narrowest Arrow type.
    pub narrow_decimals: bool,
    /// Whether string columns with dictionaries become Arrow dictionaries.
    pub dictionaries: bool,
}

impl ReadOptions {
    /// Sets the Arrow type of strings, in nested columns and dictionaries too. `Utf8` has offsets of 4 bytes a value and at
    /// most 2 GiB in a batch; `LargeUtf8` takes 8 bytes a value and has no such limit; views take 16 bytes a value beside
    /// the bytes themselves, those of a dictionary once a row group, and 20 more while they are made.
    pub fn with_string_type(mut self, strings: StringType) -> Self {
        self.strings = strings;
        self
    }

    /// Gives decimals the narrowest of `Decimal32`, `Decimal64`, `Decimal128` and `Decimal256` that their precision allows
    /// and that arrow-rs makes of the column, which is none narrower than the values in the file: 4 to 16 bytes a value in
    /// place of 16 or 32. Decimals in BYTE_ARRAY stay 128 or 256 bits wide.
    pub fn with_narrow_decimals(mut self, narrow: bool) -> Self {
        self.narrow_decimals = narrow;
        self
    }

    /// Reads string columns of which every chunk has a dictionary as Arrow dictionaries with keys of 32 bits: 4 bytes a
    /// value and each entry once a row group, in place of all bytes of all values. Entries that several row groups of a
    /// batch share are there several times, and pages that do without the dictionary add an entry for each value.
    pub fn with_dictionaries(mut self, keep: bool) -> Self {
        self.dictionaries = keep;
        self
    }

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

    /// Names the libnvcomp to load, for ZSTD and GZIP on a GPU. Where there is none, the CPU decompresses them.
    pub fn with_nvcomp_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.nvcomp_library = Some(path.into());
        self
    }

    /// Has pages compared with the checksums in their headers, as stored; a page without one passes. Costs a kernel over
    /// the bytes and one host wait a batch; on the CPU, a pass over the bytes.
    pub fn with_check_crc(mut self, check: bool) -> Self {
        self.check_crc = check;
        self
    }

    /// Sets the most rows that a batch holds; a batch is at least one row group.
    pub fn with_batch_rows(mut self, rows: u64) -> Self {
        self.batch_rows = Some(rows);
        self
    }
}

impl FromStr for StringType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "file" => Ok(Self::File),
            "utf8" => Ok(Self::Utf8),
            "large" => Ok(Self::Large),
            "view" => Ok(Self::View),
            _ => Err(format!("`{text}` is not a type of strings: utf8, large, view or file")),
        }
    }
}

/// Reads whether decimals are narrowed: `narrow` or `file`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_decimals(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "narrow" => Ok(true),
        "file" => Ok(false),
        _ => Err(format!("`{text}` is not a type of decimals: file or narrow")),
    }
}

impl CompatMode {
    /// The words that KvikIO accepts, in any case.
    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "on" | "true" | "yes" | "1" => Ok(Self::On),
            "off" | "false" | "no" | "0" => Ok(Self::Off),
            _ => Err(format!("`{text}` is not a compat mode: auto, on or off")),
        }
    }
}

impl FromStr for CompatMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for CompatMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Reads a size: bytes, or a number with `KiB`, `MiB`, `GiB`, `TiB`, `KB`, `MB`, `GB` or `TB`; `K`, `M`, `G` and `T` are
/// binary.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{text}` is not a size: 4096, 16KiB, 4MiB, 8GB")),
    };
    let wrong = || format!("`{text}` is not a size: 4096, 16KiB, 4MiB, 8GB");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(wrong);
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * factor as f64;
    if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Reads a size that must not be zero, as [`parse_size`].
///
/// # Errors
/// What is wrong with the text.
pub fn parse_positive_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("at least one byte".into()),
        bytes => Ok(bytes),
    }
}

/// A setting: its names, its default and what it does. The README's table and the command's help say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The command's flag.
    pub flag: &'static str,
    /// Our environment variable.
    pub variable: &'static str,
    /// KvikIO's variables of the same setting, honoured in this order when ours is not set; empty when it has none.
    pub kvikio: &'static [&'static str],
    /// The default, as it is written.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

/// Every setting that the environment can make.
pub const TABLE: &[Setting] = &[
    setting(
        "--compat",
        "PARQUET_GPU_COMPAT",
        &["KVIKIO_COMPAT_MODE"],
        "auto",
        "cuFile: auto prefers it, on never uses it, off insists on it",
    ),
    setting(
        "--gds-threshold",
        "PARQUET_GPU_GDS_THRESHOLD",
        &["KVIKIO_GDS_THRESHOLD"],
        "16KiB",
        "ranges from this size go through cuFile",
    ),
    setting("--task-size", "PARQUET_GPU_TASK_SIZE", &["KVIKIO_TASK_SIZE"], "4MiB", "bytes of one I/O operation"),
    setting(
        "--threads",
        "PARQUET_GPU_THREADS",
        &["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"],
        "3/4 of the cores, at most 12",
        "threads that read",
    ),
    setting("--memory", "PARQUET_GPU_MEMORY", &[], "80 % of what is free", "device memory that one scan may hold"),
    setting("--batch-rows", "PARQUET_GPU_BATCH_ROWS", &[], "as many as fit", "rows of a batch, in whole row groups"),
    setting(
        "--strings",
        "PARQUET_GPU_STRINGS",
        &[],
        "file",
        "type of strings: utf8, large, view, or what arrow-rs chooses",
    ),
    setting(
        "--decimals",
        "PARQUET_GPU_DECIMALS",
        &[],
        "file",
        "narrow: the narrowest type; file: what arrow-rs chooses",
    ),
    setting("--dictionaries", "PARQUET_GPU_DICTIONARIES", &[], "false", "keep the dictionaries of string columns"),
    setting("--check-crc", "PARQUET_GPU_CHECK_CRC", &[], "false", "compare pages with the checksums in their headers"),
    setting("--merge-gap", "PARQUET_GPU_MERGE_GAP", &[], "64KiB", "ranges with a smaller gap are read as one"),
    setting("--merge-waste", "PARQUET_GPU_MERGE_WASTE", &[], "1MiB", "gaps that one read may hold"),
    setting(
        "--require-gds",
        "PARQUET_GPU_REQUIRE_GDS",
        &[],
        "false",
        "fail unless every byte provably went to the GPU directly",
    ),
    setting("--nvcomp-library", "PARQUET_GPU_NVCOMP_LIBRARY", &[], "the one that is found", "the libnvcomp to load"),
    setting("--cufile-library", "PARQUET_GPU_CUFILE_LIBRARY", &[], "the one that is found", "the libcufile to load"),
];

const fn setting(
    flag: &'static str,
    variable: &'static str,
    kvikio: &'static [&'static str],
    default: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting { flag, variable, kvikio, default, meaning }
}

impl ReadOptions {
    /// The defaults, changed by what the environment says: our variables first, then KvikIO's. An empty one is not set.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the variable whose value cannot be read.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), from any source of variables.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let find = |flag: &str| -> Option<(&'static str, OsString)> {
            let setting = TABLE.iter().find(|it| it.flag == flag)?;
            let mut names = std::iter::once(&setting.variable).chain(setting.kvikio);
            names.find_map(|name| Some((*name, lookup(name).filter(|it| !it.is_empty())?)))
        };
        fn read<T>(
            found: Option<(&'static str, OsString)>,
            parse: impl Fn(&str) -> Result<T, String>,
        ) -> Result<Option<T>> {
            let Some((name, value)) = found else { return Ok(None) };
            let text = value.to_str().ok_or_else(|| Error::Argument(format!("{name}: its value is not UTF-8")))?;
            parse(text).map(Some).map_err(|why| Error::Argument(format!("{name}: {why}")))
        }
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| format!("`{text}` is not a number"));
        let threads = |text: &str| match number(text)? {
            0 => Err("at least one thread".to_string()),
            some => usize::try_from(some).map_err(|error| error.to_string()),
        };
        let flag = |text: &str| match text.trim().to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(format!("`{text}` is neither true nor false")),
        };
        let mut options = Self::default();
        let io = &mut options.io;
        read(find("--compat"), CompatMode::parse)?.inspect(|it| io.compat_mode = *it);
        read(find("--gds-threshold"), parse_size)?.inspect(|it| io.gds_threshold = *it);
        read(find("--task-size"), parse_positive_size)?.inspect(|it| io.task_size = *it);
        read(find("--merge-gap"), parse_size)?.inspect(|it| io.merge_gap = *it);
        read(find("--merge-waste"), parse_size)?.inspect(|it| io.merge_waste = *it);
        read(find("--require-gds"), flag)?.inspect(|it| io.require_gds = *it);
        io.threads = read(find("--threads"), threads)?;
        io.cufile_library = find("--cufile-library").map(|(_, path)| PathBuf::from(path));
        options.memory = read(find("--memory"), parse_size)?;
        options.batch_rows = read(find("--batch-rows"), number)?;
        options.nvcomp_library = find("--nvcomp-library").map(|(_, path)| PathBuf::from(path));
        read(find("--check-crc"), flag)?.inspect(|it| options.check_crc = *it);
        options.strings = read(find("--strings"), StringType::from_str)?.unwrap_or_default();
        options.narrow_decimals = read(find("--decimals"), parse_decimals)?.unwrap_or_default();
        options.dictionaries = read(find("--dictionaries"), flag)?.unwrap_or_default();
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16KiB", 16 << 10),
            (" 4 MiB ", 4 << 20),
            ("8GB", 8_000_000_000),
            ("1.5k", 1536),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "4XB", "99999999999999999999", "20000000TiB"] {
            parse_size(text).expect_err(text);
        }
    }

    fn from(variables: &[(&str, &str)]) -> Result<ReadOptions> {
        ReadOptions::from_lookup(|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn our_variables_come_before_kvikio_s() {
        let options = from(&[
            ("KVIKIO_NTHREADS", "3"),
            ("KVIKIO_NUM_THREADS", "5"),
            ("KVIKIO_COMPAT_MODE", "YES"),
            ("KVIKIO_TASK_SIZE", "8192"),
            ("KVIKIO_GDS_THRESHOLD", "0"),
            ("PARQUET_GPU_TASK_SIZE", "1MiB"),
            ("PARQUET_GPU_COMPAT", ""),
        ]);
        let io = options.expect("all readable").io;
        assert_eq!((io.threads, io.compat_mode, io.task_size, io.gds_threshold), (Some(3), CompatMode::On, 1 << 20, 0));
        assert_eq!(from(&[("KVIKIO_NUM_THREADS", "5")]).expect("an alias").io.threads, Some(5));
    }

    #[test]
    fn every_setting_has_a_variable_that_sets_it() {
        for setting in TABLE {
            let value = match setting.flag {
                "--compat" => "off",
                "--require-gds" | "--dictionaries" | "--check-crc" => "true",
                "--strings" => "view",
                "--decimals" => "narrow",
                _ => "12345",
            };
            let set = from(&[(setting.variable, value)]).expect(setting.flag);
            assert_ne!(set, ReadOptions::default(), "{}", setting.flag);
            for kvikio in setting.kvikio {
                assert_eq!(from(&[(kvikio, value)]).expect(kvikio), set);
            }
        }
    }

    #[test]
    fn values_that_cannot_be_read_name_their_variable() {
        for (name, value) in [
            ("KVIKIO_NTHREADS", "many"),
            ("KVIKIO_NUM_THREADS", "0"),
            ("KVIKIO_COMPAT_MODE", "maybe"),
            ("PARQUET_GPU_TASK_SIZE", "0"),
            ("PARQUET_GPU_GDS_THRESHOLD", "-1"),
            ("PARQUET_GPU_MEMORY", "8 potatoes"),
            ("PARQUET_GPU_REQUIRE_GDS", "perhaps"),
            ("PARQUET_GPU_STRINGS", "utf16"),
            ("PARQUET_GPU_DECIMALS", "wide"),
        ] {
            let error = from(&[(name, value)]).expect_err(name);
            assert_eq!(error.kind(), "argument");
            assert!(error.to_string().starts_with(&format!("{name}: ")), "{error}");
        }
        use std::os::unix::ffi::OsStringExt;
        let bytes = || Some(OsString::from_vec(vec![0xff]));
        let error = ReadOptions::from_lookup(|name| bytes().filter(|_| name == "PARQUET_GPU_THREADS"));
        assert!(error.expect_err("not UTF-8").to_string().contains("PARQUET_GPU_THREADS"));
        let path = ReadOptions::from_lookup(|name| bytes().filter(|_| name == "PARQUET_GPU_CUFILE_LIBRARY"));
        assert_eq!(path.expect("a path").io.cufile_library.map(PathBuf::into_os_string), bytes());
    }

    #[test]
    fn compat_modes_have_kvikio_s_spellings() {
        for (mode, words) in [
            (CompatMode::On, ["ON", "True", "yes", "1", "on "]),
            (CompatMode::Off, ["OFF", "False", "no", "0", " off"]),
            (CompatMode::Auto, ["AUTO", "Auto", "auto", "aUtO", "auto"]),
        ] {
            for word in words {
                assert_eq!(word.parse(), Ok(mode), "{word}");
            }
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        "".parse::<CompatMode>().expect_err("empty");
    }

    #[test]
    fn the_table_states_the_defaults() {
        let io = IoOptions::default();
        for (flag, value) in [
            ("--gds-threshold", io.gds_threshold),
            ("--task-size", io.task_size),
            ("--merge-gap", io.merge_gap),
            ("--merge-waste", io.merge_waste),
        ] {
            let setting = TABLE.iter().find(|it| it.flag == flag).expect(flag);
            assert_eq!(parse_size(setting.default), Ok(value), "{flag}");
        }
    }
}
