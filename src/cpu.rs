//! Decoding by arrow-rs: the CPU device, the columns that no kernel decodes yet, and the reference of `--verify`.

mod counts;
mod crc;
mod hidden;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayData, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection};
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use crate::error::{Error, Place, Result};
use crate::footer::Footer;
use crate::guard;

/// Rows that arrow-rs decodes at a time. It allocates for that many up front, whatever the file holds, so a footer
/// that states 2^40 rows must not choose the number; and a million rows of short strings stay within 32-bit offsets.
const BATCH_ROWS: usize = 1 << 20;

/// Decodes the projected columns of one row group, or the selected rows of it.
///
/// # Errors
/// [`Error::Corrupt`] or [`Error::Unsupported`] naming row group, column, page and offset as far as arrow-rs's reads
/// tell; a panic inside arrow-rs included.
pub fn decode<R: ChunkReader + Clone + 'static>(
    footer: &Footer,
    projection: &ProjectionMask,
    row_group: usize,
    selected: Option<&RowSelection>,
    bytes: &R,
) -> Result<Vec<RecordBatch>> {
    let group = footer.metadata().row_group(row_group);
    for leaf in footer.leaves.iter().filter(|leaf| projection.leaf_included(leaf.index)) {
        let rows = usize::try_from(group.num_rows()).unwrap_or(0); // the page reader goes by pages
        guard::catch(|| counts::check(group.column(leaf.index), rows, selected.is_some(), bytes.clone()))
            .map_err(|error| Error::from_parquet(Place::chunk(row_group, &leaf.path), error))?;
    }
    decode_from(footer, projection, row_group, selected, bytes.clone()).map_err(|error| {
        // arrow-rs does not say which column failed, so find the first that fails alone.
        let failing = units(footer, projection).into_iter().find_map(|(column, leaves)| {
            let tracked = Tracked::new(bytes.clone());
            let mask = ProjectionMask::leaves(footer.metadata().file_metadata().schema_descr(), leaves);
            let error = decode_from(footer, &mask, row_group, selected, tracked.clone()).err()?;
            let (reads, offset) =
                (tracked.seen.reads.load(Ordering::Relaxed), tracked.seen.offset.load(Ordering::Relaxed));
            let mut place = Place::chunk(row_group, column);
            if let Some(page) = reads.checked_sub(1) {
                place = place.with_page(page as usize).with_offset(offset);
            }
            Some(Error::from_parquet(place, error))
        });
        failing.unwrap_or_else(|| Error::from_parquet(Place { row_group: Some(row_group), ..Place::default() }, error))
    })
}

/// Compares the checksums that page headers state with the pages as stored, for the projected columns of one row group.
///
/// # Errors
/// [`Error::Corrupt`] naming the first page with another checksum.
pub fn check_crc<R: ChunkReader + Clone + 'static>(
    footer: &Footer,
    projection: &ProjectionMask,
    row_group: usize,
    bytes: &R,
) -> Result<()> {
    let group = footer.metadata().row_group(row_group);
    let mut leaves = footer.leaves.iter().filter(|leaf| projection.leaf_included(leaf.index));
    leaves.try_for_each(|leaf| crc::check(group.column(leaf.index), row_group, leaf, bytes))
}

/// What can be read alone: leaves, but whole fields where there are maps, of which a key cannot be read without its value.
fn units(footer: &Footer, projection: &ProjectionMask) -> Vec<(String, Vec<usize>)> {
    fn has_map(data_type: &DataType) -> bool {
        match data_type {
            DataType::Map(..) => true,
            DataType::Struct(fields) => fields.iter().any(|field| has_map(field.data_type())),
            DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
                has_map(field.data_type())
            }
            _ => false,
        }
    }
    let mut units: Vec<(Option<usize>, String, Vec<usize>)> = Vec::new();
    for leaf in footer.leaves.iter().filter(|leaf| projection.leaf_included(leaf.index)) {
        let field = footer.schema().fields().get(leaf.root);
        let whole = field.filter(|field| has_map(field.data_type())).map(|_| leaf.root);
        match units.last_mut().filter(|(last, ..)| whole.is_some() && *last == whole) {
            Some((_, _, leaves)) => leaves.push(leaf.index),
            None => units.push((whole, leaf.path.clone(), vec![leaf.index])),
        }
    }
    units.into_iter().map(|(_, column, leaves)| (column, leaves)).collect()
}

fn decode_from<R: ChunkReader + 'static>(
    footer: &Footer,
    projection: &ProjectionMask,
    row_group: usize,
    selected: Option<&RowSelection>,
    bytes: R,
) -> ParquetResult<Vec<RecordBatch>> {
    guard::catch(move || {
        reader(footer, projection, vec![row_group], selected, bytes)?.map(|it| hidden::unmask(it?)).collect()
    })
}

/// arrow-rs's own reader over `bytes`.
pub(crate) fn reader<R: ChunkReader + 'static>(
    footer: &Footer,
    projection: &ProjectionMask,
    row_groups: Vec<usize>,
    selected: Option<&RowSelection>,
    bytes: R,
) -> ParquetResult<ParquetRecordBatchReader> {
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, footer.arrow.clone())
        .with_projection(projection.clone())
        .with_row_groups(row_groups)
        .with_batch_size(BATCH_ROWS);
    match selected {
        Some(selected) => builder.with_row_selection(selected.clone()).build(),
        None => builder.build(),
    }
}

/// The Arrow schema of a projection, as arrow-rs gives it to its batches.
///
/// # Errors
/// [`Error::Corrupt`] or [`Error::Unsupported`] for a schema that arrow-rs refuses.
pub fn projected_schema(footer: &Footer, projection: &ProjectionMask) -> Result<SchemaRef> {
    guard::catch(|| Ok(reader(footer, projection, Vec::new(), None, Bytes::new())?.schema_of()))
        .map_err(|error| Error::from_parquet(Place::default(), error))
}

trait SchemaOf {
    fn schema_of(&self) -> SchemaRef;
}

impl SchemaOf for ParquetRecordBatchReader {
    fn schema_of(&self) -> SchemaRef {
        arrow::array::RecordBatchReader::schema(self)
    }
}

/// Joins batches of one schema into one array a column.
///
/// # Errors
/// [`Error::Unsupported`] where the joined strings need wider offsets than their type has.
pub fn join(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Vec<ArrayData>> {
    let joined = guard::catch(|| Ok(concat_batches(schema, batches)?)).map_err(|error| {
        Error::unsupported(Place::default(), format!("cannot join row groups ({error}); read fewer rows a batch"))
    })?;
    Ok(joined.columns().iter().map(|column| column.to_data()).collect())
}

/// Notes where arrow-rs reads, so that its errors can be given a place.
#[derive(Clone)]
struct Tracked<R> {
    inner: R,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Page headers read so far.
    reads: AtomicU64,
    /// Offset of the last.
    offset: AtomicU64,
}

impl<R> Tracked<R> {
    fn new(inner: R) -> Self {
        Self { inner, seen: Arc::default() }
    }

    fn note(&self, offset: u64) {
        self.seen.reads.fetch_add(1, Ordering::Relaxed);
        self.seen.offset.store(offset, Ordering::Relaxed);
    }
}

impl<R: Length> Length for Tracked<R> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
}

impl<R: ChunkReader> ChunkReader for Tracked<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> ParquetResult<R::T> {
        // Without an offset index, arrow-rs opens a reader at each page header.
        self.note(start);
        self.inner.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.inner.get_bytes(start, length)
    }
}
