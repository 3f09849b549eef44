//! Files that arrow-rs wrote, decoded from their pages, equal what arrow-rs reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use crate::support::{Random, assert_equal, columns_of, decode, devices, read, write};

/// A column of random values of one Arrow type. `values` bounds how many different ones there are.
fn array(random: &mut Random, data_type: &DataType, rows: usize, nulls: u64, values: u64) -> ArrayRef {
    let valid: Vec<bool> = (0..rows).map(|_| random.below(100) >= nulls).collect();
    let validity = (nulls > 0).then(|| NullBuffer::from(valid.clone()));
    let mut number = |_| Random(random.below(values)).next() as i64;
    let numbers: Vec<i64> = (0..rows).map(&mut number).collect();
    fn primitive<T: ArrowPrimitiveType>(
        numbers: &[i64],
        validity: Option<NullBuffer>,
        data_type: &DataType,
        convert: impl Fn(i64) -> T::Native,
    ) -> ArrayRef {
        let values = numbers.iter().map(|it| convert(*it)).collect::<Vec<_>>();
        Arc::new(PrimitiveArray::<T>::new(values.into(), validity).with_data_type(data_type.clone()))
    }
    use arrow::datatypes::*;
    macro_rules! cast {
        ($type:ty) => {
            primitive::<$type>(&numbers, validity, data_type, |it| it as <$type as ArrowPrimitiveType>::Native)
        };
    }
    let text = |it: i64| {
        let words = ["", "a", "ß", "日本", "word", "🚀", "a longer piece of text, past one chunk", "\u{7ff}\u{800}"];
        let mut random = Random(it as u64);
        (0..random.below(4)).map(|_| words[random.below(8) as usize]).collect::<String>()
    };
    let texts = || numbers.iter().zip(&valid).map(|(it, valid)| valid.then(|| text(*it)));
    match data_type {
        DataType::Boolean => Arc::new(BooleanArray::new(numbers.iter().map(|it| it & 1 == 1).collect(), validity)),
        DataType::Int8 => cast!(Int8Type),
        DataType::Int16 => cast!(Int16Type),
        DataType::Int32 => cast!(Int32Type),
        DataType::Int64 => cast!(Int64Type),
        DataType::UInt8 => cast!(UInt8Type),
        DataType::UInt16 => cast!(UInt16Type),
        DataType::UInt32 => cast!(UInt32Type),
        DataType::UInt64 => cast!(UInt64Type),
        DataType::Float16 => primitive::<Float16Type>(&numbers, validity, data_type, |it| half_of(it as u16)),
        DataType::Float32 => primitive::<Float32Type>(&numbers, validity, data_type, |it| f32::from_bits(it as u32)),
        DataType::Float64 => primitive::<Float64Type>(&numbers, validity, data_type, |it| f64::from_bits(it as u64)),
        DataType::Date32 => cast!(Date32Type),
        DataType::Time32(TimeUnit::Millisecond) => {
            primitive::<Time32MillisecondType>(&numbers, validity, data_type, |it| (it as i32).rem_euclid(86_400_000))
        }
        DataType::Time64(TimeUnit::Microsecond) => cast!(Time64MicrosecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => cast!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => cast!(TimestampNanosecondType),
        DataType::Decimal32(..) => primitive::<Decimal32Type>(&numbers, validity, data_type, |it| (it % 10_000) as i32),
        DataType::Decimal64(..) => primitive::<Decimal64Type>(&numbers, validity, data_type, |it| it % 100_000_000),
        DataType::Decimal128(precision, _) => {
            let limit = 10i128.pow((*precision).into());
            let wide = |it: i64| (i128::from(it) * i128::from(it ^ 0x5555)) % limit;
            primitive::<Decimal128Type>(&numbers, validity, data_type, wide)
        }
        DataType::Decimal256(..) => primitive::<Decimal256Type>(&numbers, validity, data_type, |it| {
            i256::from_i128(i128::from(it)).wrapping_mul(i256::from_i128(i128::from(it) << 40))
        }),
        DataType::Interval(_) => primitive::<IntervalDayTimeType>(&numbers, validity, data_type, |it| {
            IntervalDayTime::new(it as i32, (it >> 32) as i32)
        }),
        DataType::FixedSizeBinary(width) => {
            let bytes = |it: i64| Random(it as u64).bytes(*width as usize);
            let values = numbers.iter().flat_map(|it| bytes(*it)).collect::<Vec<_>>();
            Arc::new(FixedSizeBinaryArray::new(*width, values.into(), validity))
        }
        DataType::Utf8 => Arc::new(texts().collect::<StringArray>()),
        DataType::LargeUtf8 => Arc::new(texts().collect::<LargeStringArray>()),
        DataType::Binary => Arc::new(texts().map(|it| it.map(String::into_bytes)).collect::<BinaryArray>()),
        DataType::LargeBinary => Arc::new(texts().map(|it| it.map(String::into_bytes)).collect::<LargeBinaryArray>()),
        other => panic!("{other}"),
    }
}

fn half_of(bits: u16) -> <arrow::datatypes::Float16Type as ArrowPrimitiveType>::Native {
    <arrow::datatypes::Float16Type as ArrowPrimitiveType>::Native::from_bits(bits)
}

fn types() -> Vec<DataType> {
    vec![
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Date32,
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Millisecond, None),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        DataType::Decimal32(9, 2),
        DataType::Decimal64(17, 2),
        DataType::Decimal128(8, 2),
        DataType::Decimal128(17, 2),
        DataType::Decimal128(23, 3),
        DataType::Decimal128(38, 3),
        DataType::Decimal256(76, 5),
        DataType::Interval(arrow::datatypes::IntervalUnit::DayTime),
        DataType::FixedSizeBinary(1),
        DataType::FixedSizeBinary(3),
        DataType::FixedSizeBinary(16),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::LargeBinary,
    ]
}

fn batch(random: &mut Random, rows: usize, nulls: u64, values: u64) -> RecordBatch {
    let arrays = types().iter().map(|it| array(random, it, rows, nulls, values)).collect::<Vec<_>>();
    let name = |index: usize, it: &DataType| format!("{index}: {it}");
    let fields = types().into_iter().enumerate();
    let fields = fields.map(|(index, it)| Field::new(name(index, &it), it, nulls > 0));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), arrays).unwrap()
}

fn properties(version: u32, dictionary: bool, page_rows: usize) -> WriterProperties {
    let version = if version == 1 { WriterVersion::PARQUET_1_0 } else { WriterVersion::PARQUET_2_0 };
    WriterProperties::builder()
        .set_writer_version(version)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(dictionary)
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows.clamp(1, 64))
        .set_statistics_enabled(EnabledStatistics::None)
        .build()
}

fn assert_file(what: &str, file: &Bytes, seeds: std::ops::Range<u64>) {
    let theirs = read(file).unwrap();
    let columns = columns_of(file).unwrap();
    for (name, gpu) in devices(seeds) {
        for skew in [0, 5] {
            let what = format!("{what} on {name}, skew {skew}");
            let ours = decode(&gpu, &columns, skew).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_equal(&what, &ours, &theirs, &columns);
        }
    }
}

#[test]
fn every_flat_type_in_every_kind_of_page() {
    let mut random = Random(1);
    let mut cases = 0;
    for version in [1, 2] {
        for dictionary in [false, true] {
            for (rows, page_rows) in [(1, 10), (33, 7), (200, 64), (1500, 1200)] {
                for nulls in [0, 30, 100] {
                    let values = 1 + random.below(300);
                    let groups = if rows < 1000 { 2 } else { 1 };
                    let batches = (0..groups).map(|_| batch(&mut random, rows, nulls, values)).collect::<Vec<_>>();
                    let file = write(&batches, properties(version, dictionary, page_rows));
                    let what =
                        format!("V{version}, dictionary {dictionary}, {rows} rows by {page_rows}, {nulls} % null");
                    assert_file(&what, &file, cases..cases + 1);
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} files, {} columns each", types().len());
}

#[test]
fn a_dictionary_that_grows_too_large_falls_back_to_plain_within_the_chunk() {
    let mut random = Random(2);
    for version in [1, 2] {
        let batches = [batch(&mut random, 700, 20, 1 << 40), batch(&mut random, 40, 20, 3)];
        let properties = properties(version, true, 50).into_builder().set_dictionary_page_size_limit(600).build();
        let file = write(&batches, properties);
        let columns = columns_of(&file).unwrap();
        let encodings = |column: usize| columns[column].chunks[0].headers.iter().map(|it| it.encoding);
        // INT32 and Utf8: the dictionary page, a page of each kind.
        for column in [3, 28] {
            let plain = encodings(column).filter(|it| *it == Encoding::PLAIN as u8).count();
            assert!(plain > 1 && plain < columns[column].chunks[0].headers.len(), "{:?}", columns[column].leaf.path);
        }
        assert_file(&format!("fallback, V{version}"), &file, 0..3);
    }
}

#[test]
fn run_length_encoded_booleans() {
    let mut random = Random(3);
    for nulls in [0, 40, 100] {
        let flags = array(&mut random, &DataType::Boolean, 900, nulls, 9);
        let steady: ArrayRef = Arc::new((0..900).map(|it| Some(it / 300 == 1)).collect::<BooleanArray>());
        let batch = RecordBatch::try_from_iter([("flags", flags), ("steady", steady)]).unwrap();
        let builder = properties(2, false, 100).into_builder();
        let file = write(&[batch], builder.set_encoding(Encoding::RLE).build());
        assert!(columns_of(&file).unwrap()[0].chunks[0].headers.iter().all(|it| it.encoding == Encoding::RLE as u8));
        assert_file(&format!("RLE booleans, {nulls} % null"), &file, 0..3);
    }
}

#[test]
fn long_strings_and_many_short_ones() {
    let mut random = Random(4);
    let long = (0..40).map(|it| {
        let len = if it % 7 == 0 { 9000 + random.below(3000) } else { random.below(5) };
        Some("日".repeat(len as usize / 3) + &"x".repeat(len as usize % 3))
    });
    let long = long.collect::<Vec<_>>();
    let short = (0..3000).map(|it| Some((it % 10).to_string())).collect::<Vec<_>>();
    for strings in [long, short] {
        let column: ArrayRef = Arc::new(strings.iter().cloned().collect::<StringArray>());
        let batch = RecordBatch::try_from_iter([("strings", column)]).unwrap();
        for dictionary in [false, true] {
            assert_file("strings", &write(std::slice::from_ref(&batch), properties(1, dictionary, 2000)), 0..3);
        }
    }
}

/// Bytes of a file are changed at random places of its pages. What arrow-rs reads, the kernels read alike; what it
/// refuses, they refuse.
#[test]
fn changed_bytes_have_the_outcome_that_they_have_in_arrow_rs() {
    let mut random = Random(5);
    let (mut equal, mut refused, mut ahead) = (0, 0, 0);
    let gpus = devices(0..2);
    for case in 0..28u64 {
        let dictionary = case % 2 == 0;
        let (rows, nulls) = (60 + random.below(60) as usize, if case % 3 == 0 { 0 } else { 30 });
        let types = [
            DataType::Int32,
            DataType::Utf8,
            DataType::Boolean,
            DataType::Float64,
            DataType::Binary,
            DataType::Decimal128(38, 3),
            DataType::FixedSizeBinary(3),
        ];
        let data_type = &types[case as usize % types.len()];
        let column = array(&mut random, data_type, rows, nulls, 20);
        let schema = Schema::new(vec![Field::new("column", data_type.clone(), nulls > 0)]);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
        let file = write(&[batch], properties(1 + (case % 4 / 2) as u32, dictionary, 25)).to_vec();
        let clean = columns_of(&file.clone().into()).unwrap();
        let bodies: Vec<_> = clean[0].chunks[0]
            .headers
            .iter()
            .map(|it| &clean[0].chunks[0].bytes[it.body_offset as usize..][..it.compressed_bytes as usize])
            .filter(|it| it.len() > 3)
            .map(|body| (file.windows(body.len()).position(|it| it == body).unwrap(), body.len()))
            .collect();
        for _ in 0..40 {
            let mut file = file.clone();
            for _ in 0..1 + random.below(3) {
                let (start, len) = bodies[random.below(bodies.len() as u64) as usize];
                // Levels and bit widths come first.
                let within =
                    if random.below(2) == 0 { random.below(len.min(8) as u64) } else { random.below(len as u64) };
                file[start + within as usize] = random.next() as u8 >> random.below(8);
            }
            let file = Bytes::from(file);
            let Ok(columns) = columns_of(&file) else { continue };
            let theirs = catch_unwind(AssertUnwindSafe(|| read(&file))).unwrap_or_else(|_| Err("a panic".into()));
            for (name, gpu) in &gpus {
                let ours = decode(gpu, &columns, 3);
                match (&ours, &theirs) {
                    (Ok(ours), Ok(theirs)) => {
                        assert_equal(name, ours, theirs, &columns);
                        equal += 1;
                    }
                    (Err(_), Err(_)) => refused += 1,
                    // arrow-rs reads indices of byte arrays 1,024 at a time and so refuses malformed runs behind the
                    // last value, too.
                    (Ok(_), Err(theirs)) if theirs.contains("RLE") => ahead += 1,
                    (Ok(_), Err(theirs)) => panic!("case {case} {data_type} on {name}: arrow-rs refuses it: {theirs}"),
                    (Err(ours), Ok(_)) => panic!("case {case} {data_type} on {name}: arrow-rs reads it: {ours}"),
                }
            }
        }
    }
    println!("{equal} equal, {refused} refused by both, {ahead} refused by arrow-rs for what no value needs");
    assert!(gpus.is_empty() || (equal > 50 && refused > 50), "{equal} equal, {refused} refused");
}
