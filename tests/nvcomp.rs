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

/// The real libraries, as far as that goes without a GPU: each has what its version says, and its answers can be believed.
#[test]
fn the_symbols_of_every_version() {
    let mut libraries: Vec<PathBuf> = Vec::new();
    libraries.extend(std::env::var_os(LIBRARY_VARIABLE).filter(|it| !it.is_empty()).map(PathBuf::from));
    if let Some(wheels) = std::env::var_os("PARQUET_GPU_NVCOMP_WHEELS").filter(|it| !it.is_empty()) {
        for version in std::fs::read_dir(wheels).unwrap() {
            for folder in ["nvidia/nvcomp", "nvidia/libnvcomp/lib64"] {
                let Ok(files) = std::fs::read_dir(version.as_ref().unwrap().path().join(folder)) else { continue };
                let files = files.map(|it| it.unwrap().path());
                libraries.extend(files.filter(|it| it.file_stem().is_some_and(|stem| stem == "libnvcomp.so")));
            }
        }
        assert!(libraries.len() >= 4, "{libraries:?}");
    }
    if libraries.is_empty() {
        println!("skipped: neither {LIBRARY_VARIABLE} nor PARQUET_GPU_NVCOMP_WHEELS is set");
    }
    for path in libraries {
        let library = NvComp::load(&path).unwrap();
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
}

/// Pages at any address, of which some are not for nvCOMP: the others of their table are done, and theirs refused.
#[cfg(feature = "emulated")]
#[test]
fn pages_that_are_refused_and_their_neighbours() {
    use parquet_gpu::decompress::nvcomp;
    use parquet_gpu::kernels::abi::{PageHeader, page_kind};
    use parquet_gpu::page::{ChunkInput, PageTable};
    let folder = tempfile::tempdir().unwrap();
    let gzip = |bytes: &[u8]| {
        let length = (bytes.len() as u16).to_le_bytes();
        let not = (!(bytes.len() as u16)).to_le_bytes();
        // A header, one stored block, and a trailer that the stand-in does not look at.
        [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1], &length[..], &not, bytes, &[0; 8]].concat()
    };
    // Levels, stored values, plain bytes that the header states.
    type Stored = (usize, Vec<u8>, usize);
    let whole = b"seventeen bytes..".to_vec();
    let two_members = [gzip(b"one"), gzip(b" and two")].concat();
    let chunks: Vec<(Compression, Vec<Stored>)> = vec![
        (gzip_codec(), vec![(0, gzip(&whole), 17), (0, gzip(b"a"), 1), (5, gzip(&whole), 17), (9, vec![], 0)]),
        (gzip_codec(), vec![(0, gzip(&whole), 17), (0, two_members, 11)]),
        (gzip_codec(), vec![(0, vec![0; 19], 4)]),
        (gzip_codec(), vec![(3, gzip(&whole), 18)]),
        (gzip_codec(), vec![(0, gzip(&whole), 16)]),
        (Compression::ZSTD(ZstdLevel::default()), vec![(0, vec![7; 40], 40)]),
        (gzip_codec(), vec![(1, gzip(b"last"), 4)]),
        (gzip_codec(), vec![(9, vec![], 0)]),
    ];
    let wanted_refusals = [
        (1, "nvCOMP: a page of another length than its header states"),
        (2, "a page is too short for nvCOMP"),
        (3, "nvCOMP: a page of another length than its header states"),
        (4, "nvCOMP: nvcompErrorOutputBufferTooSmall"),
        (5, "nvCOMP: nvCOMP status 2139062143"),
    ];
    let Device::Gpu(gpu) = emulated(7) else { panic!("it has kernels") };
    let stream = gpu.new_stream().unwrap();
    for major in [4, 5, 6] {
        let Some(path) = fake(folder.path(), major) else { return };
        let library = NvComp::load(&path).unwrap();
        let mut bytes = vec![9];
        let (mut inputs, mut first, mut headers) = (Vec::new(), vec![0], Vec::new());
        for (codec, pages) in &chunks {
            for (levels, stored, plain) in pages {
                headers.push(PageHeader {
                    body_offset: bytes.len() as u64,
                    compressed_bytes: (levels + stored.len()) as u32,
                    uncompressed_bytes: (levels + plain) as u32,
                    def_bytes: *levels as u32,
                    kind: if *levels > 0 { page_kind::DATA_V2 } else { page_kind::DATA_V1 },
                    is_compressed: 1,
                    ..PageHeader::default()
                });
                bytes.extend((0..*levels).map(|it| it as u8 + 1));
                bytes.extend(stored);
            }
            first.push(headers.len());
            inputs.push(*codec);
        }
        let buffer = gpu.alloc(bytes.len() as u64, &stream, "a test").unwrap();
        // SAFETY: waited for below.
        unsafe { stream.copy_to_device(&buffer, 0, &bytes).unwrap() };
        stream.synchronize().unwrap();
        let inputs = inputs.into_iter().map(|codec| ChunkInput {
            address: buffer.address(),
            bytes: bytes.len() as u64,
            file_offset: 0,
            num_values: 0,
            num_rows: 0,
            first_row: 0,
            first_page: 0,
            continues: false,
            row_group: 0,
            column: "a".into(),
            codec,
            physical_type: parquet::basic::Type::INT32,
            expected_pages: None,
        });
        let mut table = PageTable::new(inputs.collect(), first.clone(), headers);
        // A batch of levels alone, of which nvCOMP is not to know.
        let levels = 7;
        // SAFETY: the buffer holds the chunks, and its bytes have arrived.
        let alone = unsafe { nvcomp::run(&library, &stream, &mut table, &[levels]).unwrap() };
        assert!(alone.refused.is_empty() && table.chunks()[levels].codec == Compression::UNCOMPRESSED);
        let of: Vec<usize> = (0..levels).collect();
        // SAFETY: the buffer holds the chunks, and its bytes have arrived.
        let outcome = unsafe { nvcomp::run(&library, &stream, &mut table, &of).unwrap() };
        let refused: Vec<_> = outcome.refused.iter().map(|(chunk, why)| (*chunk, why.as_str())).collect();
        assert_eq!(refused, wanted_refusals, "{major}");
        let pages = table.describe();
        let read = |page: usize| {
            let mut body = vec![0; pages[page].body_bytes as usize];
            let address = pages[page].body;
            // SAFETY: the body lies in memory of `outcome`; waited for at once.
            unsafe { gpu.backend().copy_to_host(stream.raw(), body.as_mut_ptr(), address, body.len()).unwrap() };
            stream.synchronize().unwrap();
            body
        };
        assert_eq!(read(0), whole);
        assert_eq!(read(1), b"a");
        assert_eq!(read(2), [&[1, 2, 3, 4, 5], &whole[..]].concat());
        assert_eq!(read(3), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(read(first[levels]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(read(first[6]), [&[1], &b"last"[..]].concat());
        for (chunk, input) in table.chunks().iter().enumerate() {
            let is_plain = input.codec == Compression::UNCOMPRESSED;
            assert_eq!(is_plain, !outcome.refused.contains_key(&chunk), "chunk {chunk}");
        }
    }
}

#[cfg(feature = "emulated")]
fn gzip_codec() -> Compression {
    Compression::GZIP(GzipLevel::default())
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
