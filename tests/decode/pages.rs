//! Pages written by hand: what arrow-rs's writer does not write, and what a consumer must not see.

use crate::generate::Random;
use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, TimeUnit};
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet_gpu::batch::Memory;
use parquet_gpu::decode::{Request, decode_batch};
use parquet_gpu::footer::{Leaf, LeafDecode};
use parquet_gpu::kernels::abi::{PageHeader, conversion, encoding};
use parquet_gpu::page::{ChunkInput, header};

use crate::support::*;

fn decode_one(gpu: &parquet_gpu::device::Gpu, column: &Column) -> ArrayRef {
    decode(gpu, std::slice::from_ref(column), 1).unwrap().remove(0)
}

#[test]
fn indices_of_every_bit_width_in_every_kind_of_run() {
    let entries: Vec<i32> = vec![70, -5, 33, i32::MAX, 0];
    let words = ["zero", "", "two two", "3", "ß"];
    for (_, gpu) in devices(0..2) {
        for width in 0..=32 {
            let limit = if width >= 3 { 5 } else { 1 << width };
            let mut random = Random(width.into());
            let mut runs = RunBytes::default().raw(&[width as u8]);
            let mut indices = Vec::<u32>::new();
            for run in 0..90 {
                let count = 1 + random.below(20) as usize;
                if run % 3 == 0 {
                    let index = random.below(limit) as u32;
                    runs = runs.rle(width, index, count as u64);
                    indices.extend(vec![index; count]);
                } else {
                    // Whole groups: only the last run of a page may be padded.
                    let values: Vec<u32> = (0..count * 8).map(|_| random.below(limit) as u32).collect();
                    runs = runs.packed(width, &values);
                    indices.extend(values);
                }
                if run == 40 {
                    runs = runs.varint(1); // a bit-packed run of no group
                }
            }
            let tail: Vec<u32> = (0..3).map(|_| random.below(limit) as u32).collect();
            let runs = runs.packed(width, &tail).raw(&[0, 0, 0]);
            indices.extend(tail);
            let header = v1(indices.len() as u32, encoding::RLE_DICTIONARY);
            let ints = column(int32(false), &[(dictionary(5), plain_ints(entries.clone())), (header, runs.0.clone())]);
            let text = column(utf8(false), &[(dictionary(5), plain_strings(words)), (header, runs.0.clone())]);
            let arrays = decode(&gpu, &[ints, text], 1).unwrap();
            let expected = indices.iter().map(|it| entries[*it as usize]).collect::<Int32Array>();
            assert_eq!(arrays[0].as_primitive(), &expected, "width {width}");
            let expected = indices.iter().map(|it| Some(words[*it as usize])).collect::<StringArray>();
            assert_eq!(arrays[1].as_string(), &expected, "width {width}");
        }
    }
}

#[test]
fn a_cut_last_group_and_a_leading_empty_run_are_read_as_arrow_rs_does() {
    // Five indices of three bits take two bytes of the group's three.
    let cut = RunBytes::default().raw(&[3]).packed(3, &[0, 1, 2, 1, 0]).0;
    let cut = cut[..cut.len() - 1].to_vec();
    let empty = RunBytes::default().raw(&[3, 0]).packed(3, &[0, 1, 2, 1, 0]).0;
    for (_, gpu) in devices(0..2) {
        for body in [&cut, &empty] {
            let pages = [(dictionary(3), plain_ints([7, 8, 9])), (v1(5, encoding::PLAIN_DICTIONARY), body.clone())];
            let array = decode_one(&gpu, &column(int32(false), &pages));
            assert_eq!(array.as_primitive(), &Int32Array::from(vec![7, 8, 9, 8, 7]));
        }
    }
}

#[test]
fn levels_in_many_short_runs_and_in_pages_of_any_length() {
    for (_, gpu) in devices(0..2) {
        let mut random = Random(11);
        for encoded_as in ["runs of one", "mixed", "BIT_PACKED"] {
            let mut pages = Vec::new();
            let mut expected = Vec::new();
            for rows in [1usize, 31, 1, 32, 33, 0, 700, 5, 64] {
                let levels: Vec<u32> = (0..rows).map(|_| random.below(2) as u32).collect();
                let valid: Vec<i32> = levels.iter().filter(|it| **it == 1).map(|_| random.next() as i32).collect();
                let mut values = valid.iter().copied();
                expected.extend(levels.iter().map(|it| (*it == 1).then(|| values.next().unwrap())));
                let mut header = v1(rows as u32, encoding::PLAIN);
                let values = plain_ints(valid);
                let runs = RunBytes::default();
                let body = match encoded_as {
                    "runs of one" => levels.iter().fold(runs, |runs, it| runs.rle(1, *it, 1)).v1(&values),
                    "mixed" => {
                        let half = rows / 16 * 8;
                        let runs = runs.packed(1, &levels[..half]).varint(0).raw(&[1]); // and an empty run
                        levels[half..].iter().fold(runs, |runs, it| runs.rle(1, *it * 255, 1)).v1(&values)
                    }
                    _ => {
                        header.def_encoding = encoding::BIT_PACKED;
                        let bits = runs.packed(1, &levels).0;
                        [&bits[bits.len() - rows.div_ceil(8)..], &values].concat()
                    }
                };
                pages.push((header, body));
            }
            let array = decode_one(&gpu, &column(int32(true), &pages));
            assert_eq!(array.as_primitive(), &Int32Array::from(expected), "{encoded_as}");
        }
    }
}

#[test]
fn a_v2_header_that_states_too_few_nulls_is_not_trusted() {
    let levels = RunBytes::default().packed(1, &[1, 0, 1, 1]).0;
    let body = [&levels[..], &plain_ints([4, 5, 6])].concat();
    for (_, gpu) in devices(0..2) {
        let pages = [(v2(4, 0, encoding::PLAIN, levels.len()), body.clone())];
        let array = decode_one(&gpu, &column(int32(true), &pages));
        assert_eq!(array.as_primitive(), &Int32Array::from(vec![Some(4), None, Some(5), Some(6)]));
    }
}

#[test]
fn dictionaries_of_no_one_and_many_entries() {
    let nulls = |rows| RunBytes::default().rle(1, 0, rows);
    for (_, gpu) in devices(0..2) {
        // None: every row is null.
        let page = (v1(9, encoding::RLE_DICTIONARY), nulls(9).v1(&[0]));
        for leaf in [int32(true), utf8(true)] {
            let array = decode_one(&gpu, &column(leaf, &[(dictionary(0), vec![]), page.clone()]));
            assert_eq!((array.len(), array.null_count()), (9, 9));
        }
        // One, with no bits an index, and fewer than the header states.
        let page = (v1(3000, encoding::RLE_DICTIONARY), RunBytes::default().raw(&[0]).rle(0, 0, 3000).0);
        let array = decode_one(&gpu, &column(utf8(false), &[(dictionary(7), plain_strings(["only"])), page]));
        assert!(array.as_string::<i32>().iter().all(|it| it == Some("only")));
        // More than a tile of them, among them some longer than a tile of bytes.
        let mut random = Random(12);
        let words: Vec<String> = (0..2500)
            .map(|it| if it % 900 == 5 { "long".repeat(1500 + it % 7) } else { "w".repeat(random.below(9) as usize) })
            .collect();
        let indices: Vec<u32> = (0..4000).map(|_| random.below(2500) as u32).collect();
        let runs = RunBytes::default().raw(&[12]).packed(12, &indices).0;
        let pages = [(dictionary(2500), plain_strings(&words)), (v1(4000, encoding::RLE_DICTIONARY), runs)];
        let array = decode_one(&gpu, &column(utf8(false), &pages));
        let expected = indices.iter().map(|it| Some(words[*it as usize].as_str())).collect::<StringArray>();
        assert_eq!(array.as_string(), &expected);
    }
}

#[test]
fn a_second_dictionary_of_byte_arrays_replaces_the_first() {
    let page = |index| (v1(2, encoding::RLE_DICTIONARY), RunBytes::default().raw(&[1]).rle(1, index, 2).0);
    let (first, second) = (plain_strings(["a", "b"]), plain_strings(["c", "d"]));
    for (_, gpu) in devices(0..2) {
        let pages = [(dictionary(2), first.clone()), page(1), (dictionary(2), second.clone()), page(0)];
        let array = decode_one(&gpu, &column(utf8(false), &pages));
        assert_eq!(array.as_string(), &StringArray::from(vec!["b", "b", "c", "c"]));
    }
}

fn fixed(physical: PhysicalType, data_type: DataType, decode: (u32, i64, u32, u32)) -> Leaf {
    let (conversion, factor, in_width, out_width) = decode;
    let type_length = if physical == PhysicalType::FIXED_LEN_BYTE_ARRAY { in_width } else { 0 };
    Leaf {
        decode: LeafDecode::Fixed { conversion, factor, in_width, out_width },
        ..leaf("fixed", physical, type_length, &data_type, false)
    }
}

#[test]
fn conversions_compute_what_arrow_rs_computes() {
    let mut random = Random(13);
    // INT96 wraps around on overflow, in every unit.
    let stamps: Vec<(u64, i32)> = vec![
        (0, 2_440_588),
        (86_399_999_999_999, 2_440_587),
        (u64::MAX, i32::MAX),
        (1 << 63, i32::MIN),
        (random.next(), random.next() as i32),
    ];
    let int96: Vec<u8> =
        stamps.iter().flat_map(|(nanos, day)| [&nanos.to_le_bytes()[..], &day.to_le_bytes()].concat()).collect();
    let units = [(TimeUnit::Nanosecond, 1), (TimeUnit::Microsecond, 1_000), (TimeUnit::Second, 1_000_000_000)];
    for (_, gpu) in devices(0..2) {
        for (unit, factor) in units {
            let leaf =
                fixed(PhysicalType::INT96, DataType::Timestamp(unit, None), (conversion::INT96_NANOS, factor, 12, 8));
            let array = decode_one(&gpu, &column(leaf, &[(v1(5, encoding::PLAIN), int96.clone())]));
            let expected: Vec<i64> = stamps
                .iter()
                .map(|(nanos, day)| {
                    let days = (i64::from(*day) - 2_440_588).wrapping_mul(86_400_000_000_000 / factor);
                    days.wrapping_add(*nanos as i64 / factor)
                })
                .collect();
            let data = array.to_data();
            assert_eq!(&data.buffer::<i64>(0)[..5], &expected, "{unit:?}");
        }

        let longs = [7, -7, i64::MIN, i64::MAX, 0];
        let bytes: Vec<u8> = longs.iter().flat_map(|it| it.to_le_bytes()).collect();
        let page = (v1(5, encoding::PLAIN), bytes);
        let leaf = fixed(PhysicalType::INT64, DataType::Int64, (conversion::DIVIDE, 1000, 8, 8));
        let array = decode_one(&gpu, &column(leaf, std::slice::from_ref(&page)));
        assert_eq!(array.as_primitive(), &Int64Array::from_iter_values(longs.iter().map(|it| it / 1000)));
        let leaf = fixed(PhysicalType::INT64, DataType::Int64, (conversion::MULTIPLY, 1000, 8, 8));
        let array = decode_one(&gpu, &column(leaf, &[page]));
        assert_eq!(array.as_primitive(), &Int64Array::from_iter_values(longs.iter().map(|it| it.wrapping_mul(1000))));

        // Big-endian values of every length, into every decimal that holds them.
        for (out_width, data_type) in [
            (4, DataType::Decimal32(9, 0)),
            (8, DataType::Decimal64(18, 0)),
            (16, DataType::Decimal128(38, 0)),
            (32, DataType::Decimal256(76, 0)),
        ] {
            for in_width in 1..=out_width {
                let bytes = random.bytes(20 * in_width as usize);
                let leaf = fixed(
                    PhysicalType::FIXED_LEN_BYTE_ARRAY,
                    data_type.clone(),
                    (conversion::BIG_ENDIAN, 1, in_width, out_width),
                );
                let array = decode_one(&gpu, &column(leaf, &[(v1(20, encoding::PLAIN), bytes.clone())]));
                let expected: Vec<u8> = bytes
                    .chunks(in_width as usize)
                    .flat_map(|it| {
                        let mut little: Vec<u8> = it.iter().rev().copied().collect();
                        little.resize(out_width as usize, if it[0] & 0x80 == 0 { 0 } else { 0xff });
                        little
                    })
                    .collect();
                assert_eq!(&array.to_data().buffers()[0][..expected.len()], &expected, "{in_width} to {out_width}");
            }
        }
    }
}

#[test]
fn values_of_fixed_length_with_lengths_before_them_are_read_as_arrow_rs_does() {
    let values: [&[u8; 3]; 3] = [b"abc", b"def", b"ghi"];
    let levels = RunBytes::default().packed(1, &[1, 0, 1, 1]);
    for (_, gpu) in devices(0..2) {
        let leaf = leaf("fixed", PhysicalType::FIXED_LEN_BYTE_ARRAY, 3, &DataType::FixedSizeBinary(3), true);
        let page = (v1(4, encoding::PLAIN), levels.v1(&plain_strings(values)));
        let array = decode_one(&gpu, &column(leaf, &[page]));
        let expected = [Some(values[0]), None, Some(values[1]), Some(values[2])].into_iter();
        let expected = FixedSizeBinaryArray::try_from_sparse_iter_with_size(expected, 3).unwrap();
        assert_eq!(array.as_fixed_size_binary(), &expected);
    }
}

#[test]
fn a_batch_without_rows() {
    for (_, gpu) in devices(0..2) {
        let columns =
            [column(int32(true), &[]), column(utf8(true), &[]), column(utf8(false), &[(dictionary(0), vec![])])];
        for array in decode(&gpu, &columns, 0).unwrap() {
            assert_eq!((array.len(), array.null_count()), (0, 0));
        }
    }
}

/// Buffers end at multiples of 64 bytes, and nothing but values is in them.
#[test]
fn recycled_memory_does_not_show_in_null_slots_or_padding() {
    let types = [
        (PhysicalType::BOOLEAN, 0, DataType::Boolean),
        (PhysicalType::INT32, 0, DataType::Int8),
        (PhysicalType::INT32, 0, DataType::Int32),
        (PhysicalType::INT64, 0, DataType::Decimal128(18, 2)),
        (PhysicalType::FIXED_LEN_BYTE_ARRAY, 3, DataType::FixedSizeBinary(3)),
        (PhysicalType::BYTE_ARRAY, 0, DataType::Utf8),
        (PhysicalType::BYTE_ARRAY, 0, DataType::LargeBinary),
    ];
    let rows = 77;
    let levels = RunBytes::default().rle(1, 0, 70).rle(1, 1, 2).rle(1, 0, 5);
    for (name, gpu) in devices(0..2) {
        let columns: Vec<Column> = types
            .iter()
            .map(|(physical, length, data_type)| {
                let leaf = leaf("column", *physical, *length, data_type, true);
                let values = match physical {
                    PhysicalType::BOOLEAN => vec![3],
                    PhysicalType::BYTE_ARRAY => plain_strings(["\x01", "\x01"]),
                    PhysicalType::INT64 => vec![1; 16],
                    PhysicalType::INT32 => vec![1; 8],
                    _ => vec![1; 6],
                };
                column(leaf, &[(v1(rows, encoding::PLAIN), levels.v1(&values))])
            })
            .collect();
        let stream = gpu.new_stream().unwrap();
        let dirty: Vec<_> = (0..40).map(|it| gpu.alloc(64 << (it % 7), &stream, "a test").unwrap()).collect();
        for buffer in &dirty {
            stream.fill(buffer, 0, buffer.len() as usize, 0xee).unwrap();
        }
        drop(dirty);
        let arrays = decode_device(&gpu, &stream, &columns, 0).unwrap();
        for (array, (physical, _, data_type)) in arrays.iter().zip(&types) {
            assert_eq!(array.null_count, 75);
            let bytes_of = |memory: &Memory| match memory {
                Memory::Device(buffer) => download(&stream, buffer).to_vec(),
                Memory::Host(_) => panic!("in host memory"),
            };
            let validity = bytes_of(array.validity.as_ref().unwrap());
            assert_eq!(validity.len(), 64);
            assert!(
                validity.iter().enumerate().all(|(at, it)| *it == if at == 8 { 0xc0 } else { 0 }),
                "{name} {data_type}"
            );
            let buffers: Vec<_> = array.buffers.iter().map(bytes_of).collect();
            assert!(buffers.iter().all(|it| it.len() % 64 == 0 && !it.is_empty()), "{name} {data_type}");
            let data = buffers.last().unwrap();
            let (filled, value) = match physical {
                PhysicalType::BOOLEAN => (8..9, 0xc0),
                PhysicalType::BYTE_ARRAY => (0..2, 1),
                _ => (0..0, 0),
            };
            if *physical == PhysicalType::BYTE_ARRAY {
                let width = buffers[0].len() / 64 * 64;
                let used = (rows as usize + 1) * if *data_type == DataType::Utf8 { 4 } else { 8 };
                assert!(buffers[0][used..width].iter().all(|it| *it == 0), "{name} {data_type}");
            }
            if filled.is_empty() {
                // Values of one's bytes in rows 70 and 71 alone.
                let width = array.data_type.primitive_width().unwrap_or(3);
                let ones: Vec<_> = data.iter().enumerate().filter(|it| *it.1 != 0).map(|it| it.0).collect();
                assert!(ones.iter().all(|it| (70 * width..72 * width).contains(it)), "{name} {data_type}: {ones:?}");
            } else {
                let expected = |at: usize| if filled.contains(&at) { value } else { 0 };
                assert!(data.iter().enumerate().all(|(at, it)| *it == expected(at)), "{name} {data_type}");
            }
        }
    }
}

#[test]
fn launches_and_waits_do_not_grow_with_columns_pages_or_row_groups() {
    for (name, gpu) in devices(0..1) {
        let count = |columns: usize, groups: usize, pages: usize| {
            let gpu = gpu.with_budget(u64::MAX);
            let stream = gpu.new_stream().unwrap();
            let chunk = |leaf: &Leaf| {
                let strings = matches!(leaf.decode, LeafDecode::Strings { .. });
                let body = if strings { plain_strings(["x"; 3]) } else { plain_ints([1, 2, 3]) };
                column(leaf.clone(), &vec![(v1(3, encoding::PLAIN), body); pages]).chunks.remove(0)
            };
            let both = [int32(false), utf8(false)];
            let columns: Vec<Column> = both
                .iter()
                .cycle()
                .take(columns)
                .map(|leaf| Column {
                    leaf: leaf.clone(),
                    codec: Compression::UNCOMPRESSED,
                    chunks: vec![chunk(leaf); groups],
                })
                .collect();
            let before = gpu.counters().syncs();
            decode_device(&gpu, &stream, &columns, 0).unwrap();
            // One wait is the test's own.
            (gpu.counters().launches(), gpu.counters().syncs() - before - 1)
        };
        assert_eq!(count(2, 1, 1), count(20, 5, 7), "{name}");
        let (launches, syncs) = count(20, 5, 7);
        assert!(launches <= 8 && syncs == 2, "{name}: {launches} launches, {syncs} waits");
        assert_eq!(count(1, 1, 1).1, 1, "without strings");
    }
}

/// From a chunk's bytes as they are in the file: headers parsed and pages decompressed on the device.
#[test]
fn chunks_of_a_file_through_all_stages() {
    let ints: ArrayRef = Arc::new((0..5000).map(|it| (it % 7 != 0).then_some(it % 900)).collect::<Int64Array>());
    let text: ArrayRef = Arc::new((0..5000).map(|it| Some(format!("row {}", it % 1000))).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter_with_nullable([("ints", ints, true), ("text", text, false)]).unwrap();
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        for dictionary in [true, false] {
            let properties = WriterProperties::builder()
                .set_compression(compression)
                .set_dictionary_enabled(dictionary)
                .set_data_page_row_count_limit(700)
                .set_write_batch_size(100);
            let file = write(&[batch.slice(0, 3000), batch.slice(3000, 2000)], properties.build());
            let (theirs, columns) = (read(&file).unwrap(), columns_of(&file).unwrap());
            let reader = SerializedFileReader::new(file.clone()).unwrap();
            for (name, gpu) in devices(0..3) {
                let stream = gpu.new_stream().unwrap();
                let device = gpu.alloc(file.len() as u64, &stream, "a test").unwrap();
                // SAFETY: the file outlives the waits below.
                unsafe { stream.copy_to_device(&device, 0, &file).unwrap() };
                let (mut chunks, mut owners) = (Vec::new(), Vec::new());
                for (row_group, group) in reader.metadata().row_groups().iter().enumerate() {
                    for (index, chunk) in group.columns().iter().enumerate() {
                        let (start, bytes) = chunk.byte_range();
                        chunks.push(ChunkInput {
                            address: device.address() + start,
                            bytes,
                            file_offset: start,
                            num_values: group.num_rows() as u64,
                            num_rows: group.num_rows() as u64,
                            first_row: 0,
                            first_page: 0,
                            continues: false,
                            row_group,
                            column: columns[index].leaf.path.as_str().into(),
                            codec: compression,
                            physical_type: columns[index].leaf.physical,
                            expected_pages: None,
                        });
                        owners.push(index);
                    }
                }
                let table = header::parse(&stream, &chunks).unwrap();
                let leaves: Vec<&Leaf> = columns.iter().map(|it| &it.leaf).collect();
                let fields = flat_fields(&columns);
                let request = Request {
                    leaves: &leaves,
                    fields: &fields,
                    selected: None,
                    rows: 5000,
                    table: &table,
                    columns: &owners,
                };
                // SAFETY: the file is on the device, copied on the same stream.
                let arrays = unsafe { decode_batch(&stream, &request) }.unwrap();
                let ours: Vec<_> = arrays.iter().map(|it| make_array(to_host(&stream, it))).collect();
                assert_equal(&format!("{name}, {compression}, dictionary {dictionary}"), &ours, &theirs, &columns);
            }
        }
    }
}

#[test]
fn pages_that_no_kernel_decodes_are_told_from_their_headers() {
    use parquet_gpu::decode::unsupported;
    let flags = leaf("flags", PhysicalType::BOOLEAN, 0, &DataType::Boolean, true);
    let fixed = leaf("fixed", PhysicalType::FIXED_LEN_BYTE_ARRAY, 3, &DataType::FixedSizeBinary(3), true);
    let with_bytes = |bytes| PageHeader { uncompressed_bytes: bytes, ..dictionary(2) };
    let bad_levels = PageHeader { def_encoding: encoding::PLAIN, ..v1(1, encoding::PLAIN) };
    for (leaf, header, supported) in [
        (&flags, v1(1, encoding::PLAIN), true),
        (&flags, v1(1, encoding::RLE), true),
        (&flags, v1(1, encoding::RLE_DICTIONARY), false),
        (&flags, dictionary(1), false),
        (&int32(true), v1(1, encoding::RLE), false),
        (&int32(true), v1(1, encoding::DELTA_BINARY_PACKED), true),
        (&int32(true), v1(1, encoding::DELTA_BYTE_ARRAY), false),
        (&int32(true), v1(1, encoding::BYTE_STREAM_SPLIT), true),
        (&fixed, v1(1, encoding::DELTA_BYTE_ARRAY), true),
        (&fixed, v1(1, encoding::DELTA_LENGTH_BYTE_ARRAY), false),
        (&flags, v1(1, encoding::BYTE_STREAM_SPLIT), false),
        (&int32(true), v2(1, 0, encoding::PLAIN_DICTIONARY, 0), true),
        (&int32(true), PageHeader { encoding: 9, ..dictionary(1) }, false),
        (&int32(true), bad_levels, false),
        (&int32(false), bad_levels, true),
        (&fixed, with_bytes(6), true),
        (&fixed, with_bytes(14), false),
    ] {
        assert_eq!(unsupported(leaf, &header).is_none(), supported, "{} {header:?}", leaf.path);
    }
}
