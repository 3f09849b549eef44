//! Plans of real files as reviewed text, and what must hold of every plan.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use parquet::arrow::ProjectionMask;
use parquet::basic::Compression;
use parquet_gpu::footer::Footer;
use parquet_gpu::io::Source;
use parquet_gpu::plan::{self, Context, EDGE, Route, ScanPlan, Selection};
use parquet_gpu::{CompatMode, IoOptions, ReadOptions, decode, decompress};

fn footer(path: &Path) -> Footer {
    Footer::read(&Arc::new(Source::open(path.to_str().unwrap()).unwrap())).unwrap()
}

fn context(gpu: bool) -> Context<'static> {
    let (codecs, encodings) = (decompress::GPU_CODECS, decode::GPU_ENCODINGS);
    static HOST: LazyLock<Vec<Compression>> = LazyLock::new(decompress::host::codecs);
    Context { local: true, gpu, codecs, host_codecs: &HOST, encodings, memory: 1 << 30 }
}

fn plan(footer: &Footer, options: &ReadOptions, context: &Context<'_>) -> ScanPlan {
    let selection = Selection { projection: ProjectionMask::all(), row_groups: None, rows: None };
    ScanPlan::new(footer, &selection, options, context).unwrap()
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

fn corpus() -> Option<PathBuf> {
    let root = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from);
    if root.is_none() {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
    }
    root
}

/// Files of others: row groups, nested, tiny pages, large chunks, codecs of the CPU, an index, no rows, a footer to repair.
const REAL: [&str; 13] = [
    "apache+parquet-testing/data/alltypes_plain.snappy.parquet",
    "apache+parquet-testing/data/alltypes_tiny_pages.parquet",
    "apache+parquet-testing/data/nested_structs.rust.parquet",
    "apache+parquet-testing/data/delta_byte_array.parquet",
    "apache+parquet-testing/data/byte_stream_split.zstd.parquet",
    "apache+parquet-testing/data/datapage_v2.snappy.parquet",
    "apache+parquet-testing/data/int32_with_null_pages.parquet",
    "apache+parquet-testing/data/nation.dict-malformed.parquet",
    "apache+parquet-testing/data/lz4_raw_compressed_larger.parquet",
    "apache+parquet-testing/data/fixed_length_decimal.parquet",
    "duckdb+duckdb/data/parquet-testing/userdata1.parquet",
    "duckdb+duckdb/data/parquet-testing/bug1554.parquet",
    "hyparam+hyparquet/test/files/strings.parquet",
];

#[test]
fn plans_of_real_files() {
    let Some(root) = corpus() else { return };
    for path in REAL {
        let plan = plan(&footer(&root.join(path)), &ReadOptions::default(), &context(true));
        let name = Path::new(path).file_stem().unwrap().to_str().unwrap().replace('.', "_");
        insta::assert_snapshot!(name, plan.to_string());
    }
}

#[test]
fn plans_of_our_files() {
    let groups = footer(&testdata("row_groups.parquet"));
    insta::assert_snapshot!("merged", plan(&groups, &ReadOptions::default(), &context(true)).to_string());
    let apart = ReadOptions::default().with_io(IoOptions::default().with_merge(0, 0)).with_batch_rows(100);
    insta::assert_snapshot!("apart", plan(&groups, &apart, &context(true)).to_string());
    let on = ReadOptions::default().with_io(IoOptions::default().with_compat_mode(CompatMode::On));
    insta::assert_snapshot!("compat_on", plan(&groups, &on, &context(true)).to_string());
    insta::assert_snapshot!("cpu_device", plan(&groups, &on, &context(false)).to_string());
    let some = ProjectionMask::columns(groups.metadata().file_metadata().schema_descr(), ["order", "note"]);
    let some = Selection { projection: some, row_groups: Some(vec![40, 3, 4]), rows: None };
    insta::assert_snapshot!("projection", ScanPlan::new(&groups, &some, &apart, &context(true)).unwrap().to_string());
    let tasks = ReadOptions::default().with_io(IoOptions::default().with_task_size(8 << 10));
    insta::assert_snapshot!("tasks", plan(&groups, &tasks, &context(true)).to_string());
    let nested = footer(&testdata("nested.parquet"));
    insta::assert_snapshot!("nested", plan(&nested, &ReadOptions::default(), &context(true)).to_string());
}

#[test]
fn a_selection_is_kept_and_what_is_not_there_is_refused() {
    let groups = footer(&testdata("row_groups.parquet"));
    let schema = groups.metadata().file_metadata().schema_descr();
    let mut selection = Selection {
        projection: ProjectionMask::columns(schema, ["note"]),
        row_groups: Some(vec![7, 2, 2]),
        rows: None,
    };
    let plan = ScanPlan::new(&groups, &selection, &ReadOptions::default(), &context(true)).unwrap();
    assert_eq!(plan.leaves, [7]);
    assert_eq!(plan.batches[0].row_groups.iter().map(|it| it.index).collect::<Vec<_>>(), [7, 2, 2]);
    selection.row_groups = Some(vec![50]);
    let error = ScanPlan::new(&groups, &selection, &ReadOptions::default(), &context(true)).unwrap_err();
    assert_eq!(error.kind(), "argument");
    let small = Context { memory: 1000, ..context(true) };
    let selection = Selection { projection: ProjectionMask::all(), row_groups: None, rows: None };
    let error = ScanPlan::new(&groups, &selection, &ReadOptions::default(), &small).unwrap_err();
    assert_eq!(error.kind(), "budget");
}

#[test]
fn a_gibibyte_is_256_operations() {
    let range = plan::raw(1 << 30, &ReadOptions::default(), &context(true));
    assert_eq!((range.route, range.wasted, range.tasks.len()), (Route::Direct, 0, 256));
    assert!(range.tasks.iter().all(|it| it.start % (4 << 20) == 0));
}

/// Two of eight columns lie far apart: to merge them takes more slab than they need, and a budget may forbid it.
#[test]
fn gaps_are_counted_and_never_read_beyond_the_budget() {
    let groups = footer(&testdata("row_groups.parquet"));
    let projection = ProjectionMask::columns(groups.metadata().file_metadata().schema_descr(), ["id", "note"]);
    let selection = Selection { projection, row_groups: Some(vec![0, 49]), rows: None };
    let io = IoOptions::default().with_merge(1 << 20, 1 << 20).with_compat_mode(CompatMode::On);
    let options = ReadOptions::default().with_io(io);
    let planned = |memory| ScanPlan::new(&groups, &selection, &options, &Context { memory, ..context(true) }).unwrap();
    let merged = planned(1 << 30);
    let [batch] = &merged.batches[..] else { panic!("{merged}") };
    assert_eq!(batch.ranges.len(), 1);
    assert!(batch.memory > batch.slab_bytes);
    let tight = planned(batch.memory - 1);
    assert_eq!(tight.batches.len(), 1);
    assert!(tight.batches[0].ranges.len() > 1);
    assert!(tight.batches[0].memory < batch.memory && tight.batches[0].slab_bytes < batch.slab_bytes);
}

/// What must hold of every plan of every file.
#[test]
fn every_plan_reads_each_chunk_once_to_its_place() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(testdata("")).unwrap().map(|it| it.unwrap().path()).collect();
    if let Some(root) = corpus() {
        files.extend(REAL.map(|it| root.join(it)));
    }
    let mut plans = 0;
    for path in files.iter().filter(|it| it.extension().is_some_and(|it| it == "parquet")) {
        let source = Arc::new(Source::open(path.to_str().unwrap()).unwrap());
        let Ok(footer) = Footer::read(&source) else { continue };
        for (threshold, task, gap) in
            [(0, 4096, 0), (1 << 14, 4 << 20, 64 << 10), (1 << 14, 5000, 100), (1 << 40, 1, 1 << 20)]
        {
            let io = IoOptions::default().with_gds_threshold(threshold).with_task_size(task).with_merge(gap, gap);
            let options = ReadOptions::default().with_io(io);
            for gpu in [true, false] {
                let context = context(gpu);
                check(&footer, &plan(&footer, &options, &context), &options, context.memory);
                plans += 1;
            }
        }
    }
    assert!(plans > 100, "{plans}");
}

fn check(footer: &Footer, plan: &ScanPlan, options: &ReadOptions, memory: u64) {
    for batch in &plan.batches {
        assert!(batch.slab_bytes <= batch.memory && batch.memory <= memory);
        let mut placed: Vec<(u64, u64)> = Vec::new();
        for range in &batch.ranges {
            let length = range.read.end - range.read.start;
            assert!(range.read.start <= range.bytes.start && range.bytes.end <= range.read.end);
            assert!(range.read.end <= footer.file_bytes);
            let mut at = range.read.start;
            for task in &range.tasks {
                assert_eq!(task.start, at);
                assert!(task.end > task.start && task.end - task.start <= options.io.task_size.max(1));
                at = task.end;
            }
            assert_eq!(at, range.read.end);
            if range.route == Route::Direct {
                assert_eq!(range.read.start % EDGE, 0);
                assert!(range.read.end % EDGE == 0 || range.read.end == footer.file_bytes);
            }
            if let Some(offset) = range.slab_offset {
                placed.push((offset, offset + length));
                assert!(offset + length <= batch.slab_bytes);
                if length >= options.io.gds_threshold {
                    assert_eq!(offset % EDGE, range.read.start % EDGE);
                }
            }
        }
        // Those that the CPU decompresses are read into host memory, and have places of their own besides.
        for chunk in batch.chunks.iter().filter(|it| it.host_codec.is_some()) {
            let offset = chunk.slab_offset.unwrap();
            let end = offset + (chunk.bytes.end - chunk.bytes.start);
            assert!(chunk.on_cpu.is_none() && end <= batch.slab_bytes);
            placed.push((offset, end));
        }
        placed.sort_unstable();
        assert!(placed.windows(2).all(|it| it[0].1 <= it[1].0), "{placed:?}");

        let mut asked = 0;
        for chunk in batch.chunks.iter().filter(|it| !it.bytes.is_empty()) {
            asked += chunk.bytes.end - chunk.bytes.start;
            let holders: Vec<_> = batch
                .ranges
                .iter()
                .filter(|it| it.bytes.start <= chunk.bytes.start && chunk.bytes.end <= it.bytes.end)
                .filter(|it| it.slab_offset.is_some() == (chunk.slab_offset.is_some() && chunk.host_codec.is_none()))
                .collect();
            let [range] = holders[..] else { panic!("{} ranges hold a chunk", holders.len()) };
            if let (Some(range_at), Some(chunk_at)) = (range.slab_offset, chunk.slab_offset) {
                assert_eq!(chunk_at - range_at, chunk.bytes.start - range.read.start);
            }
        }
        let read: u64 = batch.ranges.iter().map(|it| it.read.end - it.read.start).sum();
        let wasted: u64 = batch.ranges.iter().map(|it| it.wasted).sum();
        assert_eq!(read, asked + wasted);
    }
}
