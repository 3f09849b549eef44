//! Files that others wrote, whole or broken: each has its expected outcome, on every device.
//!
//! `PARQUET_GPU_CORPUS` names the corpus; without it the tests say that they skipped. `PARQUET_GPU_BLESS=1` writes the
//! outcomes of the CPU and the emulated device to `tests/corpus.tsv` instead of comparing.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet_gpu::device::DeviceChoice;
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, Result, StringType, io::Source};

const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus.tsv");

/// What one file came to: `reads` (and equals arrow-rs), an error's kind, or what went wrong.
fn outcome(path: &Path, device: &Device, options: &ReadOptions) -> String {
    match scan(path, device, options) {
        Ok(outcome) => outcome,
        Err(error) => error.kind().into(),
    }
}

fn scan(path: &Path, device: &Device, options: &ReadOptions) -> Result<String> {
    let source = Arc::new(Source::open(path.to_str().unwrap())?);
    let options = options.clone().with_memory(1 << 30);
    let builder = GpuReaderBuilder::try_new(source.clone(), device.clone())?.with_options(options.clone());
    let footer = builder.footer().with_types(&options)?;
    let mut reader = builder.build()?;
    let mut verifier = Verifier::new(source, &footer, &ProjectionMask::all(), None, None)?;
    while let Some(batch) = reader.next() {
        match verifier.check(&batch?) {
            Ok(None) => (),
            Ok(Some(difference)) => return Ok(format!("differs: {difference}")),
            Err(error) => {
                // arrow-rs reads ahead: it may have met what the scan has still to come to.
                return match reader.find_map(Result::err) {
                    Some(error) => Err(error),
                    None => Ok(format!("reads, but arrow-rs says {}", error.kind())),
                };
            }
        }
    }
    Ok(match verifier.finish() {
        Ok(None) => "reads".into(),
        Ok(Some(difference)) => format!("differs: {difference}"),
        Err(error) => format!("reads, but arrow-rs says {}", error.kind()),
    })
}

fn corpus() -> Option<(PathBuf, Vec<String>)> {
    let Some(root) = std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) else {
        println!("skipped: PARQUET_GPU_CORPUS is not set");
        return None;
    };
    let index = std::fs::read_to_string(root.join("INDEX.tsv")).unwrap();
    let path = |line: &str| {
        let mut fields = line.split('\t');
        format!("{}/{}", fields.next().unwrap().replace('/', "+"), fields.next().unwrap())
    };
    Some((root, index.lines().skip(1).map(path).collect()))
}

/// Expected outcomes by device and file.
fn expected() -> BTreeMap<(String, String), String> {
    let text = std::fs::read_to_string(EXPECTED).unwrap_or_default();
    let mut expected = BTreeMap::new();
    for line in text.lines().skip(1) {
        let [path, cpu, kernels] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        expected.insert(("cpu".into(), path.into()), cpu.into());
        expected.insert(("kernels".into(), path.into()), kernels.into());
    }
    expected
}

/// Held in common by tests that watch the peak of the process, alone by one in which arrow-rs takes much more.
static MEMORY: RwLock<()> = RwLock::new(());

/// The most resident memory since the process began or since [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Linux's way, as root or owner; where it is not allowed the peak stays what it was.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// `column` is the one in the list of expected outcomes.
fn run(device: &Device, column: &str) {
    let options = ReadOptions::default();
    let Some((root, paths)) = corpus() else { return };
    let _watched = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    let before = peak_bytes();
    let outcomes: Vec<_> = paths.iter().map(|path| (path, outcome(&root.join(path), device, &options))).collect();
    let count = |wanted: &str| outcomes.iter().filter(|(_, outcome)| outcome == wanted).count();
    println!("{}: {} files, {} read and equal arrow-rs", device.name(), outcomes.len(), count("reads"));

    if std::env::var_os("PARQUET_GPU_BLESS").is_some() {
        let mut all = expected();
        for (path, outcome) in &outcomes {
            all.insert((column.into(), path.to_string()), outcome.clone());
        }
        let mut text = "path\tcpu\tkernels\n".to_string();
        for path in &paths {
            let of = |column: &str| all.get(&(column.into(), path.clone())).map_or("", String::as_str).to_string();
            writeln!(text, "{path}\t{}\t{}", of("cpu"), of("kernels")).unwrap();
        }
        std::fs::write(EXPECTED, text).unwrap();
        return;
    }
    let expected = expected();
    let wrong = outcomes.iter().filter_map(|(path, outcome)| {
        let wanted = expected.get(&(column.into(), path.to_string())).map_or("not listed", String::as_str);
        (wanted != outcome).then(|| format!("{path}: {outcome}, expected {wanted}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}:\n{}", device.name(), wrong.join("\n"));

    // A good file after all the bad ones.
    let good = paths.iter().find(|path| path.ends_with("data/alltypes_plain.snappy.parquet")).unwrap();
    assert_eq!(outcome(&root.join(good), device, &options), "reads");
    let peak = peak_bytes();
    assert!(peak <= before.max(2 << 30), "{peak} bytes at the peak, {before} before");
}

#[test]
fn on_the_cpu() {
    run(&Device::Cpu, "cpu");
}

#[cfg(feature = "emulated")]
#[test]
fn on_the_emulated_device() {
    run(&Device::open(DeviceChoice::Emulated(1)).unwrap(), "kernels");
}

/// With other Arrow types the outcomes are the same, and values equal those that arrow-rs makes of these types.
#[cfg(feature = "emulated")]
#[test]
fn in_the_types_of_options() {
    let Some((root, paths)) = corpus() else { return };
    let _watched = MEMORY.read().unwrap_or_else(PoisonError::into_inner);
    let device = Device::open(DeviceChoice::Emulated(3)).unwrap();
    let options = ReadOptions::default().with_narrow_decimals(true).with_dictionaries(true);
    let options = options.with_string_type(StringType::View);
    let expected = expected();
    for path in &paths {
        let outcome = outcome(&root.join(path), &device, &options);
        assert_eq!(Some(&outcome), expected.get(&("kernels".into(), path.clone())), "{path}");
    }
}

#[test]
fn on_the_gpu() {
    match Device::open(DeviceChoice::Cuda(0)) {
        Ok(device) => run(&device, "kernels"),
        Err(error) if std::env::var("PARQUET_GPU_REQUIRE_GPU").is_ok_and(|it| it == "1") => {
            panic!("PARQUET_GPU_REQUIRE_GPU is set, and there is no GPU: {error}")
        }
        Err(error) => println!("skipped on cuda:0: {error}"),
    }
}

/// Files that the `parquet` crate refuses and pyarrow, DuckDB or Polars read, with what they come to here, and why.
#[cfg(feature = "emulated")]
#[test]
fn files_that_arrow_rs_refuses_and_others_read() {
    let Some((root, _)) = corpus() else { return };
    let _alone = MEMORY.write().unwrap_or_else(PoisonError::into_inner);
    let list = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/refused.tsv")).unwrap();
    let device = Device::open(DeviceChoice::Emulated(2)).unwrap();
    let mut read = 0;
    for line in list.lines().skip(1) {
        let [path, _, expected, _] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let file = std::fs::File::open(root.join(path)).unwrap();
        let theirs = ParquetRecordBatchReaderBuilder::try_new(file)
            .and_then(|it| Ok(it.build()?.collect::<Result<Vec<_>, _>>()?));
        assert!(theirs.is_err(), "arrow-rs reads {path} now");
        assert_eq!(outcome(&root.join(path), &device, &ReadOptions::default()), expected, "{path}");
        read += usize::from(expected == "reads");
    }
    forget_peak();
    println!("{} files that arrow-rs refuses, {read} of which are read", list.lines().count() - 1);
}

/// The list itself: what this project promises of it.
#[test]
fn the_list_is_whole() {
    let expected = expected();
    let reads = |column: &str| {
        expected.iter().filter(|((it, _), outcome)| it == column && outcome.starts_with("reads")).count()
    };
    assert_eq!(expected.len(), 2 * 918);
    assert!(reads("cpu") >= 690, "{} on the CPU", reads("cpu"));
    assert!(reads("kernels") >= 690, "{} by kernels", reads("kernels"));
    let differs: Vec<_> = expected.iter().filter(|(_, outcome)| outcome.starts_with("differs")).collect();
    assert!(differs.is_empty(), "{differs:?}");
}
