//! With the feature `emulated`, builds the kernels for the CPU; without it, does nothing and needs no C++ compiler.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(sanitize_kernels)");
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "emulated")]
    emulated::build();
}

#[cfg(feature = "emulated")]
mod emulated {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};
    use std::{env, fs};

    const KERNELS: &str = "src/kernels";

    pub fn build() {
        println!("cargo:rerun-if-changed={KERNELS}");
        println!("cargo:rerun-if-env-changed=PARQUET_GPU_SANITIZE");
        let asked = env::var("PARQUET_GPU_SANITIZE").unwrap_or_default();
        let fuzz = asked == "fuzz";
        let sanitize = asked == "1" || fuzz;

        let mut sources: Vec<PathBuf> = fs::read_dir(KERNELS)
            .expect("the kernels are in the package")
            .map(|entry| entry.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|it| it == "cu" || it == "cc"))
            .collect();
        sources.sort();
        let header = fs::read_to_string(Path::new(KERNELS).join("abi.h")).expect("abi.h is in the package");
        let table = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("abi_table.cc");
        fs::write(&table, abi_table(&header)).expect("OUT_DIR is writable");
        sources.push(table);

        let mut build = cc::Build::new();
        build
            .cpp(true)
            .cpp_link_stdlib(None) // nothing of it is used
            .std("c++17")
            .flag("-x")
            .flag("c++")
            .flag("-include")
            .flag("simt.h")
            .include(KERNELS)
            .warnings(true)
            .extra_warnings(true)
            .flag("-Wno-unknown-pragmas") // #pragma unroll
            .flag("-fno-exceptions")
            .flag("-fno-rtti")
            .flag("-fno-threadsafe-statics")
            .flag("-fno-strict-aliasing") // kernels read bytes as words, as CUDA allows
            .flag("-ffp-contract=off")
            .opt_level(2) // also in debug builds: a test runs millions of emulated threads
            .files(&sources);
        if sanitize {
            println!("cargo:rustc-cfg=sanitize_kernels");
            build
                .warnings_into_errors(true) // CI runs this build
                .flag("-g1")
                .flag("-fno-omit-frame-pointer")
                .flag("-fsanitize=address,undefined")
                .flag("-fno-sanitize=vptr")
                .flag("-fno-sanitize-recover=undefined")
                .flag("-fsanitize-sections=simt_shared");
            println!("cargo:rustc-link-lib=dylib=asan");
            println!("cargo:rustc-link-lib=dylib=ubsan");
        }
        if fuzz {
            // A call at each edge, which `fuzz/` counts, and one at each comparison, which libFuzzer learns from.
            build.flag("-fsanitize-coverage=trace-pc,trace-cmp");
        }
        build.compile("parquet_gpu_kernels");
    }

    /// C++ that tells the offsets and constants of `abi.h` as the compiler sees them, for every struct and enum in it.
    fn abi_table(header: &str) -> String {
        let code: String =
            header.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
        let mut fields = String::new();
        let mut constants = String::from("    {\"PQGPU_NONE\", (uint64_t)PQGPU_NONE},\n");
        for (at, keyword) in code.match_indices("struct ").chain(code.match_indices("enum ")) {
            let item = &code[at + keyword.len()..];
            let (Some(open), Some(close)) = (item.find('{'), item.find('}')) else { continue };
            let name = item[..open].split(':').next().unwrap_or_default().trim();
            let body = &item[open + 1..close];
            if keyword == "enum " {
                for constant in body.split(',').filter_map(|it| it.split('=').next()).map(str::trim) {
                    if !constant.is_empty() {
                        writeln!(constants, "    {{\"{constant}\", (uint64_t){constant}}},").expect("a string grows");
                    }
                }
                continue;
            }
            for field in body.split(';').map(str::trim).filter(|it| !it.is_empty()) {
                let field = field.split('[').next().unwrap_or_default();
                let field = field.rsplit(char::is_whitespace).next().unwrap_or_default();
                writeln!(fields, "    {{\"{name}\", sizeof({name}), \"{field}\", offsetof({name}, {field})}},")
                    .expect("a string grows");
            }
        }
        format!(
            "#include \"abi.h\"\n\
             struct AbiField {{ const char* type; uint64_t size; const char* name; uint64_t offset; }};\n\
             struct AbiConstant {{ const char* name; uint64_t value; }};\n\
             extern \"C\" {{\n\
             extern const AbiField simt_abi_fields[];\n\
             extern const AbiConstant simt_abi_constants[];\n\
             const AbiField simt_abi_fields[] = {{\n{fields}    {{nullptr, 0, nullptr, 0}}\n}};\n\
             const AbiConstant simt_abi_constants[] = {{\n{constants}    {{nullptr, 0}}\n}};\n\
             }}\n"
        )
    }
}
