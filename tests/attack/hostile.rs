//! Writes a sound file anew with lies in it: levels, pages cut anywhere, counts in headers and footer, offset indexes.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{AsBytes, DataType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use crate::generate::Random;
use crate::pages::{self, V2, encoding, varint};

/// What a file lies about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lies {
    /// Levels in a chunk that are changed, left out, or there twice.
    pub levels: u64,
    /// In so many per cent of the pages a count in the header is wrong.
    pub headers: u64,
    /// In so many per cent of the chunks a count in the footer is wrong, or they have no pages.
    pub footer: u64,
    /// In so many per cent of the chunks the offset index is wrong.
    pub index: u64,
    /// Pages, all of version 1, start inside rows, and there is no offset index. This is none by itself.
    pub inside_rows: bool,
    /// Pages of both versions start inside rows, and there is an offset index all the same.
    pub both_inside: bool,
}

impl Lies {
    /// Whether the pages are cut in unusual places, and that is all.
    pub fn are_none(self) -> bool {
        self.levels + self.headers + self.footer + self.index == 0
    }
}

/// A column chunk as levels and values.
#[derive(Debug, Default)]
struct Values {
    definition: Vec<i16>,
    repetition: Vec<i16>,
    /// Each value as PLAIN has it.
    values: Vec<Vec<u8>>,
}

/// Where a page lies, and its first row.
struct Location {
    offset: usize,
    bytes: usize,
    row: usize,
}

/// The file with lies.
pub fn rewrite(file: &Bytes, lies: Lies, random: &mut Random) -> Bytes {
    let reader = SerializedFileReader::new(file.clone()).unwrap();
    let metadata = reader.metadata();
    let mut out = b"PAR1".to_vec();
    let mut groups = Vec::new();
    for group in 0..metadata.num_row_groups() {
        let old = metadata.row_group(group);
        let columns: Vec<ColumnChunkMetaData> = (0..old.num_columns())
            .map(|column| {
                let reader = reader.get_row_group(group).unwrap().get_column_reader(column).unwrap();
                let values = read(reader, old.num_rows() as usize);
                let descriptor = old.column(column).column_descr();
                Chunk { lies, random, descriptor, values, out: &mut out }.write(old.column(column))
            })
            .collect();
        let rows = match random.below(100) < lies.footer {
            true => [0, 1, old.num_rows() - 1, old.num_rows() + 1, -1, 1 << 61, 1 << 31][random.below(7) as usize],
            false => old.num_rows(),
        };
        let builder = RowGroupMetaData::builder(old.schema_descr_ptr()).set_num_rows(rows);
        groups.push(builder.set_total_byte_size(1).set_column_metadata(columns).build().unwrap());
    }
    let metadata = ParquetMetaData::new(metadata.file_metadata().clone(), groups);
    ParquetMetaDataWriter::new(&mut out, &metadata).with_preserve_page_index_locations(true).finish().unwrap();
    out.into()
}

fn read(reader: ColumnReader, rows: usize) -> Values {
    fn all<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize, length: bool) -> Values {
        let mut it = Values::default();
        let mut values = Vec::new();
        let mut read = 0;
        while read < rows {
            let (definition, repetition) = (&mut it.definition, &mut it.repetition);
            let (records, _, _) = reader.read_records(rows, Some(definition), Some(repetition), &mut values).unwrap();
            assert!(records > 0, "a chunk has all rows");
            read += records;
        }
        let plain = |it: &T::T| match length {
            true => [&(it.as_bytes().len() as u32).to_le_bytes()[..], it.as_bytes()].concat(),
            false => it.as_bytes().to_vec(),
        };
        it.values = values.iter().map(plain).collect();
        it
    }
    match reader {
        ColumnReader::BoolColumnReader(it) => all(it, rows, false),
        ColumnReader::Int32ColumnReader(it) => all(it, rows, false),
        ColumnReader::Int64ColumnReader(it) => all(it, rows, false),
        ColumnReader::Int96ColumnReader(it) => all(it, rows, false),
        ColumnReader::FloatColumnReader(it) => all(it, rows, false),
        ColumnReader::DoubleColumnReader(it) => all(it, rows, false),
        ColumnReader::ByteArrayColumnReader(it) => all(it, rows, true),
        ColumnReader::FixedLenByteArrayColumnReader(it) => all(it, rows, false),
    }
}

struct Chunk<'a> {
    lies: Lies,
    random: &'a mut Random,
    descriptor: &'a ColumnDescriptor,
    values: Values,
    out: &'a mut Vec<u8>,
}

impl Chunk<'_> {
    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn lie(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    /// A count that is not `true_count`.
    fn other(&mut self, true_count: usize) -> usize {
        let near = [true_count + 1, true_count.saturating_sub(1), 0, 1, true_count * 2, true_count + 8];
        let far = [i32::MAX as usize, 1 << 20, 1 << 30];
        match self.one_in(6) {
            true => far[self.random.below(3) as usize],
            false => near[self.random.below(6) as usize],
        }
    }

    fn spoil_levels(&mut self) {
        let (max_def, max_rep) = (self.descriptor.max_def_level(), self.descriptor.max_rep_level());
        if max_def == 0 {
            return;
        }
        for _ in 0..self.random.below(self.lies.levels + 1) {
            let count = self.values.definition.len();
            if count == 0 {
                return;
            }
            let at = self.random.below(count as u64) as usize;
            // A level may be one that there is not, as far as its bits go.
            let level = |random: &mut Random, most: i16| random.below(most as u64 + 1 + u64::from(most > 0)) as i16;
            match self.random.below(6) {
                0 | 1 if max_rep > 0 => self.values.repetition[at] = level(self.random, max_rep).min(max_rep),
                2 => self.values.definition[at] = level(self.random, max_def),
                3 => {
                    self.values.definition.remove(at);
                    if max_rep > 0 {
                        self.values.repetition.remove(at);
                    }
                }
                4 => {
                    let definition = self.random.below(max_def as u64 + 1) as i16;
                    self.values.definition.insert(at, definition);
                    if max_rep > 0 {
                        let repetition = self.random.below(max_rep as u64 + 1) as i16;
                        self.values.repetition.insert(at, repetition);
                    }
                }
                _ => self.values.definition[at] = self.random.below(max_def as u64 + 1) as i16,
            }
        }
        // As many values as the levels now say, more often than not.
        let wanted = self.values.definition.iter().filter(|it| **it == max_def).count();
        if let Some(first) = self.values.values.first().cloned()
            && !self.one_in(8)
        {
            self.values.values.resize(wanted, first);
        }
    }

    fn write(&mut self, old: &ColumnChunkMetaData) -> ColumnChunkMetaData {
        self.spoil_levels();
        let start = self.out.len();
        let (max_def, max_rep) = (self.descriptor.max_def_level(), self.descriptor.max_rep_level());
        let places = if max_def > 0 { self.values.definition.len() } else { self.values.values.len() };
        let (mut place, mut value, mut row) = (0, 0, 0);
        let mut locations = Vec::new();
        while place < places {
            let mut end = (place + 1 + self.random.below(24) as usize).min(places);
            while !(self.lies.inside_rows || self.lies.both_inside)
                && end < places
                && max_rep > 0
                && self.values.repetition[end] > 0
            {
                end += 1;
            }
            let count = match max_def {
                0 => end - place,
                _ => self.values.definition[place..end].iter().filter(|it| **it == max_def).count(),
            };
            let values = value.min(self.values.values.len())..(value + count).min(self.values.values.len());
            let rows = match max_rep {
                0 => end - place,
                _ => self.values.repetition[place..end].iter().filter(|it| **it == 0).count(),
            };
            let offset = self.out.len();
            self.page(place..end, values, rows);
            locations.push(Location { offset, bytes: self.out.len() - offset, row });
            (place, value, row) = (end, value + count, row + rows);
        }
        let bytes = self.out.len() - start;
        let mut num_values = places as i64;
        let mut empty = false;
        if self.lie(self.lies.footer) {
            match self.random.below(5) {
                0 => empty = true,
                1 => num_values = i64::MAX,
                2 => num_values = -1,
                _ => num_values = self.other(places) as i64,
            }
        }
        let index = self.out.len();
        let with_index = !self.lies.inside_rows;
        if with_index {
            self.index(locations, row);
        }
        ColumnChunkMetaData::builder(old.column_descr_ptr())
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE])
            .set_compression(Compression::UNCOMPRESSED)
            .set_num_values(if empty { 0 } else { num_values })
            .set_total_compressed_size(if empty { 0 } else { bytes as i64 })
            .set_total_uncompressed_size(if empty { 0 } else { bytes as i64 })
            .set_data_page_offset(start as i64)
            .set_offset_index_offset(with_index.then_some(index as i64))
            .set_offset_index_length(with_index.then_some((self.out.len() - index) as i32))
            .build()
            .unwrap()
    }

    fn index(&mut self, mut pages: Vec<Location>, rows: usize) {
        if self.lie(self.lies.index) && !pages.is_empty() {
            let at = self.random.below(pages.len() as u64) as usize;
            match self.random.below(7) {
                0 => pages[at].row = self.other(pages[at].row),
                1 => pages[at].offset = self.other(pages[at].offset),
                2 => pages[at].bytes = self.other(pages[at].bytes).min(i32::MAX as usize),
                3 => drop(pages.remove(at)),
                4 => {
                    let row = self.random.below(rows as u64 + 1) as usize;
                    let page = &pages[at];
                    let page = Location { offset: page.offset, bytes: page.bytes, row };
                    pages.insert(at, page);
                }
                5 => pages.swap(0, at),
                _ => pages.iter_mut().skip(1).for_each(|it| it.row += 1),
            }
        }
        self.out.extend_from_slice(&[0x19, 0xfc]); // a list of structs, its length behind
        varint(self.out, pages.len() as u64);
        for page in &pages {
            for (head, number) in [(0x16, page.offset), (0x15, page.bytes), (0x16, page.row)] {
                self.out.push(head);
                varint(self.out, (number as u64) << 1);
            }
            self.out.push(0);
        }
        self.out.push(0);
    }

    fn page(&mut self, places: std::ops::Range<usize>, values: std::ops::Range<usize>, rows: usize) {
        let take = |levels: &[i16], most: i16| match most {
            0 => (Vec::new(), 0),
            _ => (levels[places.clone()].iter().map(|it| *it as u64).collect::<Vec<_>>(), most),
        };
        let levels = [
            take(&self.values.repetition, self.descriptor.max_rep_level()),
            take(&self.values.definition, self.descriptor.max_def_level()),
        ];
        let encoded = match self.descriptor.physical_type() {
            Type::BOOLEAN => pages::pack(
                &self.values.values[values.clone()].iter().map(|it| u64::from(it[0])).collect::<Vec<_>>(),
                1,
            ),
            _ => self.values.values[values.clone()].concat(),
        };
        let [repetition, definition] = levels.map(|(levels, most)| match most {
            0 => Vec::new(),
            _ => {
                let width = pages::width(most as u64);
                let levels: Vec<u64> = levels.iter().map(|it| it & ((1 << width) - 1)).collect();
                pages::runs(&levels, width, || self.random.below(2) == 0)
            }
        });
        let mut count = places.len();
        let mut nulls = count.saturating_sub(values.len());
        let mut stated_rows = rows;
        if self.lie(self.lies.headers) {
            match self.random.below(3) {
                0 => count = self.other(count),
                1 => nulls = self.other(nulls),
                _ => stated_rows = self.other(rows),
            }
        }
        let page = if self.lies.inside_rows || self.one_in(2) {
            let mut body = Vec::new();
            for runs in [&repetition, &definition].into_iter().filter(|it| !it.is_empty()) {
                body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
                body.extend_from_slice(runs);
            }
            body.extend_from_slice(&encoded);
            pages::v1(count, encoding::PLAIN, encoding::RLE, body.len(), &body)
        } else {
            let plain = repetition.len() + definition.len() + encoded.len();
            let header = V2 {
                values: count,
                nulls,
                rows: stated_rows,
                encoding: encoding::PLAIN,
                definition: definition.len(),
                repetition: repetition.len(),
                compressed: false,
                plain,
            };
            pages::v2(&header, &[repetition, definition, encoded].concat())
        };
        self.out.extend_from_slice(&page);
    }
}
