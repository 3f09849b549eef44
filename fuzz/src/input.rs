//! From the bytes of a fuzzer to a file with one column chunk: a prefix of header fields, then page bodies.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;

use crate::pages::{self, V2, encoding};

/// What a target feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Headers,
    Levels,
    Dictionary,
    Plain,
    Delta,
    Snappy,
    Lz4,
}

/// How the body of a page is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    None,
    Snappy,
    Lz4,
}

impl Target {
    /// Every one, with the name of its binary.
    pub const ALL: &[(Self, &str)] = &[
        (Self::Headers, "headers"),
        (Self::Levels, "levels"),
        (Self::Dictionary, "dictionary"),
        (Self::Plain, "plain"),
        (Self::Delta, "delta"),
        (Self::Snappy, "snappy"),
        (Self::Lz4, "lz4"),
    ];

    /// Encodings of data pages.
    pub fn encodings(self) -> &'static [usize] {
        match self {
            Self::Dictionary => &[encoding::RLE_DICTIONARY],
            Self::Plain => &[encoding::PLAIN, encoding::BYTE_STREAM_SPLIT, encoding::RLE],
            Self::Delta => {
                &[encoding::DELTA_BINARY_PACKED, encoding::DELTA_LENGTH_BYTE_ARRAY, encoding::DELTA_BYTE_ARRAY]
            }
            Self::Headers | Self::Levels | Self::Snappy | Self::Lz4 => &[encoding::PLAIN],
        }
    }

    fn codec(self) -> Codec {
        match self {
            Self::Snappy => Codec::Snappy,
            Self::Lz4 => Codec::Lz4,
            _ => Codec::None,
        }
    }
}

/// Types of a column, as the schema language has them; `{}` is the repetition, and `c` the name of the leaf.
pub fn types() -> &'static [&'static str] {
    &[
        "{} int32 c;",
        "{} int64 c;",
        "{} binary c (UTF8);",
        "{} binary c;",
        "{} boolean c;",
        "{} float c;",
        "{} double c;",
        "{} fixed_len_byte_array(5) c;",
        "{} int96 c;",
        "{} fixed_len_byte_array(7) c (DECIMAL(15,2));",
        "{} int32 c (INTEGER(8,true));",
        "{} binary c (DECIMAL(20,2));",
    ]
}

/// Around a type: flat and nested.
const NESTINGS: &[&str] = &[
    "message m { required# }",
    "message m { optional# }",
    "message m { optional group a (LIST) { repeated group list { optional# } } }",
    "message m { required group a { optional group b { optional# } } }",
    "message m { optional group a (LIST) { repeated group list { required group b (LIST) { repeated group list { required# } } } } }",
    "message m { repeated# }",
];

/// Bytes before the bodies.
pub const PREFIX: usize = 24;

/// The largest number of values that an input may claim, so that a run costs milliseconds.
const MOST_VALUES: u16 = 4096;

/// One column chunk: a dictionary page perhaps, and a data page.
#[derive(Debug, Clone, Default)]
pub struct PageInput {
    pub data_type: u8,
    pub nesting: u8,
    pub encoding: u8,
    pub version_2: bool,
    pub compressed: bool,
    pub bit_packed: bool,
    pub seed: u8,
    pub values: u16,
    pub rows: u16,
    pub nulls: u16,
    pub definition: u16,
    pub repetition: u16,
    pub dictionary_bytes: u16,
    pub dictionary_entries: u16,
    /// Of the data page, before compression.
    pub plain: u32,
    pub bodies: Vec<u8>,
}

impl PageInput {
    /// Reads the prefix.
    pub fn parse(input: &[u8]) -> Option<Self> {
        let (prefix, bodies) = input.split_at_checked(PREFIX)?;
        let short = |at: usize| u16::from_le_bytes([prefix[at], prefix[at + 1]]);
        Some(Self {
            data_type: prefix[0],
            nesting: prefix[1],
            encoding: prefix[2],
            version_2: prefix[3] & 1 != 0,
            compressed: prefix[3] & 2 != 0,
            bit_packed: prefix[3] & 4 != 0,
            seed: prefix[3] >> 3 & 3,
            values: short(4) % (MOST_VALUES + 1),
            rows: short(6) % (MOST_VALUES + 1),
            nulls: short(8),
            definition: short(10),
            repetition: short(12),
            dictionary_bytes: short(14),
            dictionary_entries: short(16),
            // Up to 256 KiB: the emulated device writes every byte that it hands out.
            plain: u32::from(short(18)) | u32::from(prefix[20] & 3) << 16,
            bodies: bodies.to_vec(),
        })
    }

    /// The bytes that [`Self::parse`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = u8::from(self.version_2) | u8::from(self.compressed) << 1 | u8::from(self.bit_packed) << 2;
        let mut bytes = vec![self.data_type, self.nesting, self.encoding, flags | self.seed << 3];
        let shorts = [
            self.values,
            self.rows,
            self.nulls,
            self.definition,
            self.repetition,
            self.dictionary_bytes,
            self.dictionary_entries,
            self.plain as u16,
        ];
        bytes.extend(shorts.iter().flat_map(|it| it.to_le_bytes()));
        bytes.push((self.plain >> 16) as u8);
        bytes.resize(PREFIX, 0);
        bytes.extend_from_slice(&self.bodies);
        bytes
    }

    fn message(&self) -> String {
        let data_type = types()[usize::from(self.data_type) % types().len()];
        NESTINGS[usize::from(self.nesting) % NESTINGS.len()].replace('#', data_type.trim_start_matches("{}"))
    }

    /// The file that has this chunk.
    pub fn file(&self, target: Target) -> Bytes {
        let mut encodings = vec![Encoding::PLAIN, Encoding::RLE];
        let (dictionary, chunk) = if target == Target::Headers {
            (None, self.bodies.clone())
        } else {
            let number = target.encodings()[usize::from(self.encoding) % target.encodings().len()];
            encodings.extend(named(number));
            self.chunk(target, number)
        };
        let codec = match target.codec() {
            Codec::None => Compression::UNCOMPRESSED,
            Codec::Snappy => Compression::SNAPPY,
            Codec::Lz4 => Compression::LZ4_RAW,
        };
        file_of(&self.message(), encodings, codec, dictionary, &chunk, self.values.into(), self.rows.into())
    }

    /// Where the data page starts if there is a dictionary page before it, and the chunk.
    fn chunk(&self, target: Target, number: usize) -> (Option<usize>, Vec<u8>) {
        let mut chunk = Vec::new();
        let mut body = &self.bodies[..];
        let mut dictionary = None;
        if target == Target::Dictionary {
            let (entries, rest) = body.split_at(body.len().min(self.dictionary_bytes.into()));
            chunk = pages::dictionary(self.dictionary_entries.into(), entries.len(), entries);
            dictionary = Some(chunk.len());
            body = rest;
        }
        let compressed = target.codec() != Codec::None;
        let plain = if compressed { self.plain as usize } else { body.len() };
        let page = match self.version_2 {
            true => {
                let header = V2 {
                    values: self.values.into(),
                    nulls: self.nulls.into(),
                    rows: self.rows.into(),
                    encoding: number,
                    definition: self.definition.into(),
                    repetition: self.repetition.into(),
                    compressed: self.compressed,
                    plain,
                };
                pages::v2(&header, body)
            }
            false => {
                let levels = if self.bit_packed { encoding::BIT_PACKED } else { encoding::RLE };
                pages::v1(self.values.into(), number, levels, plain, body)
            }
        };
        chunk.extend_from_slice(&page);
        (dictionary, chunk)
    }
}

fn named(number: usize) -> Option<Encoding> {
    Some(match number {
        encoding::RLE_DICTIONARY => Encoding::RLE_DICTIONARY,
        encoding::BYTE_STREAM_SPLIT => Encoding::BYTE_STREAM_SPLIT,
        encoding::DELTA_BINARY_PACKED => Encoding::DELTA_BINARY_PACKED,
        encoding::DELTA_LENGTH_BYTE_ARRAY => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        encoding::DELTA_BYTE_ARRAY => Encoding::DELTA_BYTE_ARRAY,
        _ => return None,
    })
}

/// A file of one chunk.
pub fn file_of(
    message: &str,
    encodings: Vec<Encoding>,
    codec: Compression,
    dictionary: Option<usize>,
    chunk: &[u8],
    values: i64,
    rows: i64,
) -> Bytes {
    const MAGIC: &[u8] = b"PAR1";
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(parse_message_type(message).expect("a schema of this file"))));
    let start = MAGIC.len() as i64;
    let column = ColumnChunkMetaData::builder(schema.column(0))
        .set_encodings(encodings)
        .set_compression(codec)
        .set_num_values(values)
        .set_total_compressed_size(chunk.len() as i64)
        .set_total_uncompressed_size(chunk.len() as i64)
        .set_data_page_offset(start + dictionary.unwrap_or(0) as i64)
        .set_dictionary_page_offset(dictionary.map(|_| start))
        .build()
        .expect("a chunk");
    let group = RowGroupMetaData::builder(schema.clone())
        .set_num_rows(rows)
        .set_total_byte_size(chunk.len() as i64)
        .set_column_metadata(vec![column])
        .build()
        .expect("a row group");
    let footer = ParquetMetaData::new(FileMetaData::new(1, rows, None, None, schema, None), vec![group]);
    let mut bytes = [MAGIC, chunk].concat();
    ParquetMetaDataWriter::new(&mut bytes, &footer).finish().expect("memory does not fail");
    bytes.into()
}
