//! Compares a scan with arrow-rs, value by value.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::util::display::array_value_to_string;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowSelection};
use rayon::prelude::*;

use crate::batch::DeviceBatch;
use crate::cpu;
use crate::error::{Error, Place, Result};
use crate::footer::Footer;
use crate::guard;
use crate::io::source::{Source, SourceReader};

/// Reads the same rows with arrow-rs, by arrow-rs's own requests, and compares schema, validity and values. Values in
/// null slots do not count.
pub struct Verifier {
    reference: ParquetRecordBatchReader,
    /// What is left of the last batch of the reference.
    rest: Option<RecordBatch>,
    rows: u64,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Where a scan and arrow-rs differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Row of the scan, from 0.
    pub row: u64,
    /// Name of the top-level field; empty when schemas or numbers of rows differ.
    pub column: String,
    /// What the scan has.
    pub scan: String,
    /// What arrow-rs has.
    pub reference: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, column, scan, reference } = self;
        write!(f, "row {row}, column {column}: read {scan}, arrow-rs reads {reference}")
    }
}

impl Verifier {
    /// A verifier for a scan of `projection`, `row_groups` and, of those, `rows` of `source`.
    ///
    /// # Errors
    /// What arrow-rs refuses.
    pub fn new(
        source: Arc<Source>,
        footer: &Footer,
        projection: &ProjectionMask,
        row_groups: Option<Vec<usize>>,
        rows: Option<&RowSelection>,
    ) -> Result<Self> {
        let row_groups = row_groups.unwrap_or_else(|| (0..footer.metadata().num_row_groups()).collect());
        let reference = guard::catch(|| cpu::reader(footer, projection, row_groups, rows, SourceReader::new(source)))
            .map_err(|error| Error::from_parquet(Place::default(), error))?;
        Ok(Self { reference, rest: None, rows: 0 })
    }

    /// Compares the next batch of the scan.
    ///
    /// # Errors
    /// What arrow-rs refuses of these rows, and what copying the batch to the host fails with.
    pub fn check(&mut self, batch: &DeviceBatch) -> Result<Option<Difference>> {
        let host = batch.to_host()?;
        let mut at = 0;
        while at < host.num_rows() {
            let Some(reference) = self.take(host.num_rows() - at)? else {
                return Ok(Some(self.differ("", format!("{} rows more", host.num_rows() - at), "no more rows".into())));
            };
            let rows = reference.num_rows();
            if let Some(difference) = self.compare(&host.slice(at, rows), &reference) {
                return Ok(Some(difference));
            }
            at += rows;
            self.rows += rows as u64;
        }
        Ok(None)
    }

    /// Checks that arrow-rs has no more rows than the scan.
    ///
    /// # Errors
    /// What arrow-rs refuses of the rows that are left.
    pub fn finish(mut self) -> Result<Option<Difference>> {
        let more = self.take(usize::MAX)?.filter(|batch| batch.num_rows() > 0);
        Ok(more.map(|batch| self.differ("", "no more rows".into(), format!("{} rows more", batch.num_rows()))))
    }

    /// At most `rows` rows of the reference.
    fn take(&mut self, rows: usize) -> Result<Option<RecordBatch>> {
        let next = match self.rest.take() {
            Some(rest) => Some(rest),
            None => guard::catch(|| self.reference.next().transpose().map_err(Into::into))
                .map_err(|error| Error::from_parquet(Place::default(), error))?,
        };
        Ok(next.map(|batch| {
            let taken = batch.num_rows().min(rows);
            if taken < batch.num_rows() {
                self.rest = Some(batch.slice(taken, batch.num_rows() - taken));
            }
            batch.slice(0, taken)
        }))
    }

    fn differ(&self, column: &str, scan: String, reference: String) -> Difference {
        Difference { row: self.rows, column: column.into(), scan, reference }
    }

    fn compare(&self, scan: &RecordBatch, reference: &RecordBatch) -> Option<Difference> {
        if scan.schema() != reference.schema() {
            return Some(self.differ("", scan.schema().to_string(), reference.schema().to_string()));
        }
        let columns: Vec<usize> = (0..scan.num_columns()).collect();
        let first_row = self.rows;
        columns.par_iter().find_map_first(|&at| {
            let (ours, theirs) = (scan.column(at), reference.column(at));
            if ours.to_data() == theirs.to_data() {
                return None;
            }
            let row = first_difference(ours, theirs);
            let show = |array: &dyn Array| array_value_to_string(array, row).unwrap_or_else(|error| error.to_string());
            let field = scan.schema_ref().field(at).name().clone();
            Some(Difference { row: first_row + row as u64, column: field, scan: show(ours), reference: show(theirs) })
        })
    }
}

/// The first row where two arrays of the same length and type differ, by halving.
fn first_difference(ours: &dyn Array, theirs: &dyn Array) -> usize {
    let (mut start, mut len) = (0, ours.len());
    while len > 1 {
        let half = len / 2;
        if ours.slice(start, half).to_data() != theirs.slice(start, half).to_data() {
            len = half;
        } else {
            (start, len) = (start + half, len - half);
        }
    }
    start
}
