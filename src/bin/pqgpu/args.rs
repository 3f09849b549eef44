//! The command line, and what it selects in a file.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::BoolishValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::RowSelection;
use parquet_gpu::device::{Device, DeviceChoice};
use parquet_gpu::footer::Footer;
use parquet_gpu::io::Source;
use parquet_gpu::options::{parse_decimals, parse_positive_size, parse_size};
use parquet_gpu::{CompatMode, Error, GpuReaderBuilder, ReadOptions, Result, StringType};

use crate::doctor::probe::Probe;

/// Reads Parquet into GPU memory as Arrow, and proves which path every byte took.
///
/// Exit status: 0 done, 1 failed, 2 usage, 3 --require-gds not met, 4 --verify found a difference. Of several files the
/// gravest counts: 2, then 1, 4, 3.
#[derive(Debug, Parser)]
#[command(name = "pqgpu", version, max_term_width = 80)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read into GPU memory; report rows, speed and paths
    Scan(Scan),
    /// What would be read, by which route, and why; reads the footer only
    Plan(Plan),
    /// The raw file into GPU memory, with the path table
    Read(Read),
    /// What this machine offers, and what to fix
    Doctor(Doctor),
    /// Loads a foreign library for `doctor`, which survives it when the library does not return
    #[command(hide = true)]
    DoctorProbe { probe: Probe },
}

#[derive(Debug, ClapArgs)]
pub struct Scan {
    /// Files, glob patterns or URLs, scanned in turn
    #[arg(required = true)]
    pub sources: Vec<String>,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub common: Common,
    /// Decode the same data with arrow-rs and compare every value
    #[arg(long, env = "PARQUET_GPU_VERIFY", value_parser = BoolishValueParser::new())]
    pub verify: bool,
    /// After one warm-up, scan this often and report the median
    #[arg(long, value_name = "N", env = "PARQUET_GPU_REPEAT")]
    pub repeat: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub struct Plan {
    /// File or URL
    pub source: String,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, ClapArgs)]
pub struct Read {
    /// File or URL
    pub source: String,
    #[command(flatten)]
    pub common: Common,
    /// Copy the bytes back and compare them with the file
    #[arg(long, env = "PARQUET_GPU_VERIFY", value_parser = BoolishValueParser::new())]
    pub verify: bool,
    /// After one warm-up, read this often and report the median
    #[arg(long, value_name = "N", env = "PARQUET_GPU_REPEAT")]
    pub repeat: Option<usize>,
}

#[derive(Debug, ClapArgs)]
pub struct Doctor {
    /// A file or folder whose file system matters
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// One JSON object
    #[arg(long, env = "PARQUET_GPU_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// What of a file is read.
#[derive(Debug, ClapArgs)]
pub struct Selection {
    /// Columns: top-level names, or dotted paths into nested ones
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', env = "PARQUET_GPU_COLUMNS")]
    pub columns: Option<Vec<String>>,
    /// Row groups, such as 0,2,5-9
    #[arg(long, value_name = "N,N-M,...", value_parser = parse_row_groups, env = "PARQUET_GPU_ROW_GROUPS")]
    pub row_groups: Option<RowGroups>,
    /// Rows, such as 0..100,5000..6000, counted from 0 through the row groups that are read
    #[arg(long, value_name = "N..M,...", value_parser = parse_rows, env = "PARQUET_GPU_ROWS")]
    pub rows: Option<Rows>,
    /// Skip row groups that cannot hold such rows, such as "a >= 5 AND b = 'x'"; rows are not filtered
    #[arg(long, value_name = "EXPR", env = "PARQUET_GPU_FILTER")]
    pub filter: Option<String>,
}

/// Row groups in the order given.
#[derive(Debug, Clone)]
pub struct RowGroups(pub Vec<usize>);

/// Ranges of rows, ascending.
#[derive(Debug, Clone)]
pub struct Rows(pub Vec<Range<usize>>);

/// What a scan reads, for its verifier.
pub struct Selected {
    pub projection: ProjectionMask,
    pub row_groups: Option<Vec<usize>>,
    pub rows: Option<RowSelection>,
}

#[derive(Debug, ClapArgs)]
pub struct Common {
    /// auto, cpu, cuda:N or emulated
    #[arg(long, default_value = "auto", env = "PARQUET_GPU_DEVICE")]
    pub device: DeviceChoice,
    /// cuFile: auto prefers it, on never uses it, off insists on it [default: auto]
    #[arg(long, env = "PARQUET_GPU_COMPAT")]
    compat: Option<CompatMode>,
    /// Ranges from this size go through cuFile [default: 16KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "PARQUET_GPU_GDS_THRESHOLD")]
    gds_threshold: Option<u64>,
    /// Bytes of one I/O operation [default: 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_positive_size, env = "PARQUET_GPU_TASK_SIZE")]
    task_size: Option<u64>,
    /// Threads that read [default: 3/4 of the cores, at most 12]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096), env = "PARQUET_GPU_THREADS")]
    threads: Option<u64>,
    /// Device memory that one scan may hold [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "PARQUET_GPU_MEMORY")]
    memory: Option<u64>,
    /// Rows of a batch, in whole row groups [default: as many as fit]
    #[arg(long, value_name = "N", env = "PARQUET_GPU_BATCH_ROWS")]
    batch_rows: Option<u64>,
    /// The type of strings: utf8, large, view, or file for what arrow-rs chooses [default: file]
    #[arg(long, value_name = "TYPE", env = "PARQUET_GPU_STRINGS")]
    strings: Option<StringType>,
    /// The type of decimals: narrow for the narrowest, or file for what arrow-rs chooses [default: file]
    #[arg(long, value_name = "TYPE", value_parser = parse_decimals, env = "PARQUET_GPU_DECIMALS")]
    decimals: Option<bool>,
    /// Keep the dictionaries of string columns
    #[arg(long, env = "PARQUET_GPU_DICTIONARIES", value_parser = BoolishValueParser::new())]
    dictionaries: bool,
    /// Compare pages with the checksums in their headers
    #[arg(long, env = "PARQUET_GPU_CHECK_CRC", value_parser = BoolishValueParser::new())]
    check_crc: bool,
    /// Ranges with a smaller gap are read as one [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "PARQUET_GPU_MERGE_GAP")]
    merge_gap: Option<u64>,
    /// Gaps that one read may hold [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, env = "PARQUET_GPU_MERGE_WASTE")]
    merge_waste: Option<u64>,
    /// Fail unless every byte provably went to the GPU directly
    #[arg(long, env = "PARQUET_GPU_REQUIRE_GDS", value_parser = BoolishValueParser::new())]
    pub require_gds: bool,
    /// The libnvcomp to load
    #[arg(long, value_name = "FILE", env = "PARQUET_GPU_NVCOMP_LIBRARY")]
    nvcomp_library: Option<PathBuf>,
    /// The libcufile to load
    #[arg(long, value_name = "FILE", env = "PARQUET_GPU_CUFILE_LIBRARY")]
    cufile_library: Option<PathBuf>,
    /// One JSON object a file, on one line
    #[arg(long, env = "PARQUET_GPU_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

impl Common {
    /// The options: flags before our variables before KvikIO's before the defaults.
    pub fn options(&self) -> Result<ReadOptions> {
        let mut options = ReadOptions::from_env()?;
        let io = &mut options.io;
        io.compat_mode = self.compat.unwrap_or(io.compat_mode);
        io.gds_threshold = self.gds_threshold.unwrap_or(io.gds_threshold);
        io.task_size = self.task_size.unwrap_or(io.task_size);
        io.merge_gap = self.merge_gap.unwrap_or(io.merge_gap);
        io.merge_waste = self.merge_waste.unwrap_or(io.merge_waste);
        io.threads = self.threads.map(|it| it as usize).or(io.threads);
        io.require_gds |= self.require_gds;
        io.cufile_library = self.cufile_library.clone().or_else(|| io.cufile_library.clone());
        options.memory = self.memory.or(options.memory);
        options.batch_rows = self.batch_rows.or(options.batch_rows);
        options.strings = self.strings.unwrap_or(options.strings);
        options.narrow_decimals = self.decimals.unwrap_or(options.narrow_decimals);
        options.dictionaries |= self.dictionaries;
        options.check_crc |= self.check_crc;
        options.nvcomp_library = self.nvcomp_library.clone().or(options.nvcomp_library);
        Ok(options)
    }

    pub fn open_device(&self) -> Result<Device> {
        Device::open(self.device)
    }
}

impl Selection {
    /// A builder for a source with this selection, and the selection itself, for a verifier.
    pub fn builder(
        &self,
        source: Arc<Source>,
        device: Device,
        options: ReadOptions,
    ) -> Result<(GpuReaderBuilder, Selected)> {
        let builder = GpuReaderBuilder::try_new(source, device)?.with_options(options);
        let projection = self.projection(builder.footer())?;
        let row_groups = self.row_groups(builder.footer())?;
        let mut builder = builder.with_projection(projection.clone());
        if let Some(row_groups) = &row_groups {
            builder = builder.with_row_groups(row_groups.clone());
        }
        let rows = self.rows.as_ref().map(|rows| {
            let end = rows.0.last().map_or(0, |it| it.end);
            RowSelection::from_consecutive_ranges(rows.0.iter().cloned(), end)
        });
        if let Some(rows) = &rows {
            builder = builder.with_row_selection(rows.clone());
        }
        Ok((builder, Selected { projection, row_groups, rows }))
    }

    fn projection(&self, footer: &Footer) -> Result<ProjectionMask> {
        let Some(names) = &self.columns else { return Ok(ProjectionMask::all()) };
        let paths: Vec<&str> = footer.leaves.iter().map(|leaf| leaf.path.as_str()).collect();
        for name in names {
            let is_in =
                |path: &&str| *path == name || path.strip_prefix(name.as_str()).is_some_and(|it| it.starts_with('.'));
            if !paths.iter().any(is_in) {
                return Err(Error::Argument(format!("there is no column {name}; {}", nearest(name, &paths))));
            }
        }
        let schema = footer.metadata().file_metadata().schema_descr();
        Ok(ProjectionMask::columns(schema, names.iter().map(String::as_str)))
    }

    fn row_groups(&self, footer: &Footer) -> Result<Option<Vec<usize>>> {
        let mut selected = self.row_groups.as_ref().map(|it| it.0.clone());
        if let Some(text) = &self.filter {
            let filter: parquet_gpu::plan::prune::Filter = text.parse().map_err(Error::Argument)?;
            let kept = filter.row_groups(footer)?;
            selected = Some(match selected {
                Some(asked) => asked.into_iter().filter(|it| kept.contains(it)).collect(),
                None => kept,
            });
        }
        Ok(selected)
    }
}

/// The names most like `name`, to help with a slip.
fn nearest(name: &str, paths: &[&str]) -> String {
    let mut near: Vec<(usize, &str)> = paths.iter().map(|path| (distance(name, path), *path)).collect();
    near.sort();
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, path)| path).collect();
    match near.is_empty() {
        true => "the file has none".into(),
        false => format!("did you mean {}?", near.join(", ")),
    }
}

/// Levenshtein's distance.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, from) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (to, it) in other.iter().enumerate() {
            let cost = diagonal + usize::from(from != *it);
            diagonal = row[to + 1];
            row[to + 1] = cost.min(diagonal + 1).min(row[to] + 1);
        }
    }
    row[other.len()]
}

fn parse_rows(text: &str) -> Result<Rows, String> {
    let mut rows: Vec<Range<usize>> = Vec::new();
    for part in text.split(',') {
        let range = part
            .split_once("..")
            .and_then(|(start, end)| Some(Range { start: start.trim().parse().ok()?, end: end.trim().parse().ok()? }));
        match range.filter(|it| it.start < it.end) {
            Some(range) if rows.last().is_none_or(|last| last.end <= range.start) => rows.push(range),
            Some(_) => return Err(format!("`{part}` starts before the end of the range before it")),
            None => return Err(format!("`{part}` is not a range of rows: 0..100 are the first hundred")),
        }
    }
    Ok(Rows(rows))
}

fn parse_row_groups(text: &str) -> Result<RowGroups, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("`{text}` is not a row group"));
    let mut groups = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if last < first || last - first > 1 << 24 {
                    return Err(format!("`{part}` is not a range of row groups"));
                }
                groups.extend(first..=last);
            }
            None => groups.push(number(part)?),
        }
    }
    Ok(RowGroups(groups))
}
