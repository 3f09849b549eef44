//! Footers: what arrow-rs parses is parsed, what it refuses or panics on is an error.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet_gpu::footer::{Field, Footer, LeafDecode, ListKind};
use parquet_gpu::io::Source;
use parquet_gpu::{Device, GpuReaderBuilder};

fn read(path: &Path) -> parquet_gpu::Result<Footer> {
    Footer::read(&Arc::new(Source::open(path.to_str().unwrap())?))
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

#[test]
fn the_corpus_parses_where_arrow_rs_parses_it() {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return;
    };
    let index = std::fs::read_to_string(root.join("INDEX.tsv")).unwrap();
    let (mut parsed, mut repaired, mut refused, mut panics) = (0, 0, 0, 0);
    for line in index.lines().skip(1) {
        let mut fields = line.split('\t');
        let path = root.join(fields.next().unwrap().replace('/', "+")).join(fields.next().unwrap());
        let ours = read(&path);
        let file = File::open(&path).unwrap();
        let theirs = catch_unwind(AssertUnwindSafe(|| ArrowReaderMetadata::load(&file, Default::default())));
        match (&ours, theirs) {
            (Ok(footer), Ok(Ok(metadata))) => {
                assert_eq!(footer.schema(), metadata.schema(), "{path:?}");
                assert_eq!(footer.leaves.len(), metadata.parquet_schema().num_columns(), "{path:?}");
                parsed += 1;
            }
            (Ok(footer), Ok(Err(_))) if !footer.repaired.is_empty() => repaired += 1,
            (Err(_), Ok(Err(_))) => refused += 1,
            (Err(error), Err(_)) => {
                assert_eq!(error.kind(), "corrupt", "{path:?}: {error}");
                panics += 1;
            }
            (ours, theirs) => panic!("{path:?}: {:?}, arrow-rs {:?}", ours.is_ok(), theirs.map(|it| it.is_ok())),
        }
    }
    println!("{parsed} parsed, {repaired} after a repair, {refused} refused, {panics} panics of the parser");
    assert!(parsed >= 690 && repaired >= 5);
}

#[test]
fn encrypted_footers_are_named() {
    let mut bytes = std::fs::read(testdata("orders.parquet")).unwrap();
    let magic = bytes.len() - 4;
    bytes[magic..].copy_from_slice(b"PARE");
    let error = Footer::read(&Arc::new(Source::from_bytes("encrypted", bytes.into()))).unwrap_err();
    assert_eq!(error.kind(), "unsupported");
    assert!(error.to_string().contains("encrypted"), "{error}");
}

#[test]
fn a_footer_longer_than_the_speculative_tail_and_lengths_that_lie() {
    // A footer whose length is stated as more than the file has, as nothing, and as the largest number.
    let good = std::fs::read(testdata("orders.parquet")).unwrap();
    for length in [0u32, 8, good.len() as u32, u32::MAX] {
        let mut bytes = good.clone();
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        let error = Footer::read(&Arc::new(Source::from_bytes("lying", bytes.into()))).unwrap_err();
        assert_eq!(error.kind(), "corrupt", "{length}: {error}");
    }
    for cut in [0, 1, 7, 11, 12] {
        Footer::read(&Arc::new(Source::from_bytes("cut", good[..cut].to_vec().into()))).unwrap_err();
    }
    // 50 row groups of 8 columns need more than one read.
    let footer = read(&testdata("row_groups.parquet")).unwrap();
    assert_eq!(footer.metadata().num_row_groups(), 50);
}

#[test]
fn flat_and_nested_columns_are_for_kernels() {
    for file in ["types_v1_snappy.parquet", "nested.parquet"] {
        let footer = read(&testdata(file)).unwrap();
        assert!(footer.leaves.iter().all(|leaf| !matches!(leaf.decode, LeafDecode::Cpu(_))), "{:?}", footer.leaves);
        assert!(footer.fields.iter().all(Option::is_some));
    }
}

/// The field that arrow-rs and we make of a schema with one top-level field.
fn field(message: &str) -> Field {
    let schema = Arc::new(parse_message_type(&format!("message m {{ {message} }}")).unwrap());
    let mut file = Vec::new();
    let writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
    writer.close().unwrap();
    let source = Source::from_bytes("a test", file.into());
    let footer = Footer::read(&Arc::new(source)).unwrap();
    footer.fields[0].clone().expect("kernels decode it")
}

#[test]
fn trees_follow_the_format_s_rules_for_lists() {
    let list = |nullable, def, rep, element| {
        let element = Box::new(element);
        Field::List { kind: ListKind::Offsets(4), nullable, def, rep, element }
    };
    let group = |def, children| Field::Struct { def, children };
    use Field::Leaf;
    // Three levels, the standard; two, with a primitive, a struct and a tuple; and none, but repeated.
    let element = "optional int32 element;";
    assert_eq!(
        field(&format!("optional group a (LIST) {{ repeated group list {{ {element} }} }}")),
        list(true, 2, 1, Leaf(0))
    );
    assert_eq!(field("required group a (LIST) { repeated int32 element; }"), list(false, 1, 1, Leaf(0)));
    let pair = || group(None, vec![Leaf(0), Leaf(1)]);
    let two = "repeated group element { required int32 x; required int32 y; }";
    assert_eq!(field(&format!("optional group a (LIST) {{ {two} }}")), list(true, 2, 1, pair()));
    let one = "repeated group array { required int32 x; }";
    assert_eq!(field(&format!("optional group a (LIST) {{ {one} }}")), list(true, 2, 1, group(None, vec![Leaf(0)])));
    let tuple = "repeated group a_tuple { required int32 x; }";
    assert_eq!(field(&format!("optional group a (LIST) {{ {tuple} }}")), list(true, 2, 1, group(None, vec![Leaf(0)])));
    assert_eq!(field("repeated int32 a;"), list(false, 1, 1, Leaf(0)));
    assert_eq!(field(&format!("repeated group a {{ {element} }}")), list(false, 1, 1, group(None, vec![Leaf(0)])));
    // Lists of lists.
    let inner = "required group element (LIST) { repeated group list { required int32 element; } }";
    let outer = format!("required group a (LIST) {{ repeated group list {{ {inner} }} }}");
    assert_eq!(field(&outer), list(false, 1, 1, list(false, 2, 2, Leaf(0))));
    // Maps, and maps without values.
    let entries = "repeated group key_value { required binary key (UTF8); optional int32 value; }";
    assert_eq!(field(&format!("optional group a (MAP) {{ {entries} }}")), list(true, 2, 1, pair()));
    let keys = "repeated group key_value { required binary key (UTF8); }";
    assert_eq!(field(&format!("required group a (MAP) {{ {keys} }}")), list(false, 1, 1, Leaf(0)));
    // Structs, with a group of no fields in one.
    let deep = "optional group b { optional int32 c; } required group d { required int32 e; }";
    let tree = group(Some(1), vec![group(Some(2), vec![Leaf(0)]), group(None, vec![Leaf(1)])]);
    assert_eq!(field(&format!("optional group a {{ {deep} }}")), tree);
}

#[test]
fn a_tree_is_cut_to_a_projection() {
    let tree = field("optional group a { optional group b { optional int32 c; } required int32 d; optional int32 e; }");
    let cut = tree.select(&|leaf| [None, Some(0), Some(1)][leaf]).unwrap();
    assert_eq!(cut, Field::Struct { def: Some(1), children: vec![Field::Leaf(0), Field::Leaf(1)] });
    assert_eq!(cut.leaves(), [0, 1]);
    assert_eq!(tree.select(&|_| None), None);
}

#[test]
fn encrypted_columns_are_named_and_the_others_are_read() {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return;
    };
    let path = root.join("apache+parquet-testing/data/encrypt_columns_plaintext_footer.parquet.encrypted");
    let footer = read(&path).unwrap();
    let encrypted: Vec<&str> =
        footer.encryption.certain.iter().map(|(_, leaf)| footer.leaves[*leaf].path.as_str()).collect();
    assert_eq!(encrypted, ["float_field", "double_field"]);

    let open = || GpuReaderBuilder::try_new(Arc::new(Source::open(path.to_str().unwrap()).unwrap()), Device::Cpu);
    let error = open().unwrap().build().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), "unsupported");
    assert!(error.to_string().contains("float_field") && error.to_string().contains("encrypted"), "{error}");
    let schema = footer.metadata().file_metadata().schema_descr();
    let plain = ProjectionMask::columns(schema, ["boolean_field", "int32_field"]);
    let batches: Vec<_> = open().unwrap().with_projection(plain).build().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(batches.iter().map(|it| it.num_rows()).sum::<usize>(), 50);
}
