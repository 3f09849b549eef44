//! Writes seeds, a folder a target: whole files, column chunks and page bodies of `testdata/` and, where
//! `PARQUET_GPU_CORPUS` names it, of the corpus:
//!     cargo run --bin seeds -- FOLDER

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};
use parquet_gpu::guard;
use parquet_gpu_fuzz::{PageInput, Target};

/// Larger inputs cost a fuzzer more than they tell.
const LARGEST_FILE: u64 = 24 << 10;
const LARGEST_CHUNK: usize = 4 << 10;
/// Seeds of one kind: type, nesting, encoding, version.
const OF_A_KIND: usize = 6;

fn main() -> io::Result<()> {
    let folder = PathBuf::from(env::args().nth(1).expect("the folder to write to"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let mut paths = Vec::new();
    for root in [Some(root), env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from)].into_iter().flatten() {
        walk(&root, &mut paths)?;
    }
    paths.sort();
    let mut seeds = Seeds { folder, kinds: BTreeMap::new() };
    for (_, name) in Target::ALL {
        fs::create_dir_all(seeds.folder.join(name))?;
    }
    fs::create_dir_all(seeds.folder.join("file"))?;
    for path in paths {
        if path.metadata()?.len() <= LARGEST_FILE {
            seeds.write("file", &fs::read(&path)?)?;
        }
        let bytes = Bytes::from(fs::read(&path)?);
        // Files of others, some of them broken on purpose.
        let _ = guard::catch(|| seeds.chunks(&bytes));
    }
    // What failed once, as it is.
    for target in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("found"))? {
        let target = target?;
        for input in fs::read_dir(target.path())? {
            let name = target.file_name();
            seeds.write(name.to_str().expect("the name of a target"), &fs::read(input?.path())?)?;
        }
    }
    println!("{} kinds of pages and chunks", seeds.kinds.len());
    Ok(())
}

fn walk(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, paths)?;
        } else if path.extension().is_some_and(|it| it == "parquet") {
            paths.push(path);
        }
    }
    Ok(())
}

struct Seeds {
    folder: PathBuf,
    kinds: BTreeMap<String, usize>,
}

impl Seeds {
    fn write(&mut self, target: &str, bytes: &[u8]) -> io::Result<()> {
        // FNV-1a: the same seed has the same name each time.
        let hash = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        fs::write(self.folder.join(target).join(format!("{hash:016x}")), bytes)
    }

    fn chunks(&mut self, file: &Bytes) -> parquet::errors::Result<()> {
        let metadata = ParquetMetaDataReader::new().parse_and_finish(file)?;
        for group in metadata.row_groups() {
            for column in group.columns() {
                self.chunk(file, column, group.num_rows())?;
            }
        }
        Ok(())
    }

    fn chunk(&mut self, file: &Bytes, column: &ColumnChunkMetaData, rows: i64) -> parquet::errors::Result<()> {
        let (start, length) = column.byte_range();
        if length as usize > LARGEST_CHUNK || start + length > file.len() as u64 {
            return Ok(());
        }
        let bytes = file.slice(start as usize..(start + length) as usize);
        let Some(data_type) = data_type(column) else { return Ok(()) };
        let descriptor = column.column_descr();
        // A nesting of as many levels; when none has, the levels are nonsense, which is a seed as well.
        let nesting = match (descriptor.max_def_level(), descriptor.max_rep_level()) {
            (0, 0) => 0,
            (1, 0) => 1,
            (_, 0) => 3,
            (1, 1) => 5,
            (_, 1) => 2,
            _ => 4,
        };
        let input = PageInput {
            data_type,
            nesting,
            values: column.num_values().clamp(0, 4096) as u16,
            rows: rows.clamp(0, 4096) as u16,
            ..PageInput::default()
        };
        if column.compression() == Compression::UNCOMPRESSED {
            let whole = PageInput { bodies: bytes.to_vec(), ..input.clone() };
            self.keep(
                "headers",
                format!("chunk {data_type} {nesting} {:?}", column.encodings().collect::<Vec<_>>()),
                &whole,
            )?;
        }
        self.pages(&bytes, column, &input)
    }

    /// One seed a data page: of its encoding's target, and of its codec's.
    fn pages(&mut self, chunk: &Bytes, column: &ColumnChunkMetaData, input: &PageInput) -> parquet::errors::Result<()> {
        use parquet::column::page::{Page, PageReader};
        use parquet::file::serialized_reader::SerializedPageReader;
        let moved = column.clone().into_builder().set_data_page_offset(0).set_dictionary_page_offset(None).build()?;
        let values = column.num_values() as usize;
        // As stored, to have the compressed bodies, and decompressed.
        let reader = |codec| {
            let moved = moved.clone().into_builder().set_compression(codec).build()?;
            SerializedPageReader::new(std::sync::Arc::new(chunk.clone()), &moved, values, None)
        };
        let mut dictionary: Option<(Vec<u8>, u32)> = None;
        let mut stored = reader(Compression::UNCOMPRESSED)?;
        for page in reader(column.compression())? {
            let page = page?;
            let raw = stored.get_next_page();
            if let Page::DictionaryPage { buf, num_values, .. } = &page {
                dictionary = Some((buf.to_vec(), *num_values));
                continue;
            }
            let mut input = PageInput { values: page.num_values().min(4096) as u16, ..input.clone() };
            if input.nesting < 2 || input.nesting == 3 {
                input.rows = input.values;
            }
            if let Page::DataPageV2 {
                num_nulls,
                num_rows,
                def_levels_byte_len,
                rep_levels_byte_len,
                is_compressed,
                ..
            } = &page
            {
                input.version_2 = true;
                input.rows = (*num_rows).min(4096) as u16;
                input.nulls = *num_nulls as u16;
                input.definition = *def_levels_byte_len as u16;
                input.repetition = *rep_levels_byte_len as u16;
                input.compressed = *is_compressed;
            }
            let body = page.buffer();
            input.plain = body.len() as u32;
            let (targets, nth): (&[&str], u8) = match page.encoding() {
                Encoding::PLAIN => (&["plain", "levels"], 0),
                Encoding::BYTE_STREAM_SPLIT => (&["plain"], 1),
                Encoding::RLE => (&["plain"], 2),
                Encoding::DELTA_BINARY_PACKED => (&["delta"], 0),
                Encoding::DELTA_LENGTH_BYTE_ARRAY => (&["delta"], 1),
                Encoding::DELTA_BYTE_ARRAY => (&["delta"], 2),
                Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => (&["dictionary"], 0),
                _ => continue,
            };
            let kind = format!("{} {} {:?} {}", input.data_type, input.nesting, page.encoding(), input.version_2);
            let mut plain = PageInput { encoding: nth, bodies: body.to_vec(), ..input.clone() };
            if targets == ["dictionary"] {
                let Some((entries, count)) = &dictionary else { continue };
                plain.dictionary_bytes = entries.len() as u16;
                plain.dictionary_entries = *count as u16;
                plain.bodies = [&entries[..], body].concat();
            }
            for target in targets {
                self.keep(target, kind.clone(), &plain)?;
            }
            let codec = match column.compression() {
                Compression::SNAPPY => "snappy",
                Compression::LZ4_RAW => "lz4",
                _ => continue,
            };
            if let Ok(Some(raw)) = raw {
                self.keep(codec, kind, &PageInput { bodies: raw.buffer().to_vec(), ..input })?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, target: &str, kind: String, input: &PageInput) -> parquet::errors::Result<()> {
        let count = self.kinds.entry(format!("{target} {kind}")).or_default();
        *count += 1;
        if *count <= OF_A_KIND && input.bodies.len() <= LARGEST_CHUNK {
            let input = PageInput { seed: *count as u8 % 4, ..input.clone() };
            self.write(target, &input.to_bytes())?;
        }
        Ok(())
    }
}

/// The place in [`types`](parquet_gpu_fuzz::types) of a column's type, or one of as many bytes.
fn data_type(column: &ColumnChunkMetaData) -> Option<u8> {
    let descriptor = column.column_descr();
    Some(match column.column_type() {
        Type::INT32 => 0,
        Type::INT64 => 1,
        Type::BYTE_ARRAY if descriptor.logical_type_ref().is_some() => 2,
        Type::BYTE_ARRAY => 3,
        Type::BOOLEAN => 4,
        Type::FLOAT => 5,
        Type::DOUBLE => 6,
        Type::FIXED_LEN_BYTE_ARRAY if descriptor.type_length() == 7 => 9,
        Type::FIXED_LEN_BYTE_ARRAY => 7,
        Type::INT96 => 8,
    })
}
