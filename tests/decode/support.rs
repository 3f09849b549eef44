//! Page tables for the decoder, from files through the `parquet` crate's page reader or written by hand.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, RecordBatch, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, IntervalUnit};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::column::page::Page;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet_gpu::batch::Memory;
use parquet_gpu::decode::{Request, decode_batch, unsupported};
use parquet_gpu::device::{DeviceBuffer, Gpu, Stream};
use parquet_gpu::footer::{Field, Leaf, LeafDecode};
use parquet_gpu::kernels::abi::{PageHeader, conversion, page_kind};
use parquet_gpu::page::{ChunkInput, PageTable};
use parquet_gpu::{DeviceArray, Error, Result};

/// The devices under test, by name.
pub fn devices(seeds: std::ops::Range<u64>) -> Vec<(String, Gpu)> {
    let seeds: Vec<u64> = seeds.collect();
    let devices = crate::devices::devices_with(&seeds);
    if devices.is_empty() {
        println!("skipped: no device under test in this build");
    }
    devices.into_iter().map(|gpu| (gpu.name(), gpu)).collect()
}

/// A column chunk: pages back to back, as in a file.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    pub rows: u64,
    pub bytes: Vec<u8>,
    pub headers: Vec<PageHeader>,
}

impl Chunk {
    /// Adds a page; the header's places and sizes are filled in. Real headers lie between the bodies, so something does
    /// here too.
    pub fn push(&mut self, header: PageHeader, body: &[u8]) {
        let header_offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&[0xa5; 7]);
        let sizes = body.len() as u32;
        self.headers.push(PageHeader {
            header_offset,
            body_offset: self.bytes.len() as u64,
            compressed_bytes: sizes,
            uncompressed_bytes: sizes,
            ..header
        });
        self.bytes.extend_from_slice(body);
        if header.kind != page_kind::DICTIONARY {
            self.rows += u64::from(header.num_values);
        }
    }
}

/// A leaf and its chunks, one a row group.
#[derive(Debug, Clone)]
pub struct Column {
    pub leaf: Leaf,
    pub codec: Compression,
    pub chunks: Vec<Chunk>,
}

/// Where every chunk claims to lie in its file.
pub const FILE_OFFSET: u64 = 1000;

impl Column {
    pub fn new(leaf: Leaf, chunk: Chunk) -> Self {
        Self { leaf, codec: Compression::UNCOMPRESSED, chunks: vec![chunk] }
    }

    pub fn rows(&self) -> u64 {
        self.chunks.iter().map(|it| it.rows).sum()
    }
}

/// A flat leaf.
pub fn leaf(path: &str, physical: PhysicalType, type_length: u32, data_type: &DataType, optional: bool) -> Leaf {
    Leaf {
        index: 0,
        root: 0,
        path: path.into(),
        physical,
        type_length,
        max_def: optional.into(),
        max_rep: 0,
        data_type: data_type.clone(),
        decode: decode_of(physical, type_length, data_type),
    }
}

fn decode_of(physical: PhysicalType, type_length: u32, data_type: &DataType) -> LeafDecode {
    let in_width = match physical {
        PhysicalType::BOOLEAN => 0,
        PhysicalType::INT32 | PhysicalType::FLOAT => 4,
        PhysicalType::INT64 | PhysicalType::DOUBLE => 8,
        PhysicalType::INT96 => 12,
        _ => type_length,
    };
    let fixed = |conversion, out_width| LeafDecode::Fixed { conversion, factor: 1, in_width, out_width };
    let out_width = match data_type {
        DataType::Decimal32(..) => 4,
        DataType::Decimal64(..) => 8,
        DataType::Decimal128(..) => 16,
        DataType::Decimal256(..) => 32,
        other => other.primitive_width().unwrap_or(in_width as usize) as u32,
    };
    match (physical, data_type) {
        (PhysicalType::BYTE_ARRAY, DataType::Utf8) => LeafDecode::Strings { offset_width: 4, utf8: true, view: false },
        (PhysicalType::BYTE_ARRAY, DataType::Binary) => {
            LeafDecode::Strings { offset_width: 4, utf8: false, view: false }
        }
        (PhysicalType::BYTE_ARRAY, DataType::LargeUtf8) => {
            LeafDecode::Strings { offset_width: 8, utf8: true, view: false }
        }
        (PhysicalType::BYTE_ARRAY, DataType::LargeBinary) => {
            LeafDecode::Strings { offset_width: 8, utf8: false, view: false }
        }
        (PhysicalType::BYTE_ARRAY, DataType::Utf8View) => {
            LeafDecode::Strings { offset_width: 4, utf8: true, view: true }
        }
        (PhysicalType::BYTE_ARRAY, DataType::BinaryView) => {
            LeafDecode::Strings { offset_width: 4, utf8: false, view: true }
        }
        (PhysicalType::BOOLEAN, _) => fixed(conversion::BOOL, 0),
        (PhysicalType::INT96, _) => fixed(conversion::INT96_NANOS, 8),
        (PhysicalType::INT32, DataType::Date64) => {
            LeafDecode::Fixed { conversion: conversion::MULTIPLY, factor: 86_400_000, in_width, out_width }
        }
        (PhysicalType::FIXED_LEN_BYTE_ARRAY, DataType::Interval(IntervalUnit::DayTime)) => {
            fixed(conversion::COPY_TAIL, out_width)
        }
        (PhysicalType::FIXED_LEN_BYTE_ARRAY, it) if it.is_decimal() => fixed(conversion::BIG_ENDIAN, out_width),
        _ if out_width > in_width => fixed(conversion::SIGN_EXTEND, out_width),
        _ => fixed(conversion::COPY, out_width),
    }
}

/// The columns of a file; an error of the `parquet` crate's page reader, or a page that no kernel decodes, as text.
pub fn columns_of(file: &Bytes) -> Result<Vec<Column>, String> {
    let schema = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(|it| it.to_string())?.schema().clone();
    let reader = SerializedFileReader::new(file.clone()).map_err(|it| it.to_string())?;
    let mut columns = Vec::new();
    for (index, field) in schema.fields().iter().enumerate() {
        let descriptor = reader.metadata().file_metadata().schema_descr().column(index);
        let type_length = descriptor.type_length().max(0) as u32;
        let optional = descriptor.max_def_level() > 0;
        let leaf = leaf(field.name(), descriptor.physical_type(), type_length, field.data_type(), optional);
        let mut column = Column { leaf, codec: Compression::UNCOMPRESSED, chunks: Vec::new() };
        for row_group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(row_group).map_err(|it| it.to_string())?;
            let mut pages = group.get_column_page_reader(index).map_err(|it| it.to_string())?;
            let mut chunk = Chunk::default();
            while let Some(page) = pages.get_next_page().map_err(|it| it.to_string())? {
                let header = header_of(&page);
                chunk.push(header, page.buffer());
                if let Some(reason) = unsupported(&column.leaf, chunk.headers.last().unwrap()) {
                    return Err(reason.into());
                }
            }
            chunk.rows = group.metadata().num_rows() as u64;
            column.chunks.push(chunk);
        }
        columns.push(column);
    }
    Ok(columns)
}

fn header_of(page: &Page) -> PageHeader {
    let header = PageHeader { num_values: page.num_values(), encoding: page.encoding() as u8, ..PageHeader::default() };
    match page {
        Page::DictionaryPage { .. } => PageHeader { kind: page_kind::DICTIONARY, ..header },
        Page::DataPage { def_level_encoding, .. } => {
            PageHeader { kind: page_kind::DATA_V1, def_encoding: *def_level_encoding as u8, ..header }
        }
        Page::DataPageV2 { num_nulls, num_rows, def_levels_byte_len, rep_levels_byte_len, .. } => PageHeader {
            kind: page_kind::DATA_V2,
            num_nulls: *num_nulls,
            num_rows: *num_rows,
            def_bytes: *def_levels_byte_len,
            rep_bytes: *rep_levels_byte_len,
            ..header
        },
    }
}

/// Writes batches, each its own row group.
pub fn write(batches: &[RecordBatch], properties: WriterProperties) -> Bytes {
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, batches[0].schema(), Some(properties)).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

/// What arrow-rs makes of a file: one array a column.
pub fn read(file: &Bytes) -> Result<Vec<ArrayRef>, String> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(|it| it.to_string())?;
    let schema = builder.schema().clone();
    let batches = builder.with_batch_size(1 << 20).build().map_err(|it| it.to_string())?;
    let batches = batches.collect::<Result<Vec<_>, _>>().map_err(|it| it.to_string())?;
    Ok(concat_batches(&schema, &batches).map_err(|it| it.to_string())?.columns().to_vec())
}

/// Decodes columns on a device. `skew` is the misalignment of every chunk in memory.
pub fn decode_device(gpu: &Gpu, stream: &Stream, columns: &[Column], skew: u64) -> Result<Vec<DeviceArray>> {
    // A buffer a chunk, of its exact size, so that a sanitizer sees reads outside it.
    let mut memory = Vec::new();
    let (mut chunks, mut first, mut headers, mut owners) = (Vec::new(), vec![0], Vec::new(), Vec::new());
    for row_group in 0..columns[0].chunks.len() {
        for (index, column) in columns.iter().enumerate() {
            let chunk = &column.chunks[row_group];
            let slab = gpu.alloc(skew + chunk.bytes.len() as u64, stream, "a test")?;
            // SAFETY: the chunk outlives the waits of `decode_batch`.
            unsafe { stream.copy_to_device(&slab, skew, &chunk.bytes)? };
            chunks.push(ChunkInput {
                address: slab.address() + skew,
                bytes: chunk.bytes.len() as u64,
                file_offset: FILE_OFFSET,
                num_values: chunk.rows,
                num_rows: chunk.rows,
                first_row: 0,
                first_page: 0,
                continues: false,
                row_group,
                column: column.leaf.path.as_str().into(),
                codec: column.codec,
                physical_type: column.leaf.physical,
                expected_pages: None,
            });
            headers.extend_from_slice(&chunk.headers);
            first.push(headers.len());
            owners.push(index);
            memory.push(slab);
        }
    }
    let table = PageTable::new(chunks, first, headers);
    let leaves: Vec<&Leaf> = columns.iter().map(|it| &it.leaf).collect();
    let fields = flat_fields(columns);
    let rows = columns[0].rows();
    let request = Request { leaves: &leaves, fields: &fields, selected: None, rows, table: &table, columns: &owners };
    // SAFETY: the chunks live until the end of this function, and were copied on the same stream.
    let arrays = unsafe { decode_batch(stream, &request) };
    // After an error the copies from `columns` may still be queued.
    stream.synchronize()?;
    arrays
}

/// The array in host memory, every buffer with its padding.
pub fn to_host(stream: &Stream, array: &DeviceArray) -> ArrayData {
    let copy = |memory: &Memory| match memory {
        Memory::Host(buffer) => buffer.clone(),
        Memory::Device(buffer) => download(stream, buffer),
    };
    ArrayData::builder(array.data_type.clone())
        .len(array.len)
        .null_bit_buffer(array.validity.as_ref().map(copy))
        .buffers(array.buffers.iter().map(copy).collect())
        .build()
        .unwrap()
}

pub fn download(stream: &Stream, buffer: &DeviceBuffer) -> Buffer {
    let mut host = MutableBuffer::from_len_zeroed(buffer.len() as usize);
    // SAFETY: synchronised before the host copy is read.
    unsafe { stream.copy_to_host(&mut host, buffer, 0).unwrap() };
    stream.synchronize().unwrap();
    host.into()
}

/// Decodes columns on a device and copies the arrays back.
pub fn decode(gpu: &Gpu, columns: &[Column], skew: u64) -> Result<Vec<ArrayRef>, Error> {
    let stream = gpu.new_stream()?;
    let arrays = decode_device(gpu, &stream, columns, skew)?;
    for array in &arrays {
        let nulls = array.validity.as_ref().map_or(0, |_| array.null_count);
        assert_eq!(nulls, array.null_count, "nulls without validity");
        assert!(array.validity.is_none() || nulls > 0, "validity without nulls");
    }
    Ok(arrays.iter().map(|it| make_array(to_host(&stream, it))).collect())
}

pub fn assert_equal(what: &str, ours: &[ArrayRef], theirs: &[ArrayRef], columns: &[Column]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for ((ours, theirs), column) in ours.iter().zip(theirs).zip(columns) {
        assert_eq!(ours.data_type(), theirs.data_type(), "{what}: {}", column.leaf.path);
        assert_eq!(ours.null_count(), theirs.null_count(), "{what}: {}", column.leaf.path);
        assert_eq!(&normal(ours), &normal(theirs), "{what}: {}", column.leaf.path);
    }
}

/// Floats by their bits, so that NaNs compare.
fn normal(array: &ArrayRef) -> ArrayRef {
    let bits = match array.data_type() {
        DataType::Float16 => DataType::UInt16,
        DataType::Float32 => DataType::UInt32,
        DataType::Float64 => DataType::UInt64,
        _ => return Arc::clone(array),
    };
    make_array(array.to_data().into_builder().data_type(bits).build().unwrap())
}

/// RLE / bit-packed runs, as they are in a page.
#[derive(Debug, Clone, Default)]
pub struct RunBytes(pub Vec<u8>);

impl RunBytes {
    pub fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// One value, `count` times.
    pub fn rle(self, width: u32, value: u32, count: u64) -> Self {
        self.varint(count << 1).raw(&value.to_le_bytes()[..width.div_ceil(8) as usize])
    }

    /// Values bit-packed, padded with ones to groups of eight.
    pub fn packed(self, width: u32, values: &[u32]) -> Self {
        let groups = values.len().div_ceil(8);
        let mut bits = vec![0u8; groups * width as usize];
        for at in 0..groups * 8 {
            let value = values.get(at).copied().unwrap_or(u32::MAX);
            for bit in 0..width as usize {
                let position = at * width as usize + bit;
                bits[position / 8] |= ((value >> bit & 1) as u8) << (position % 8);
            }
        }
        self.varint((groups as u64) << 1 | 1).raw(&bits)
    }

    /// V1 levels: their length, the runs, and then the values.
    pub fn v1(&self, values: &[u8]) -> Vec<u8> {
        [&(self.0.len() as u32).to_le_bytes()[..], &self.0, values].concat()
    }
}

/// Headers of pages written by hand.
pub fn v1(num_values: u32, encoding: u8) -> PageHeader {
    use parquet_gpu::kernels::abi::encoding::RLE;
    PageHeader { kind: page_kind::DATA_V1, num_values, encoding, def_encoding: RLE, ..PageHeader::default() }
}

pub fn v2(num_values: u32, num_nulls: u32, encoding: u8, def_bytes: usize) -> PageHeader {
    let def_bytes = def_bytes as u32;
    PageHeader { kind: page_kind::DATA_V2, num_values, num_nulls, encoding, def_bytes, ..PageHeader::default() }
}

pub fn dictionary(num_values: u32) -> PageHeader {
    PageHeader { kind: page_kind::DICTIONARY, num_values, ..PageHeader::default() }
}

/// PLAIN byte arrays.
pub fn plain_strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for it in strings {
        bytes.extend_from_slice(&(it.as_ref().len() as u32).to_le_bytes());
        bytes.extend_from_slice(it.as_ref());
    }
    bytes
}

pub fn plain_ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

pub fn int32(optional: bool) -> Leaf {
    leaf("int", PhysicalType::INT32, 0, &DataType::Int32, optional)
}

pub fn utf8(optional: bool) -> Leaf {
    leaf("text", PhysicalType::BYTE_ARRAY, 0, &DataType::Utf8, optional)
}

/// A column of one chunk.
pub fn column(leaf: Leaf, pages: &[(PageHeader, Vec<u8>)]) -> Column {
    let mut chunk = Chunk::default();
    for (header, body) in pages {
        chunk.push(*header, body);
    }
    Column::new(leaf, chunk)
}

/// Each column as a top-level field.
pub fn flat_fields(columns: &[Column]) -> Vec<(Field, DataType)> {
    columns.iter().enumerate().map(|(at, column)| (Field::Leaf(at), column.leaf.data_type.clone())).collect()
}
