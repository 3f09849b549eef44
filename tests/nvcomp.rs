//! nvCOMP: its symbol table against every version that `PARQUET_GPU_NVCOMP_LIBRARY` names, its use against a stand-in on
//! the emulated device, and both together on a GPU.
#![allow(clippy::unwrap_used)]

mod devices;
mod generate;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use bytes::Bytes;
use generate::Random;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet_gpu::io::Source;
use parquet_gpu::sys::nvcomp::{Codec, LIBRARY_VARIABLE, NvComp};
use parquet_gpu::verify::Verifier;
use parquet_gpu::{Device, GpuReaderBuilder, ReadOptions, Result, ScanReport};

/// The stand-in with the functions of a major version; `None` where there is no C compiler.
fn fake(folder: &Path, major: u32) -> Option<PathBuf> {
    let (source, library) = (folder.join("libnvcomp.c"), folder.join(format!("libnvcomp.so.{major}")));
    std::fs::write(&source, include_str!("fakes/libnvcomp.c")).unwrap();
    let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"];
    match Command::new("cc").args(flags).arg(format!("-DMAJOR={major}")).arg("-o").args([&library, &source]).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            println!("skipped: no C compiler `cc`: {error}");
            None
        }
    }
}

fn verify(file: &Bytes, device: &Device, options: ReadOptions) -> Result<ScanReport> {
    let source = Arc::new(Source::from_bytes("a file", file.clone()));
    let builder = GpuReaderBuilder::try_new(source.clone(), device.clone())?.with_options(options);
    let mut verifier = Verifier::new(source, builder.footer(), &ProjectionMask::all(), None, None)?;
    let mut reader = builder.build()?;
    for batch in &mut reader {
        assert_eq!(verifier.check(&batch?)?.map(|it| it.to_string()), None);
    }
    assert_eq!(verifier.finish()?.map(|it| it.to_string()), None);
    Ok(reader.report())
}

/// Three columns in three row groups of some pages each.
fn file(random: &mut Random, codec: Compression, version: WriterVersion) -> Bytes {
    let rows = 2_000;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("number", generate::array(random, &DataType::Int32, rows, 20, 50)),
        ("text", generate::array(random, &DataType::Utf8, rows, 10, 300)),
        ("nulls", generate::array(random, &DataType::Int64, rows, 100, 2)),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_encoding(Encoding::PLAIN)
        .set_data_page_row_count_limit(150)
        .set_write_batch_size(150)
        .set_max_row_group_row_count(Some(700))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap().into()
}

const CHUNKS: usize = 3 * 3;

#[cfg(feature = "emulated")]
fn emulated(seed: u64) -> Device {
    Device::open(parquet_gpu::device::DeviceChoice::Emulated(seed)).unwrap()
}

/// Stored GZIP is done by the stand-in, levels and alignments included; all else, which it refuses, by the CPU.
#[cfg(feature = "emulated")]
#[test]
fn every_version_s_functions_and_what_they_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(3);
    for major in [4, 5, 6] {
        let Some(library) = fake(folder.path(), major) else { return };
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let options = || ReadOptions::default().with_nvcomp_library(&library);
            let stored = file(&mut random, Compression::GZIP(GzipLevel::try_new(0).unwrap()), version);
            let report = verify(&stored, &emulated(1), options()).unwrap();
            assert!(report.decompressed_on_cpu.is_empty(), "{major}: {:?}", report.paths.reasons);
            assert!(report.columns_on_cpu.is_empty());

            for (codec, name, why) in [
                (Compression::GZIP(GzipLevel::try_new(9).unwrap()), "GZIP", "nvcompErrorCannotDecompress"),
                (Compression::ZSTD(ZstdLevel::default()), "ZSTD", "nvCOMP status 2139062143"), // 0x7f7f7f7f: none was given
            ] {
                let report = verify(&file(&mut random, codec, version), &emulated(2), options()).unwrap();
                assert!(report.columns_on_cpu.is_empty());
                // The texts; other pages may be stored, or have no values.
                assert!((3..=CHUNKS).contains(&report.decompressed_on_cpu[name]), "{major} {name}");
                let reason = format!("decompressed on the CPU: {name}, nvCOMP: {why}");
                assert!(report.paths.reasons.contains_key(&reason), "{:?}", report.paths.reasons);
            }
        }
    }
}

/// Whole files: a scan within a budget that has no room for nvCOMP's scratch memory uses the CPU instead.
#[cfg(feature = "emulated")]
#[test]
fn scratch_memory_counts_against_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = fake(folder.path(), 6) else { return };
    let options = ReadOptions::default().with_nvcomp_library(library);
    let file = file(&mut Random(4), Compression::GZIP(GzipLevel::try_new(0).unwrap()), WriterVersion::PARQUET_1_0);
    let roomy = verify(&file, &emulated(1), options.clone()).unwrap();
    let mut seen = 0;
    for memory in (roomy.peak_device_bytes / 2..roomy.peak_device_bytes).step_by(1 << 10) {
        match verify(&file, &emulated(1), options.clone().with_memory(memory)) {
            Ok(report) => {
                assert!(report.peak_device_bytes <= memory);
                seen += 1;
            }
            Err(error) => assert_eq!(error.kind(), "budget"),
        }
    }
    assert!(seen > 0);
}

#[test]
fn what_is_no_nvcomp_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().join("libnvcomp.so");
    let error = NvComp::find(Some(&nothing)).unwrap_err();
    assert_eq!(error.kind(), "library");
    assert!(error.to_string().contains(nothing.to_str().unwrap()), "{error}");
    let Some(library) = fake(folder.path(), 7) else { return };
    let error = NvComp::load(&library).unwrap_err();
    assert!(error.contains("nvCOMP 7 is not among"), "{error}");
}

/// The real library, as far as that goes without a GPU: it has what its version says, and its answers can be believed.
#[test]
fn the_library_s_symbols() {
    let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()) else {
        println!("skipped: {LIBRARY_VARIABLE} is not set");
        return;
    };
    let library = NvComp::load(Path::new(&path)).unwrap();
    println!("nvCOMP {} at {}", library.version_text(), library.path().display());
    assert!((4000..7000).contains(&library.version()) && !library.is_fake());
    for codec in [Codec::Zstd, Codec::Gzip] {
        let alignments = library.alignments(codec).unwrap();
        println!("{codec:?}: {alignments:?}");
        for it in [alignments.input, alignments.output, alignments.temporary] {
            assert!(it.is_power_of_two() && it <= 4096, "{alignments:?}");
        }
    }
}

/// On a GPU with nvCOMP nothing is decompressed on the CPU, and every value is right.
#[test]
fn on_the_gpu() {
    for gpu in devices::devices(1).into_iter().filter(|it| it.name() == "cuda:0") {
        let library = match NvComp::find(None) {
            Ok(library) => library,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        println!("nvCOMP {} at {}", library.version_text(), library.path().display());
        let mut random = Random(5);
        let device = Device::Gpu(gpu);
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for codec in [
                Compression::GZIP(GzipLevel::try_new(0).unwrap()),
                Compression::GZIP(GzipLevel::default()),
                Compression::ZSTD(ZstdLevel::default()),
                Compression::ZSTD(ZstdLevel::try_new(19).unwrap()),
            ] {
                let file = file(&mut random, codec, version);
                let report = verify(&file, &device, ReadOptions::default()).unwrap();
                assert!(report.decompressed_on_cpu.is_empty(), "{codec}: {:?}", report.paths.reasons);
                assert!(report.columns_on_cpu.is_empty());
            }
        }
    }
}
