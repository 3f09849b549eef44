//! Writes a file anew, its pages cut at random places: rows whose lists span pages, encodings and versions that change
//! from page to page, pages without values, BIT_PACKED levels, version 2 pages that are not compressed.

use std::collections::BTreeSet;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{AsBytes, DataType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use crate::generate::Random;
use crate::pages::{self, V2, encoding};

/// A column chunk as levels and values.
#[derive(Debug, Default)]
struct Values {
    definition: Vec<i16>,
    repetition: Vec<i16>,
    /// Each value's bytes as PLAIN has them, without a length; of booleans one byte.
    values: Vec<Vec<u8>>,
}

/// How pages are made.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// The most values of a page.
    pub page_values: usize,
    pub snappy: bool,
    /// Only pages of version 1, which may end inside a row.
    pub v1: bool,
    /// Values are PLAIN or in a dictionary.
    pub plain: bool,
    /// Levels of version 1 pages as BIT_PACKED, now and then.
    pub bit_packed: bool,
}

/// The file, with other pages.
pub fn repage(file: &Bytes, style: Style, random: &mut Random) -> Bytes {
    let reader = SerializedFileReader::new(file.clone()).unwrap();
    let metadata = reader.metadata();
    let mut out = b"PAR1".to_vec();
    let mut groups = Vec::new();
    for group in 0..metadata.num_row_groups() {
        let old = metadata.row_group(group);
        let columns = (0..old.num_columns()).map(|column| {
            let reader = reader.get_row_group(group).unwrap().get_column_reader(column).unwrap();
            let values = read(reader, old.num_rows() as usize);
            let descriptor = old.column(column).column_descr();
            Chunk { style, random, descriptor, values: &values, out: &mut out, used: BTreeSet::from([encoding::RLE]) }
                .write(old.column(column))
        });
        let columns: Vec<ColumnChunkMetaData> = columns.collect();
        let builder = RowGroupMetaData::builder(old.schema_descr_ptr()).set_num_rows(old.num_rows());
        let bytes = columns.iter().map(ColumnChunkMetaData::uncompressed_size).sum();
        groups.push(builder.set_total_byte_size(bytes).set_column_metadata(columns).build().unwrap());
    }
    let metadata = ParquetMetaData::new(metadata.file_metadata().clone(), groups);
    ParquetMetaDataWriter::new(&mut out, &metadata).finish().unwrap();
    out.into()
}

fn read(reader: ColumnReader, rows: usize) -> Values {
    fn all<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize) -> Values {
        let mut it = Values::default();
        let mut values = Vec::new();
        let mut read = 0;
        while read < rows {
            let (definition, repetition) = (&mut it.definition, &mut it.repetition);
            let (records, _, _) = reader.read_records(rows, Some(definition), Some(repetition), &mut values).unwrap();
            assert!(records > 0, "a chunk has all rows");
            read += records;
        }
        it.values = values.iter().map(|it| it.as_bytes().to_vec()).collect();
        it
    }
    match reader {
        ColumnReader::BoolColumnReader(it) => all(it, rows),
        ColumnReader::Int32ColumnReader(it) => all(it, rows),
        ColumnReader::Int64ColumnReader(it) => all(it, rows),
        ColumnReader::Int96ColumnReader(it) => all(it, rows),
        ColumnReader::FloatColumnReader(it) => all(it, rows),
        ColumnReader::DoubleColumnReader(it) => all(it, rows),
        ColumnReader::ByteArrayColumnReader(it) => all(it, rows),
        ColumnReader::FixedLenByteArrayColumnReader(it) => all(it, rows),
    }
}

struct Chunk<'a> {
    style: Style,
    random: &'a mut Random,
    descriptor: &'a ColumnDescriptor,
    values: &'a Values,
    out: &'a mut Vec<u8>,
    /// Encodings of values and levels.
    used: BTreeSet<usize>,
}

#[allow(deprecated)]
fn named(number: usize) -> Encoding {
    match number {
        encoding::PLAIN => Encoding::PLAIN,
        encoding::RLE => Encoding::RLE,
        encoding::BIT_PACKED => Encoding::BIT_PACKED,
        encoding::DELTA_BINARY_PACKED => Encoding::DELTA_BINARY_PACKED,
        encoding::DELTA_LENGTH_BYTE_ARRAY => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        encoding::DELTA_BYTE_ARRAY => Encoding::DELTA_BYTE_ARRAY,
        encoding::RLE_DICTIONARY => Encoding::RLE_DICTIONARY,
        encoding::BYTE_STREAM_SPLIT => Encoding::BYTE_STREAM_SPLIT,
        other => panic!("{other}"),
    }
}

impl Chunk<'_> {
    fn write(&mut self, old: &ColumnChunkMetaData) -> ColumnChunkMetaData {
        let start = self.out.len();
        let mut uncompressed = 0;
        // Some chunks have a dictionary, with or without entries that nobody uses; booleans have none.
        let with_dictionary = self.physical() != Type::BOOLEAN && self.random.below(3) > 0;
        let dictionary: Option<Vec<Vec<u8>>> = with_dictionary.then(|| {
            let mut entries: Vec<_> = self.values.values.iter().take(40).cloned().collect();
            entries.sort();
            entries.dedup();
            entries
        });
        if let Some(entries) = &dictionary {
            let plain = self.plain(entries);
            let body = self.compress(&plain);
            let page = pages::dictionary(entries.len(), plain.len(), &body);
            uncompressed += page.len() - body.len() + plain.len();
            self.out.extend_from_slice(&page);
        }
        let data = self.out.len();
        let optional = self.descriptor.max_def_level() > 0;
        let places = if optional { self.values.definition.len() } else { self.values.values.len() };
        let (mut place, mut value) = (0, 0);
        while place < places {
            if self.random.below(8) == 0 {
                uncompressed += self.page(place..place, value..value, dictionary.as_deref());
            }
            let version_2 = !self.style.v1 && self.random.below(2) == 0;
            let most = 1 + self.random.below(self.style.page_values as u64) as usize;
            let mut end = (place + most).min(places);
            let inside =
                |end: usize| end < places && self.descriptor.max_rep_level() > 0 && self.values.repetition[end] > 0;
            // Version 2 pages start and end with rows: also the page after this one, which may be of version 2.
            while !self.style.v1 && inside(end) {
                end += 1;
            }
            let defined = |it: &&i16| **it == self.descriptor.max_def_level();
            let count = match optional {
                true => self.values.definition[place..end].iter().filter(defined).count(),
                false => end - place,
            };
            let values = value..value + count;
            uncompressed += match version_2 {
                true => self.page_2(place..end, values, dictionary.as_deref()),
                false => self.page(place..end, values, dictionary.as_deref()),
            };
            (place, value) = (end, value + count);
        }
        if places == 0 {
            uncompressed += self.page(0..0, 0..0, dictionary.as_deref());
        }
        let codec = if self.style.snappy { Compression::SNAPPY } else { Compression::UNCOMPRESSED };
        ColumnChunkMetaData::builder(old.column_descr_ptr())
            .set_encodings(self.used.iter().map(|it| named(*it)).collect())
            .set_compression(codec)
            .set_num_values(places as i64)
            .set_total_compressed_size((self.out.len() - start) as i64)
            .set_total_uncompressed_size(uncompressed as i64)
            .set_data_page_offset(data as i64)
            .set_dictionary_page_offset(dictionary.is_some().then_some(start as i64))
            .build()
            .unwrap()
    }

    fn physical(&self) -> Type {
        self.descriptor.physical_type()
    }

    fn plain(&self, values: &[Vec<u8>]) -> Vec<u8> {
        match self.physical() {
            Type::BOOLEAN => pages::pack(&values.iter().map(|it| u64::from(it[0])).collect::<Vec<_>>(), 1),
            Type::BYTE_ARRAY => {
                values.iter().flat_map(|it| [&(it.len() as u32).to_le_bytes()[..], it].concat()).collect()
            }
            _ => values.concat(),
        }
    }

    fn compress(&self, bytes: &[u8]) -> Vec<u8> {
        match self.style.snappy {
            true => snap::raw::Encoder::new().compress_vec(bytes).unwrap(),
            false => bytes.to_vec(),
        }
    }

    /// Values in one of the encodings that they may have, by chance.
    fn encode(&mut self, range: std::ops::Range<usize>, dictionary: Option<&[Vec<u8>]>) -> (usize, Vec<u8>) {
        let values = &self.values.values[range];
        let indices = || values.iter().map(|it| dictionary?.binary_search(it).ok().map(|at| at as u64)).collect();
        if dictionary.is_some()
            && self.random.below(3) > 0
            && let Some::<Vec<u64>>(indices) = indices()
        {
            let most = dictionary.map_or(0, |it| it.len().saturating_sub(1));
            // Wider than need be, now and then.
            let width = (pages::width(most as u64) + self.random.below(3) as u32).min(32);
            let mut body = vec![width as u8];
            body.extend_from_slice(&pages::runs(&indices, width, || self.random.below(2) == 0));
            return (encoding::RLE_DICTIONARY, body);
        }
        let choice = if self.style.plain { 2 } else { self.random.below(3) };
        let integer = |it: &Vec<u8>| match it.len() {
            4 => i64::from(i32::from_le_bytes(it[..].try_into().unwrap())),
            _ => i64::from_le_bytes(it[..].try_into().unwrap()),
        };
        match (self.physical(), choice) {
            (Type::INT32 | Type::INT64, 0) => {
                let numbers: Vec<i64> = values.iter().map(integer).collect();
                let bits = if self.physical() == Type::INT32 { 32 } else { 64 };
                let shapes = [(128, 4), (128, 1), (256, 2), (1024, 32), (384, 3)];
                let (block, minis) = shapes[self.random.below(shapes.len() as u64) as usize];
                (encoding::DELTA_BINARY_PACKED, pages::delta(&numbers, bits, block, minis))
            }
            (Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE | Type::FIXED_LEN_BYTE_ARRAY, 1) => {
                (encoding::BYTE_STREAM_SPLIT, pages::split(values))
            }
            (Type::BYTE_ARRAY, 0) => (encoding::DELTA_LENGTH_BYTE_ARRAY, pages::delta_length(values)),
            (Type::BYTE_ARRAY, 1) | (Type::FIXED_LEN_BYTE_ARRAY, 0) => {
                (encoding::DELTA_BYTE_ARRAY, pages::delta_bytes(values))
            }
            (Type::BOOLEAN, 0) => {
                let bits: Vec<u64> = values.iter().map(|it| u64::from(it[0])).collect();
                let runs = pages::runs(&bits, 1, || self.random.below(2) == 0);
                (encoding::RLE, [&(runs.len() as u32).to_le_bytes()[..], &runs].concat())
            }
            _ => (encoding::PLAIN, self.plain(values)),
        }
    }

    /// Levels of a page and the largest that they may be.
    fn levels(&self, range: std::ops::Range<usize>) -> [(Vec<u64>, i16); 2] {
        let take = |levels: &[i16], most: i16| match most {
            0 => (Vec::new(), 0),
            _ => (levels[range.clone()].iter().map(|it| *it as u64).collect(), most),
        };
        [
            take(&self.values.repetition, self.descriptor.max_rep_level()),
            take(&self.values.definition, self.descriptor.max_def_level()),
        ]
    }

    /// Appends a page of version 1; its bytes before compression.
    fn page(
        &mut self,
        places: std::ops::Range<usize>,
        values: std::ops::Range<usize>,
        dictionary: Option<&[Vec<u8>]>,
    ) -> usize {
        let count = places.len();
        let packed = self.style.bit_packed && self.random.below(2) == 0;
        let mut body = Vec::new();
        for (levels, most) in self.levels(places).iter().filter(|it| it.1 > 0) {
            let width = pages::width(*most as u64);
            if packed {
                body.extend_from_slice(&pages::pack(levels, width));
            } else {
                let runs = pages::runs(levels, width, || self.random.below(2) == 0);
                body.extend_from_slice(&(runs.len() as u32).to_le_bytes());
                body.extend_from_slice(&runs);
            }
        }
        let (encoding, encoded) = self.encode(values, dictionary);
        self.used.insert(encoding);
        body.extend_from_slice(&encoded);
        let stored = self.compress(&body);
        let levels = if packed { encoding::BIT_PACKED } else { encoding::RLE };
        self.used.insert(levels);
        let page = pages::v1(count, encoding, levels, body.len(), &stored);
        self.out.extend_from_slice(&page);
        page.len() - stored.len() + body.len()
    }

    /// Appends a page of version 2; its bytes before compression.
    fn page_2(
        &mut self,
        places: std::ops::Range<usize>,
        values: std::ops::Range<usize>,
        dictionary: Option<&[Vec<u8>]>,
    ) -> usize {
        let (count, valid) = (places.len(), values.len());
        let levels = self.levels(places);
        let rows = match levels[0].1 {
            0 => count,
            _ => levels[0].0.iter().filter(|it| **it == 0).count(),
        };
        let [repetition, definition] = levels.map(|(levels, most)| match most {
            0 => Vec::new(),
            _ => pages::runs(&levels, pages::width(most as u64), || self.random.below(2) == 0),
        });
        let (encoding, encoded) = self.encode(values, dictionary);
        self.used.insert(encoding);
        let compressed = self.style.snappy && self.random.below(3) > 0;
        let stored = if compressed { self.compress(&encoded) } else { encoded.clone() };
        let levels = repetition.len() + definition.len();
        let header = V2 {
            values: count,
            nulls: count - valid,
            rows,
            encoding,
            definition: definition.len(),
            repetition: repetition.len(),
            compressed,
            plain: levels + encoded.len(),
        };
        let page = pages::v2(&header, &[repetition, definition, stored.clone()].concat());
        self.out.extend_from_slice(&page);
        page.len() - stored.len() + encoded.len()
    }
}
