//! Files that lie: equal to arrow-rs, or an error that names a place; never a panic, a hang or memory without bounds.
//!
//! `PARQUET_GPU_CASES=N` makes N files of each kind in place of the few of a usual run.
#![allow(clippy::unwrap_used)]

#[path = "../devices/mod.rs"]
mod devices;
#[path = "../generate/mod.rs"]
mod generate;
mod hostile;
mod huge;
#[path = "../cross/pages.rs"]
#[allow(dead_code)] // other encodings
mod pages;
#[path = "../cross/shapes.rs"]
mod shapes;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use generate::Random;
use hostile::Lies;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet_gpu::io::Source;
use parquet_gpu::{Device, Error, GpuReaderBuilder, ReadOptions, guard};
use shapes::{Shape, Values};

/// A file, and what is read of it.
struct Case {
    bytes: Bytes,
    leaves: Option<Vec<usize>>,
    groups: Option<Vec<usize>>,
    selection: Option<RowSelection>,
    options: ReadOptions,
}

impl Case {
    fn reference(&self, index: PageIndexPolicy) -> Result<RecordBatch, ParquetError> {
        guard::catch(|| {
            let options = ArrowReaderOptions::new().with_page_index_policy(index);
            let mut builder = ParquetRecordBatchReaderBuilder::try_new_with_options(self.bytes.clone(), options)?;
            if let Some(leaves) = &self.leaves {
                let mask = ProjectionMask::leaves(builder.parquet_schema(), leaves.iter().copied());
                builder = builder.with_projection(mask);
            }
            if let Some(groups) = &self.groups {
                builder = builder.with_row_groups(groups.clone());
            }
            if let Some(selection) = &self.selection {
                builder = builder.with_row_selection(selection.clone());
            }
            let reader = builder.with_batch_size(50).build()?;
            let schema = arrow::array::RecordBatchReader::schema(&reader);
            let batches = reader.collect::<Result<Vec<_>, _>>()?;
            Ok(concat_batches(&schema, &batches)?)
        })
    }

    /// Whether the footer states so many rows that arrow-rs may be busy for hours.
    fn claims_too_much(&self) -> bool {
        let file = SerializedFileReader::new(self.bytes.clone());
        file.is_ok_and(|it| it.metadata().row_groups().iter().any(|group| group.num_rows() > 1 << 30))
    }

    fn scan(&self, device: Device) -> Result<RecordBatch, Error> {
        let source = Arc::new(Source::from_bytes("hostile", self.bytes.clone()));
        let mut builder = GpuReaderBuilder::try_new(source, device)?.with_options(self.options.clone());
        if let Some(leaves) = &self.leaves {
            let metadata = builder.footer().metadata().clone();
            let schema = metadata.file_metadata().schema_descr();
            builder = builder.with_projection(ProjectionMask::leaves(schema, leaves.iter().copied()));
        }
        if let Some(groups) = &self.groups {
            builder = builder.with_row_groups(groups.clone());
        }
        if let Some(selection) = &self.selection {
            builder = builder.with_row_selection(selection.clone());
        }
        let mut reader = builder.build()?;
        let schema = reader.schema().clone();
        let mut batches = Vec::new();
        for batch in &mut reader {
            let batch = batch?.to_host()?;
            for column in batch.columns() {
                column.to_data().validate_full().unwrap();
            }
            batches.push(batch);
        }
        Ok(concat_batches(&schema, &batches).unwrap())
    }
}

fn same(ours: &RecordBatch, theirs: &RecordBatch) -> bool {
    ours.num_rows() == theirs.num_rows()
        && ours.columns().iter().zip(theirs.columns()).all(|(ours, theirs)| ours.to_data() == theirs.to_data())
}

/// A sound file of one field, or a few, of `rows` rows in two row groups.
fn sound(random: &mut Random, rows: usize) -> Bytes {
    let leaves = [DataType::Int32, DataType::Utf8, DataType::Boolean, DataType::Decimal128(30, 2), DataType::Float64];
    let fields: Vec<Field> = (0..1 + random.below(2))
        .map(|at| {
            let shape = Shape::ALL[random.below(Shape::ALL.len() as u64 - 1) as usize]; // the deepest is slow
            let leaf = &leaves[random.below(5) as usize];
            Field::new(format!("c{at}"), shape.around(random, leaf), random.below(3) > 0)
        })
        .collect();
    let values = Values { nulls: 15, empties: 20, different: 20 };
    let columns = fields.iter().map(|it| shapes::column(random, it.data_type(), it.is_nullable(), rows, values));
    let columns: Vec<_> = columns.collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(rows.div_ceil(2).max(1))).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

fn selection(random: &mut Random, rows: usize) -> RowSelection {
    let mut selectors = Vec::new();
    let mut at = 0;
    while at < rows {
        // Not behind the last row.
        let count = (1 + random.below(30) as usize).min(rows - at);
        let skip = random.below(2) == 0;
        selectors.push(if skip { RowSelector::skip(count) } else { RowSelector::select(count) });
        at += count;
    }
    selectors.into()
}

fn attack(kind: &str, lies: Lies, selects: bool, allowed: &[&str]) {
    let cases = std::env::var("PARQUET_GPU_CASES").map_or(60, |it| it.parse().unwrap());
    let first = std::env::var("PARQUET_GPU_SEED").map_or(0, |it| it.parse().unwrap());
    let mut tally: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for seed in first..first + cases {
        let mut random = Random(seed ^ lies.levels << 32 ^ lies.headers << 40 ^ lies.footer << 48 ^ lies.index << 56);
        let rows = 1 + random.below(120) as usize;
        let good = sound(&mut random, rows);
        let bytes = hostile::rewrite(&good, lies, &mut random);
        let builder = ParquetRecordBatchReaderBuilder::try_new(good).unwrap();
        let leaves = builder.parquet_schema().num_columns();
        let some: Vec<usize> = (0..leaves).filter(|_| random.below(2) == 0).collect();
        let case = Case {
            bytes,
            leaves: (random.below(3) == 0 && !some.is_empty()).then_some(some),
            groups: match random.below(4) {
                0 => Some((0..builder.metadata().num_row_groups()).rev().collect()),
                1 if selects => Some(vec![0, 0]),
                _ => None,
            },
            selection: selects.then(|| selection(&mut random, rows)),
            options: ReadOptions::default().with_memory(64 << 20).with_batch_rows(1 << random.below(8)),
        };
        let mut theirs = None;
        for gpu in devices::devices(seed) {
            let device = gpu.name().to_string();
            let ours = case.scan(Device::Gpu(gpu));
            if ours.is_err() && case.claims_too_much() {
                *tally.entry("refused, and arrow-rs is not asked".into()).or_default() += 1;
                continue;
            }
            let theirs = theirs.get_or_insert_with(|| case.reference(PageIndexPolicy::Skip));
            let what = match (&ours, &*theirs) {
                (Ok(ours), Ok(theirs)) if same(ours, theirs) => "equal".into(),
                (Ok(ours), _) if case.reference(PageIndexPolicy::Optional).is_ok_and(|theirs| same(ours, &theirs)) => {
                    "equal by the index".into()
                }
                (Ok(_), Ok(_)) => "WRONG".into(),
                (Ok(_), Err(error)) => format!("READ what arrow-rs refuses: {error}"),
                (Err(error), Ok(_)) => format!("REFUSED what arrow-rs reads: {}", short(error)),
                (Err(_), Err(_)) => "both refuse".into(),
            };
            if !what.starts_with("equal") && what != "both refuse" && !allowed.iter().any(|it| what.starts_with(it)) {
                wrong.push(format!("{kind} {seed} on {device}: {what}"));
            }
            *tally.entry(what).or_default() += 1;
        }
    }
    println!("{kind}: {tally:#?}");
    assert!(tally.get("equal").is_some_and(|it| *it > 0), "nothing was read");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn short(error: &Error) -> String {
    let message = error.to_string();
    message.chars().take(140).collect()
}

/// What is refused with a place, although arrow-rs makes something of it: rows that are not as many as the footer says.
const REFUSED: &str = "REFUSED";

/// What arrow-rs refuses for reasons of its own: columns of one field are in step by batches there, by columns here.
const READ: &str = "READ";

/// What is read otherwise. Nothing tells a page that is not read from what its offset index says of it.
const OTHERWISE: &str = "WRONG";

#[test]
fn rows_across_pages() {
    attack("inside", Lies { inside_rows: true, ..Lies::default() }, true, &[]);
}

#[test]
fn pages_of_version_2_inside_rows() {
    attack("version 2", Lies { both_inside: true, ..Lies::default() }, true, &[REFUSED]);
}

#[test]
fn levels_that_lie() {
    attack("levels", Lies { levels: 2, inside_rows: true, ..Lies::default() }, false, &[REFUSED, READ]);
}

#[test]
fn headers_that_lie() {
    attack("headers", Lies { headers: 10, ..Lies::default() }, false, &[REFUSED, READ]);
}

#[test]
fn footers_that_lie() {
    attack("footer", Lies { footer: 15, ..Lies::default() }, false, &[REFUSED, READ]);
}

#[test]
fn offset_indexes_that_lie() {
    attack("index", Lies { index: 40, ..Lies::default() }, true, &[REFUSED, OTHERWISE]);
}

#[test]
fn everything_lies() {
    let lies = Lies { levels: 1, headers: 3, footer: 3, index: 10, both_inside: true, ..Lies::default() };
    attack("all", lies, true, &[REFUSED, READ, OTHERWISE]);
}
