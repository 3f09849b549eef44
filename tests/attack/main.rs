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
#[derive(Clone)]
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

    /// The same, given up after a while: where repetition levels are missing, arrow-rs skips rows without an end.
    fn reference_in_time(&self, index: PageIndexPolicy) -> Result<RecordBatch, ParquetError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let case = self.clone();
        std::thread::spawn(move || sender.send(case.reference(index)));
        let ended = receiver.recv_timeout(std::time::Duration::from_secs(5));
        ended.unwrap_or_else(|_| Err(ParquetError::General("it does not end".into())))
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
        let builder = ParquetRecordBatchReaderBuilder::try_new(good.clone()).unwrap();
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
        let by_index = || case.reference_in_time(PageIndexPolicy::Optional);
        let meant = || Case { bytes: good.clone(), ..case.clone() }.reference(PageIndexPolicy::Skip);
        for device in devices::devices(seed).into_iter().map(Device::Gpu).chain([Device::Cpu]) {
            let (name, is_cpu) = (device.name(), matches!(device, Device::Cpu));
            let ours = case.scan(device);
            if is_cpu {
                // arrow-rs itself, a row group at a time. It has to end.
                let what = if ours.is_ok() { "read on the CPU" } else { "refused on the CPU" };
                *tally.entry(what.into()).or_default() += 1;
                continue;
            }
            if ours.is_err() && case.claims_too_much() {
                *tally.entry("refused, and arrow-rs is not asked".into()).or_default() += 1;
                continue;
            }
            let theirs = theirs.get_or_insert_with(|| case.reference_in_time(PageIndexPolicy::Skip));
            let what = match (&ours, &*theirs) {
                (Ok(ours), Ok(theirs)) if same(ours, theirs) => "equal".into(),
                (Ok(ours), _) if by_index().is_ok_and(|theirs| same(ours, &theirs)) => "equal by the index".into(),
                (Ok(ours), _) if lies.are_none() && meant().is_ok_and(|meant| same(ours, &meant)) => {
                    "equal to what was written".into()
                }
                (Ok(ours), Ok(theirs))
                    if lies.levels > 0 && may_disagree(ours) && ours.num_rows() == theirs.num_rows() =>
                {
                    format!("{DISAGREE} on whether it is there")
                }
                (Ok(ours), Ok(theirs)) => format!("WRONG: {}", differing(ours, theirs)),
                (Ok(_), Err(error)) => format!("READ what arrow-rs refuses: {error}"),
                (Err(error), Ok(_)) => format!("REFUSED what arrow-rs reads: {}", short(error)),
                (Err(_), Err(_)) => "both refuse".into(),
            };
            if !what.starts_with("equal") && what != "both refuse" && !allowed.iter().any(|it| what.starts_with(it)) {
                wrong.push(format!("{kind} {seed} on {name}: {what}"));
            }
            *tally.entry(what).or_default() += 1;
        }
    }
    println!("{kind}: {tally:#?}");
    assert!(tally.get("equal").is_some_and(|it| *it > 0), "nothing was read");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a column that cannot be null lies in a struct that can. Where its levels say that the struct is absent, and
/// those of the first column that it is there, the value is what the decoder left there: for arrow-rs any, here zeros.
fn may_disagree(batch: &RecordBatch) -> bool {
    fn below(field: &Field, nullable: bool, siblings: bool) -> bool {
        match field.data_type() {
            DataType::Struct(fields) => fields.iter().any(|it| {
                below(it, field.is_nullable() || nullable && !it.is_nullable(), siblings || fields.len() > 1)
            }),
            DataType::List(it) | DataType::LargeList(it) | DataType::FixedSizeList(it, _) | DataType::Map(it, _) => {
                below(it, false, siblings)
            }
            _ => nullable && siblings && !field.is_nullable(),
        }
    }
    batch.schema().fields().iter().any(|it| below(it, false, false))
}

/// Where two batches differ first.
fn differing(ours: &RecordBatch, theirs: &RecordBatch) -> String {
    if ours.num_rows() != theirs.num_rows() {
        return format!("{} rows in place of {}", ours.num_rows(), theirs.num_rows());
    }
    let columns = ours.columns().iter().zip(theirs.columns()).enumerate();
    let mut rows = columns.flat_map(|(column, (ours, theirs))| {
        (0..ours.len()).map(move |row| (column, row, ours.slice(row, 1), theirs.slice(row, 1)))
    });
    match rows.find(|(_, _, ours, theirs)| ours.to_data() != theirs.to_data()) {
        Some((column, row, ours, theirs)) => format!("column {column}, row {row}: {ours:?} in place of {theirs:?}"),
        None => "nothing that a row shows".into(),
    }
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

/// What no reader can get right: see [`may_disagree`].
const DISAGREE: &str = "other values, where columns of a struct disagree";

/// arrow-rs waits for levels that are not there where it skips rows, and would do so here.
#[test]
fn rows_are_skipped_where_levels_are_missing() {
    let lies = Lies { headers: 60, inside_rows: true, ..Lies::default() };
    let mut found = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let bytes = hostile::rewrite(&sound(&mut random, 60), lies, &mut random);
        let options = ReadOptions::default();
        let selection = Some(selection(&mut random, 60));
        let case = Case { bytes, leaves: None, groups: None, selection, options };
        let error = case.scan(Device::Cpu).err().map(|it| it.to_string());
        // Our words: those of arrow-rs about levels begin otherwise.
        found += usize::from(error.is_some_and(|it| it.contains("a page of") && it.contains("repetition levels")));
    }
    assert!(found > 0);
}

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
    attack("levels", Lies { levels: 2, inside_rows: true, ..Lies::default() }, false, &[REFUSED, READ, DISAGREE]);
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
    attack("all", lies, true, &[REFUSED, READ, OTHERWISE, DISAGREE]);
}
