//! Every kernel compiles for every GPU generation, with no GPU and no driver: only NVRTC is needed, from
//! `$PARQUET_GPU_NVRTC_LIBRARY` (`.ci/nvrtc-wheel` fetches one) or from where the library itself looks.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use parquet_gpu::Error;
use parquet_gpu::kernels::{HEADERS, Kernel};
use parquet_gpu::sys::nvrtc::{LIBRARY_VARIABLE, Nvrtc, Target};

/// The first GPU of each generation that the crate supports: A100, H100, B200, RTX 50.
const ARCHITECTURES: &[u32] = &[80, 90, 100, 120];

fn nvrtc() -> Option<&'static Nvrtc> {
    match Nvrtc::get(None) {
        Ok(nvrtc) => {
            println!("NVRTC {}.{} at {}", nvrtc.version().0, nvrtc.version().1, nvrtc.path().display());
            Some(nvrtc)
        }
        // A library that was named and does not load is a failure; only a machine without one is skipped.
        Err(error) if std::env::var_os(LIBRARY_VARIABLE).is_some_and(|it| !it.is_empty()) => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// The modules, each once.
fn modules() -> Vec<Kernel> {
    let mut seen = BTreeSet::new();
    Kernel::ALL.iter().copied().filter(|it| seen.insert(it.module())).collect()
}

/// What each kernel took when the list was made with `PARQUET_GPU_BLESS=1`: registers, and local memory and spills where
/// it has any. A kernel may not take more local memory than is listed, and none where it is not listed.
const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels.tsv");

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut usage: BTreeMap<(String, u32), Usage> = BTreeMap::new();
    for module in modules() {
        let name = format!("{}.cu", module.module());
        for &architecture in ARCHITECTURES {
            let compiled = nvrtc
                .compile(&name, module.source(), HEADERS, Target::Cubin(architecture), &["--ptxas-options=-v"])
                .unwrap();
            let exported = elf_functions(&compiled.image);
            let mut usages = usages(&compiled.log);
            for kernel in Kernel::ALL.iter().filter(|it| it.module() == module.module()) {
                assert!(exported.contains(kernel.symbol()), "{name} does not export {}", kernel.symbol());
                let at = usages.iter().position(|it| it.symbol == kernel.symbol());
                let at = at.unwrap_or_else(|| panic!("ptxas says nothing of {}: {}", kernel.symbol(), compiled.log));
                usage.insert((kernel.symbol().into(), architecture), usages.swap_remove(at));
            }
            let warnings: Vec<_> = compiled.log.lines().filter(|it| it.contains("warning")).collect();
            assert!(warnings.is_empty(), "{name} for sm_{architecture}: {warnings:#?}");
        }
    }
    let table = table(&usage);
    println!("{}", table.replace('\t', "  "));
    if std::env::var("PARQUET_GPU_BLESS").is_ok_and(|it| it == "1") {
        std::fs::write(LIST, table.lines().map(|it| it.replace(" ", "") + "\n").collect::<String>()).unwrap();
        return;
    }
    let listed = listed(&std::fs::read_to_string(LIST).unwrap());
    let more = usage.iter().filter(|(key, it)| {
        let limit = listed.get(key).copied().unwrap_or_default();
        it.stack > limit.stack || it.spills > limit.spills
    });
    let more: Vec<String> =
        more.map(|((kernel, architecture), it)| format!("{kernel} on sm_{architecture}: {it}")).collect();
    assert!(more.is_empty(), "more local memory than tests/kernels.tsv lists:\n{}", more.join("\n"));
}

#[test]
fn the_list_limits_local_memory() {
    let usage = Usage { symbol: "k".into(), registers: 30, stack: 16, spills: 8, shared: 4 };
    let table = table(&BTreeMap::from([(("k".to_string(), 80), usage)]));
    let listed = listed(&table.replace(' ', ""));
    assert_eq!(listed[&("k".to_string(), 80)], Limit { stack: 16, spills: 8 });
    assert!(!listed.contains_key(&("k".to_string(), 90)));
}

/// A line a kernel, a cell a GPU, padded to columns.
fn table(usage: &BTreeMap<(String, u32), Usage>) -> String {
    let kernels: BTreeSet<&String> = usage.keys().map(|it| &it.0).collect();
    let mut table = format!("{:26}", "registers+local+spilled");
    for architecture in ARCHITECTURES {
        table += &format!("\t{:9}", format!("sm_{architecture}"));
    }
    table += "\tshared\n";
    for kernel in kernels {
        table += &format!("{kernel:26}");
        let mut shared = 0;
        for &architecture in ARCHITECTURES {
            let cell = usage.get(&(kernel.clone(), architecture));
            shared = shared.max(cell.map_or(0, |it| it.shared));
            table += &format!("\t{:9}", cell.map_or(String::new(), Usage::to_string));
        }
        table += &format!("\t{shared}\n");
    }
    table
}

/// Bytes of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Limit {
    stack: u32,
    spills: u32,
}

/// The list by kernel and architecture.
fn listed(text: &str) -> BTreeMap<(String, u32), Limit> {
    let mut listed = BTreeMap::new();
    for line in text.lines().skip(1) {
        let mut cells = line.split('\t');
        let kernel = cells.next().unwrap();
        for (&architecture, cell) in ARCHITECTURES.iter().zip(cells).filter(|it| !it.1.is_empty()) {
            let mut numbers = cell.split('+').skip(1).map(|it| it.parse().unwrap());
            let limit = Limit { stack: numbers.next().unwrap_or(0), spills: numbers.next().unwrap_or(0) };
            listed.insert((kernel.to_string(), architecture), limit);
        }
    }
    listed
}

#[test]
fn assembly_is_made_for_a_gpu_that_is_newer_than_nvrtc() {
    let Some(nvrtc) = nvrtc() else { return };
    let newest = *nvrtc.architectures().last().unwrap();
    assert_eq!(nvrtc.target((99, 0)).unwrap(), Target::Ptx(newest));
    assert_eq!(nvrtc.target((9, 0)).unwrap(), Target::Cubin(90));
    assert!(matches!(nvrtc.target((1, 0)), Err(Error::Library { .. })));

    let kernel = Kernel::Scatter;
    let compiled = nvrtc.compile("scatter.cu", kernel.source(), HEADERS, Target::Ptx(newest), &[]).unwrap();
    let text = std::str::from_utf8(&compiled.image).unwrap();
    assert!(text.contains(&format!(".entry {}", kernel.symbol())), "{text}");
    assert!(text.ends_with('\0'), "the driver reads PTX up to a NUL");
}

#[test]
fn a_source_that_does_not_compile_is_an_error_with_the_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let error =
        nvrtc.compile("broken.cu", "__global__ void f() { nonsense; }", &[], Target::Cubin(90), &[]).unwrap_err();
    let message = error.to_string();
    for part in ["broken.cu", "sm_90", "NVRTC_ERROR_COMPILATION", "nonsense"] {
        assert!(message.contains(part), "{message}");
    }
    let error = nvrtc.compile("nul.cu", "\0", &[], Target::Cubin(90), &[]).unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error}");
}

#[test]
fn programs_compile_on_several_threads() {
    let Some(nvrtc) = nvrtc() else { return };
    let compile = |kernel: &Kernel| {
        nvrtc.compile(kernel.module(), kernel.source(), HEADERS, Target::Cubin(90), &[]).unwrap().image
    };
    let alone: Vec<_> = modules().iter().map(compile).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = modules().into_iter().map(|it| scope.spawn(move || compile(&it))).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(alone.len(), together.len());
    for (one, other) in alone.iter().zip(&together) {
        assert_eq!(elf_functions(one), elf_functions(other));
        assert_eq!(one.len(), other.len());
    }
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let why = Nvrtc::load("/nonexistent/libnvrtc.so.13".as_ref()).unwrap_err();
    assert!(why.contains("/nonexistent/libnvrtc.so.13"), "{why}");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(Nvrtc::load(file.path()).is_err());
}

/// What ptxas says of one kernel.
#[derive(Debug, Default)]
struct Usage {
    symbol: String,
    registers: u32,
    spills: u32,
    stack: u32,
    shared: u32,
}

impl fmt::Display for Usage {
    /// Registers, local bytes, spilled bytes; what is 0 at the end is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.stack, self.spills) {
            (0, 0) => write!(f, "{}", self.registers),
            (stack, 0) => write!(f, "{}+{stack}", self.registers),
            (stack, spills) => write!(f, "{}+{stack}+{spills}", self.registers),
        }
    }
}

/// Reads the lines that `--ptxas-options=-v` adds to the log.
fn usages(log: &str) -> Vec<Usage> {
    let number_before = |line: &str, unit: &str| -> Option<u32> {
        let before = line[..line.find(unit)?].trim_end();
        before.rsplit(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
    };
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let symbol = rest.split('\'').next().unwrap_or_default().to_string();
            usages.push(Usage { symbol, ..Usage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        usage.registers = number_before(line, " registers").unwrap_or(usage.registers);
        usage.stack = number_before(line, " bytes stack frame").unwrap_or(usage.stack);
        usage.spills += number_before(line, " bytes spill stores").unwrap_or(0);
        usage.spills += number_before(line, " bytes spill loads").unwrap_or(0);
        usage.shared = number_before(line, " bytes smem").unwrap_or(usage.shared);
    }
    usages
}

/// Names of the function symbols in a 64-bit little-endian ELF file.
fn elf_functions(elf: &[u8]) -> BTreeSet<String> {
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01");
    let read = |at: usize, bytes: usize| elf[at..at + bytes].iter().rev().fold(0, |sum, it| sum << 8 | *it as usize);
    let (table, entry_size, count) = (read(0x28, 8), read(0x3a, 2), read(0x3c, 2));
    let section = |index: usize| table + index * entry_size;
    let mut names = BTreeSet::new();
    for at in (0..count).map(section).filter(|at| read(at + 4, 4) == 2 /* SHT_SYMTAB */) {
        let (offset, bytes, strings) = (read(at + 0x18, 8), read(at + 0x20, 8), section(read(at + 0x28, 4)));
        for symbol in (offset..offset + bytes).step_by(24) {
            if read(symbol + 4, 1) & 15 == 2
            /* STT_FUNC */
            {
                let name = read(strings + 0x18, 8) + read(symbol, 4);
                let bytes = elf[name..].split(|it| *it == 0).next().unwrap();
                names.insert(String::from_utf8(bytes.to_vec()).unwrap());
            }
        }
    }
    names
}
