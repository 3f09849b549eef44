//! The README's tables of what is read where: made from the code, each row with a test that proves it.
//!
//! `PARQUET_GPU_BLESS=1` writes them into the README instead of comparing.
#![allow(clippy::unwrap_used)]

#[path = "generate/logical.rs"]
mod logical;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, Encoding, GzipLevel, Type, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet_gpu::decode::{GPU_ENCODINGS, unsupported};
use parquet_gpu::decompress::{GPU_CODECS, host, nvcomp};
use parquet_gpu::footer::{Footer, Leaf, LeafDecode};
use parquet_gpu::io::Source;
use parquet_gpu::kernels::abi::{PageHeader, encoding, page_kind};

const BEGIN: &str = "<!-- support: made by tests/support.rs -->\n";
const END: &str = "<!-- end of support -->\n";

/// The leaves of a file without rows that has these columns.
fn leaves(fields: &[String]) -> Vec<Leaf> {
    let schema = format!("message m {{ {}; }}", fields.join("; "));
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut bytes = Vec::new();
    let properties = Arc::new(WriterProperties::builder().build());
    SerializedFileWriter::new(&mut bytes, schema, properties).unwrap().close().unwrap();
    let source = Arc::new(Source::from_bytes("types", bytes.into()));
    Footer::read(&source).unwrap().leaves.to_vec()
}

/// A test as `file::name`, which must be there.
fn test(path: &str) -> String {
    let (file, name) = path.split_once("::").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let text = [format!("{file}.rs"), format!("{file}/main.rs")].iter().find_map(|it| {
        let path: PathBuf = folder.join(it);
        std::fs::read_to_string(path).ok()
    });
    let text = text.unwrap_or_else(|| panic!("{path}: there is no such file"));
    let is_there = text.match_indices(&format!("fn {name}()")).any(|(at, _)| {
        let before = text[..at].trim_end();
        before.ends_with("#[test]")
    });
    assert!(is_there, "{path}: there is no such test");
    format!("`{path}`")
}

/// How kernels and arrow-rs share a cell.
fn cell(is_read: bool, by_kernels: bool) -> &'static str {
    match (is_read, by_kernels) {
        (false, _) => "",
        (true, true) => "GPU",
        (true, false) => "CPU",
    }
}

/// Encodings of data pages, their number in parquet.thrift, and the physical types for which arrow-rs reads them.
fn encodings() -> String {
    use Encoding::*;
    use Type::*;
    let all = [BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY];
    let rows: [(Encoding, u8, &[Type], &str); 8] = [
        (PLAIN, encoding::PLAIN, &all, "decode/files::every_flat_type_in_every_kind_of_page"),
        (
            PLAIN_DICTIONARY,
            encoding::PLAIN_DICTIONARY,
            &all[1..],
            "decode/pages::dictionaries_of_no_one_and_many_entries",
        ),
        (
            RLE_DICTIONARY,
            encoding::RLE_DICTIONARY,
            &all[1..],
            "decode/files::a_dictionary_that_grows_too_large_falls_back_to_plain_within_the_chunk",
        ),
        (RLE, encoding::RLE, &[BOOLEAN], "decode/files::run_length_encoded_booleans"),
        (DELTA_BINARY_PACKED, 5, &[INT32, INT64], "cross/generated::written_by_arrow_rs"),
        (DELTA_LENGTH_BYTE_ARRAY, 6, &[BYTE_ARRAY], "cross/generated::written_by_arrow_rs"),
        (DELTA_BYTE_ARRAY, 7, &[BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY], "cross/generated::written_by_arrow_rs"),
        (
            BYTE_STREAM_SPLIT,
            9,
            &[INT32, INT64, FLOAT, DOUBLE, FIXED_LEN_BYTE_ARRAY],
            "cross/generated::written_by_arrow_rs",
        ),
    ];
    let physical = ["boolean", "int32", "int64", "int96", "float", "double", "binary", "fixed_len_byte_array(5)"];
    let leaves = leaves(&physical.map(|it| logical::field("required", &it[..3], it)));
    let mut table =
        "| encoding | BOOLEAN | INT32 | INT64 | INT96 | FLOAT | DOUBLE | BYTE_ARRAY | FIXED_LEN_BYTE_ARRAY | test |\n\
                     |---|---|---|---|---|---|---|---|---|---|\n"
            .to_string();
    for (name, number, types, proof) in rows {
        write!(table, "| {name} ").unwrap();
        for (leaf, physical) in leaves.iter().zip(all) {
            assert_eq!(leaf.physical, physical);
            let header = PageHeader { kind: page_kind::DATA_V1, encoding: number, num_values: 1, ..Default::default() };
            let by_kernels = GPU_ENCODINGS.contains(&name) && unsupported(leaf, &header).is_none();
            write!(table, "| {} ", cell(types.contains(&physical), by_kernels)).unwrap();
        }
        writeln!(table, "| {} |", test(proof)).unwrap();
    }
    table
}

fn codecs() -> String {
    let rows = [
        (Compression::UNCOMPRESSED, "types/logical::every_logical_type"),
        (Compression::SNAPPY, "snappy::equals_what_was_compressed"),
        (Compression::LZ4_RAW, "lz4::equals_what_was_compressed"),
        (Compression::ZSTD(ZstdLevel::default()), "codecs::every_codec_in_both_kinds_of_page"),
        (Compression::GZIP(GzipLevel::default()), "codecs::every_codec_in_both_kinds_of_page"),
        (Compression::LZ4, "codecs::every_codec_in_both_kinds_of_page"),
        (Compression::BROTLI(BrotliLevel::default()), "codecs::every_codec_in_both_kinds_of_page"),
    ];
    let name = |codec: &Compression| codec.to_string().split('(').next().unwrap().to_string();
    let (kernels, host): (BTreeSet<_>, BTreeSet<_>) =
        (GPU_CODECS.iter().map(name).collect(), host::codecs().iter().map(name).collect());
    let nvcomp: BTreeSet<_> = nvcomp::codecs().iter().map(name).collect();
    let mut table = "| codec | decompressed on the | test |\n|---|---|---|\n".to_string();
    for (codec, proof) in rows {
        let codec = name(&codec);
        assert!(kernels.contains(&codec) || host.contains(&codec), "{codec}");
        let place = match nvcomp.contains(&codec) {
            true => "GPU with nvCOMP, else CPU",
            false => cell(true, kernels.contains(&codec)),
        };
        writeln!(table, "| {codec} | {place} | {} |", test(proof)).unwrap();
    }
    for codec in kernels.union(&host) {
        assert!(table.contains(&format!("| {codec} |")), "no row for {codec}");
    }
    table
}

fn types() -> String {
    let mut table = "| Parquet type | Arrow type | decoded on the | test |\n|---|---|---|---|\n".to_string();
    let proof = test("types/logical::every_logical_type");
    let mut rows: Vec<(String, String, &str)> = Vec::new();
    for data_type in logical::TYPES {
        let leaf = &leaves(&[logical::field("optional", "a", data_type)])[0];
        let by_kernels = cell(true, !matches!(leaf.decode, LeafDecode::Cpu(_)));
        let (parquet, arrow) = (format!("`{data_type}`"), leaf.data_type.to_string());
        match rows.iter_mut().find(|(_, other, by)| *other == arrow && *by == by_kernels) {
            Some((all, ..)) => write!(all, ", {parquet}").unwrap(),
            None => rows.push((parquet, arrow, by_kernels)),
        }
    }
    for (parquet, arrow, by_kernels) in rows {
        writeln!(table, "| {parquet} | {arrow} | {by_kernels} | {proof} |").unwrap();
    }
    let others = [
        (
            "what an `ARROW:schema` asks for: widths, units, time zones",
            "as asked",
            "types/logical::every_type_that_an_arrow_schema_asks_for",
        ),
        ("`ARROW:schema` of a dictionary", "Dictionary", "types/dictionaries::dictionaries_of_every_type"),
        (
            "groups, lists, maps, repeated fields",
            "Struct, List, LargeList, FixedSizeList, Map",
            "cross/fixed::every_shape_over_row_groups",
        ),
        ("VARIANT", "as its storage", "corpus::on_the_emulated_device"),
        ("strings, with `--strings`", "Utf8, LargeUtf8, Utf8View", "types/options::strings_of_each_type"),
        ("decimals, with `--decimals narrow`", "Decimal32, Decimal64, Decimal128", "types/options::narrow_decimals"),
        ("strings, with `--dictionaries`", "Dictionary(Int32, Utf8)", "types/options::dictionaries_are_kept"),
    ];
    for (parquet, arrow, proof) in others {
        writeln!(table, "| {parquet} | {arrow} | GPU | {} |", test(proof)).unwrap();
    }
    table
}

#[test]
fn the_readme_says_what_is_read_where() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = readme.split_once(BEGIN).expect("the README has a place for the tables");
    let (found, after) = rest.split_once(END).expect("the tables have an end");
    let expected = format!("\n{}\n{}\n{}\n", encodings(), codecs(), types());
    if std::env::var("PARQUET_GPU_BLESS").is_ok_and(|it| it == "1") {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert!(found == expected, "PARQUET_GPU_BLESS=1 writes it; the README should have:\n{expected}");
}
