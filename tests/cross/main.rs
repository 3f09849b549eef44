//! The cross of encoding, codec, type, nesting, nulls, page version, page size, batches and projections: files made for
//! it, read on every device, equal arrow-rs.
//!
//! `PARQUET_GPU_CASES=N` generates N files in place of the few hundred of a usual run.
#![allow(clippy::unwrap_used)]

mod cases;
#[path = "../devices/mod.rs"]
mod devices;
mod fixed;
mod found;
#[path = "../generate/mod.rs"]
mod generate;
mod generated;
mod pages;
mod pyarrow;
mod repage;
mod repaged;
mod shapes;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bytes::Bytes;
use generate::Random;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet_gpu::io::Source;
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, Error, GpuReaderBuilder, ReadOptions, ScanReport};

/// How a scan is cut into batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cut {
    /// As much as 256 MiB hold.
    No,
    /// By rows.
    Rows(u64),
    /// By the least memory that the plan accepts.
    Memory,
}

/// Which rows of the selected row groups are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rows {
    /// Every one.
    All,
    /// From one row to another, inside pages more often than not.
    Range,
    /// Runs of up to twenty rows.
    Scattered,
    /// Not one.
    Nothing,
}

/// Which row groups are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Groups {
    /// Every one, in order.
    All,
    /// The last first.
    Reversed,
    /// Every other one.
    Odd,
}

/// What many scans came to.
#[derive(Debug, Default)]
pub struct Tally {
    files: usize,
    scans: usize,
    batches: usize,
    columns: usize,
    /// Scans that arrow-rs refuses too.
    refused: usize,
    on_cpu: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Tally {
    /// Prints what was done, and panics if anything failed.
    fn finish(self, what: &str, files: usize) {
        println!("{what}: {self}");
        let few = self.failures.iter().take(10).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{} scans failed, among them:\n{few}", self.failures.len());
        assert_eq!((self.files, self.refused), (files, 0), "files, and scans that arrow-rs refuses");
    }

    fn add(&mut self, report: &ScanReport) {
        self.scans += 1;
        self.batches += report.batches;
        self.columns += report.columns;
        for reason in report.columns_on_cpu.values() {
            *self.on_cpu.entry(reason.clone()).or_default() += 1;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, scans, batches, columns, refused, on_cpu, .. } = self;
        let sum: usize = on_cpu.values().sum();
        write!(f, "{files} files, {scans} scans that equal arrow-rs, {refused} that both refuse, {batches} batches, ")?;
        write!(f, "{columns} columns, {sum} of them on the CPU")?;
        on_cpu.iter().try_for_each(|(reason, count)| write!(f, "\n  {count:6} {reason}"))
    }
}

/// A file under test and which part of it is read.
pub struct Subject {
    /// Tells the case to whoever reads a failure.
    pub name: String,
    /// The file.
    pub bytes: Bytes,
    /// Indices of leaves; `None`: all.
    pub leaves: Option<Vec<usize>>,
    /// How it is cut into batches.
    pub cut: Cut,
    /// Rows that are read.
    pub rows: Rows,
    /// Row groups that are read.
    pub groups: Groups,
}

impl Subject {
    /// All of a file.
    pub fn whole(name: impl Into<String>, bytes: Bytes) -> Self {
        Self { name: name.into(), bytes, leaves: None, cut: Cut::No, rows: Rows::All, groups: Groups::All }
    }

    /// Pages of the file, or as many as arrow-rs finds.
    fn pages(&self) -> u64 {
        let Ok(file) = SerializedFileReader::new(self.bytes.clone()) else { return 0 };
        let mut pages = 0;
        for group in 0..file.num_row_groups() {
            let Ok(group) = file.get_row_group(group) else { continue };
            for column in 0..group.num_columns() {
                let Ok(mut reader) = group.get_column_page_reader(column) else { continue };
                while let Ok(Some(_)) = reader.peek_next_page() {
                    pages += 1;
                    if reader.skip_next_page().is_err() {
                        break;
                    }
                }
            }
        }
        pages
    }

    /// Scans on every device, the emulated one in the order of `seed`, and compares each batch and the whole with
    /// arrow-rs.
    pub fn check(&self, seed: u64, tally: &Mutex<Tally>) {
        let expected = self.reference();
        let devices: Vec<Device> = devices::devices(seed).into_iter().map(Device::Gpu).collect();
        for device in devices {
            let name = format!("{} on {}", self.name, device.name());
            match (&expected, self.scan(device)) {
                (Ok(expected), Ok((report, batch))) => {
                    assert_same(&name, &batch, expected);
                    tally.lock().unwrap().add(&report);
                }
                (Err(_), Err(Failure::Error(_))) => tally.lock().unwrap().refused += 1,
                (Ok(_), Err(failure)) => tally.lock().unwrap().failures.push(format!("{name}: {failure}")),
                (Err(error), _) => panic!("{name}: arrow-rs says {error}"),
            }
        }
        tally.lock().unwrap().files += 1;
    }

    fn projection(&self, schema: &parquet::schema::types::SchemaDescriptor) -> ProjectionMask {
        self.leaves.as_ref().map_or(ProjectionMask::all(), |it| ProjectionMask::leaves(schema, it.iter().copied()))
    }

    fn row_groups(&self, metadata: &ParquetMetaData) -> Vec<usize> {
        let all = 0..metadata.num_row_groups();
        match self.groups {
            Groups::All => all.collect(),
            Groups::Reversed => all.rev().collect(),
            Groups::Odd => all.filter(|it| it % 2 == 1).collect(),
        }
    }

    fn selection(&self, metadata: &ParquetMetaData, groups: &[usize]) -> Option<RowSelection> {
        let rows = groups.iter().map(|it| metadata.row_group(*it).num_rows()).sum::<i64>() as usize;
        let mut random = Random(self.bytes.len() as u64);
        let mut below = |limit: usize| random.below(limit as u64 + 1) as usize;
        let ranges = match self.rows {
            Rows::All => return None,
            Rows::Nothing => Vec::new(),
            Rows::Range => {
                let start = below(rows);
                let end = start + below(rows - start);
                (start < end).then_some(start..end).into_iter().collect()
            }
            Rows::Scattered => {
                let mut ranges = Vec::new();
                let mut at = below(20);
                while at < rows {
                    let end = (at + 1 + below(20)).min(rows);
                    ranges.push(at..end);
                    at = end + 1 + below(20);
                }
                ranges
            }
        };
        Some(RowSelection::from_consecutive_ranges(ranges.into_iter(), rows))
    }

    /// What arrow-rs makes of it.
    fn reference(&self) -> Result<RecordBatch, String> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(self.bytes.clone()).map_err(|it| it.to_string())?;
        let projection = self.projection(builder.parquet_schema());
        let groups = self.row_groups(builder.metadata());
        let selection = self.selection(builder.metadata(), &groups);
        let mut builder = builder.with_projection(projection).with_row_groups(groups).with_batch_size(1000);
        if let Some(selection) = selection {
            builder = builder.with_row_selection(selection);
        }
        let reader = builder.build().map_err(|it| it.to_string())?;
        let schema = arrow::array::RecordBatchReader::schema(&reader);
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|it| it.to_string())?;
        concat_batches(&schema, &batches).map_err(|it| it.to_string())
    }

    fn scan(&self, device: Device) -> Result<(ScanReport, RecordBatch), Failure> {
        let source = Arc::new(Source::from_bytes("generated", self.bytes.clone()));
        let builder = |options: ReadOptions| -> Result<GpuReaderBuilder, Error> {
            let builder = GpuReaderBuilder::try_new(source.clone(), device.clone())?.with_options(options);
            let metadata = builder.footer().metadata().clone();
            let groups = self.row_groups(&metadata);
            let builder = match self.selection(&metadata, &groups) {
                Some(selection) => builder.with_row_selection(selection),
                None => builder,
            };
            let projection = self.projection(metadata.file_metadata().schema_descr());
            Ok(builder.with_projection(projection).with_row_groups(groups))
        };
        let roomy = ReadOptions::default().with_memory(256 << 20);
        let options = match self.cut {
            Cut::No => roomy,
            Cut::Rows(rows) => roomy.with_batch_rows(rows),
            Cut::Memory => {
                // Row groups alone: the largest of them is the least that can be asked for.
                let alone = builder(roomy.clone().with_batch_rows(1))?.plan()?;
                let least = alone.batches.iter().map(|it| it.memory).max().unwrap_or(0);
                // A plan guesses how many pages there are.
                roomy.with_memory(least + least / 2 + (64 << 10) + 600 * self.pages())
            }
        };
        let builder = builder(options)?;
        let footer = builder.footer().clone();
        let projection = self.projection(footer.metadata().file_metadata().schema_descr());
        let mut reader = builder.build()?;
        let groups = self.row_groups(footer.metadata());
        let selection = self.selection(footer.metadata(), &groups);
        let mut verifier = Verifier::new(source.clone(), &footer, &projection, Some(groups), selection.as_ref())?;
        let mut batches = Vec::new();
        let schema = reader.schema().clone();
        for batch in &mut reader {
            let batch = batch?;
            if let Some(difference) = verifier.check(&batch)? {
                return Err(Failure::Difference(format!("{difference}")));
            }
            batches.push(batch.to_host()?);
        }
        if let Some(difference) = verifier.finish()? {
            return Err(Failure::Difference(format!("{difference}")));
        }
        let whole = concat_batches(&schema, &batches).unwrap();
        Ok((reader.report(), whole))
    }
}

/// Why a scan is not what arrow-rs reads.
enum Failure {
    Error(Error),
    Difference(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => write!(f, "refused: {error}"),
            Self::Difference(difference) => write!(f, "differs: {difference}"),
        }
    }
}

fn assert_same(name: &str, ours: &RecordBatch, theirs: &RecordBatch) {
    assert_eq!(ours.schema(), theirs.schema(), "{name}");
    assert_eq!(ours.num_rows(), theirs.num_rows(), "{name}: rows");
    for (at, (one, other)) in ours.columns().iter().zip(theirs.columns()).enumerate() {
        assert!(one.to_data() == other.to_data(), "{name}: column {} differs", ours.schema().field(at).name());
        one.to_data().validate_full().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The repository: where it was built, or above the test when `.ci/gpu-tests` carried it to another machine.
fn root() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let is_root = |it: &&Path| it.join("testdata/make.rs").exists();
    [Path::new(env!("CARGO_MANIFEST_DIR"))].into_iter().chain(test.ancestors()).find(is_root).unwrap().to_path_buf()
}

/// The number of generated files: `usual`, or what `PARQUET_GPU_CASES` says.
fn case_count(usual: usize) -> usize {
    std::env::var("PARQUET_GPU_CASES").map_or(usual, |it| it.parse().unwrap())
}
