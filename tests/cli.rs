//! The command as people and scripts meet it: arguments, output, exit statuses.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)] // its `main`
#[path = "../testdata/make.rs"]
mod testdata;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The repository: where it was built, or above the test when `.ci/gpu-tests` carried it to another machine.
fn root() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |it: &&Path| it.join("testdata/make.rs").exists();
    [built].into_iter().chain(test.ancestors()).find(is_root).unwrap().to_path_buf()
}

/// The command: where it was built, or beside the test.
fn program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_pqgpu"));
    if built.exists() { built } else { std::env::current_exe().unwrap().with_file_name("pqgpu") }
}

const GOOD: &str = "testdata/orders.parquet";
const BAD: &str = "testdata/corrupt_page_body.parquet";

/// The command in the repository's root, deaf to the environment around the tests.
fn command() -> Command {
    let mut command = Command::new(program());
    let ours = |name: &str| name.starts_with("PARQUET_GPU_") || name.starts_with("KVIKIO_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command.current_dir(root()).stdin(Stdio::null()).env("PARQUET_GPU_DEVICE", "cpu");
    command
}

/// Exit status, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    parts(command().args(arguments).output().unwrap())
}

fn parts(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// One object a line.
fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn testdata_is_what_its_program_writes() {
    for (name, bytes) in testdata::files() {
        let there = std::fs::read(root().join("testdata").join(name)).unwrap();
        assert!(there == bytes, "testdata/{name} is not what `cargo run --example testdata` writes");
    }
}

/// Every file of testdata/ either equals arrow-rs in every value or fails with an error.
fn scan_testdata(device: &str) {
    for (name, _) in testdata::files() {
        let file = format!("testdata/{name}");
        let (status, out, err) = run(&["scan", &file, "--verify", "--json", "--device", device]);
        let object = &objects(&out)[0];
        if name.starts_with("corrupt_") {
            assert_eq!((status, &object["error"]["kind"]), (1, &"corrupt".into()), "{name}: {out}{err}");
        } else {
            assert_eq!((status, &object["verified"]), (0, &true.into()), "{name}: {out}{err}");
            assert_eq!(object["device"], device);
        }
    }
}

#[test]
fn testdata_on_the_cpu() {
    scan_testdata("cpu");
}

#[cfg(feature = "emulated")]
#[test]
fn testdata_on_the_emulated_device() {
    scan_testdata("emulated");
}

#[test]
fn scan_as_json_has_every_key() {
    let (status, out, err) = run(&["scan", GOOD, "--json"]);
    assert_eq!((status, err.as_str()), (0, ""));
    let object = &objects(&out)[0];
    let promised = [
        "file",
        "rows",
        "row_groups",
        "columns",
        "footer_repaired",
        "columns_on_cpu",
        "decompressed_on_cpu",
        "file_bytes",
        "page_bytes",
        "arrow_bytes",
        "seconds",
        "device",
        "verified",
        "launches",
        "syncs",
        "paths",
        "fallbacks",
        "verdict",
    ];
    for key in promised {
        assert!(keys(object).contains(&key), "{key} is missing: {out}");
    }
    assert_eq!(keys(&object["paths"]), ["nvfs", "p2p", "cufile_posix", "unknown", "host", "unaccounted"]);
    assert!(object["paths"].as_object().unwrap().values().all(|it| keys(it) == ["ops", "bytes"]));
    assert_eq!((&object["file"], &object["rows"]), (&GOOD.into(), &10_000.into()));
    assert_eq!(
        (&object["row_groups"], &object["columns"], &object["columns_on_cpu"]),
        (&4.into(), &8.into(), &0.into())
    );
    assert_eq!((&object["verified"], &object["verdict"]), (&Value::Null, &"host".into()));
    assert!(object["seconds"].as_f64().unwrap() > 0.0);
    let bytes = |key: &str| object[key].as_u64().unwrap();
    let len = std::fs::metadata(root().join(GOOD)).unwrap().len();
    assert!(bytes("file_bytes") < len && bytes("file_bytes") > len / 2);
    assert!(bytes("page_bytes") > bytes("file_bytes") && bytes("arrow_bytes") > 0);
    assert!(object["paths"]["host"]["bytes"].as_u64().unwrap() >= bytes("file_bytes"));
}

#[test]
fn a_failed_file_as_json_names_the_place() {
    let (status, out, err) = run(&["scan", BAD, "--json"]);
    assert_eq!((status, err.as_str()), (1, ""));
    let object = &objects(&out)[0];
    assert_eq!(keys(object), ["file", "error"]);
    let error = &object["error"];
    assert_eq!(keys(error), ["kind", "message", "row_group", "column", "page", "offset"]);
    assert_eq!(
        (&error["kind"], &error["row_group"], &error["column"]),
        (&"corrupt".into(), &0.into(), &"order".into())
    );
    assert!(error["page"].is_u64() && error["offset"].is_u64());
}

#[test]
fn one_failing_file_does_not_stop_the_others() {
    let sources = [GOOD, BAD, "testdata/none-*.parquet", "missing.parquet", "testdata/empty.parquet"];
    let (status, out, err) = run(&[&["scan"], &sources[..], &["--json"]].concat());
    assert_eq!((status, err.as_str()), (1, ""));
    let objects = objects(&out);
    let files: Vec<&str> = objects.iter().map(|it| it["file"].as_str().unwrap()).collect();
    assert_eq!(files, sources);
    let kinds: Vec<Option<&str>> = objects.iter().map(|it| it["error"]["kind"].as_str()).collect();
    assert_eq!(kinds, [None, Some("corrupt"), Some("not_found"), Some("not_found"), None]);

    let (status, out, err) = run(&[&["scan"], &sources[..]].concat());
    assert_eq!(status, 1);
    assert!(out.contains(GOOD) && out.contains("testdata/empty.parquet") && !out.contains(BAD), "{out}");
    let complaints: Vec<&str> = err.lines().collect();
    assert_eq!(complaints.len(), 3, "{err}");
    assert!(complaints.iter().all(|it| it.starts_with("pqgpu: ")), "{err}");
    assert!(complaints[0].contains(BAD) && complaints[0].contains("row group 0, column order, page 0"), "{err}");
}

#[test]
fn an_error_names_the_file_whatever_its_name_is() {
    let folder = tempfile::tempdir().unwrap();
    // Every error has an `o` in it.
    std::fs::write(folder.path().join("o"), "no Parquet").unwrap();
    let (_, _, err) = parts(command().args(["scan", "o"]).current_dir(folder.path()).output().unwrap());
    assert!(err.starts_with("pqgpu: o: "), "{err}");
    for missing in ["missing.parquet", "missing-*.parquet", "a["] {
        let (_, _, err) = run(&["scan", missing]);
        assert_eq!(err.matches(missing).count(), 1, "{err}");
    }
}

#[test]
fn globs_are_sorted_and_names_with_brackets_are_files() {
    let (status, out, _) = run(&["scan", "testdata/types_*.parquet", "--json"]);
    let files: Vec<Value> = objects(&out).iter().map(|it| it["file"].clone()).collect();
    assert_eq!(status, 0);
    assert_eq!(files, ["plain", "v1_snappy", "v2_snappy"].map(|it| format!("testdata/types_{it}.parquet")));
    let folder = tempfile::tempdir().unwrap();
    let bracket = folder.path().join("a[0].parquet");
    std::fs::copy(root().join(GOOD), &bracket).unwrap();
    assert_eq!(run(&["scan", bracket.to_str().unwrap()]).0, 0);
}

#[test]
fn usage_errors_exit_with_2_and_print_nothing() {
    let wrong: &[&[&str]] = &[
        &[],
        &["scan"],
        &["walk", GOOD],
        &["scan", GOOD, "--compat", "maybe"],
        &["scan", GOOD, "--device", "cuda:x"],
        &["scan", GOOD, "--gds-threshold", "16XB"],
        &["scan", GOOD, "--threads", "0"],
        &["scan", GOOD, "--row-groups", "3-1"],
        &["scan", GOOD, "--row-groups", ""],
        &["scan", GOOD, "--row-groups", "1,,2"],
        &["scan", GOOD, "--row-groups", "0-99999999999999"],
        &["scan", GOOD, "--row-groups", "9"],
        &["scan", GOOD, "--columns", "oder"],
        &["scan", GOOD, "--filter", "order >"],
        &["plan", GOOD, GOOD],
        &["read"],
    ];
    for arguments in wrong {
        let (status, out, err) = run(arguments);
        assert_eq!((status, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(!err.is_empty(), "{arguments:?}");
    }
    let (_, _, err) = run(&["scan", GOOD, "--columns", "oder"]);
    assert!(err.contains("oder") && err.contains("order"), "{err}");
    let (status, out, _) = run(&["scan", GOOD, "--columns", "oder", "--json"]);
    assert_eq!((status, &objects(&out)[0]["error"]["kind"]), (2, &"argument".into()));
}

/// A file that has no such row group makes the command line wrong, whatever came of the others.
#[test]
fn of_several_files_the_gravest_status_counts() {
    let several = "testdata/row_groups.parquet";
    assert_eq!(run(&["scan", several, BAD, GOOD, "--row-groups", "9"]).0, 2);
    assert_eq!(run(&["scan", BAD, several, GOOD, "--row-groups", "0", "--require-gds"]).0, 1);
    assert_eq!(run(&["scan", several, GOOD, "--row-groups", "0", "--require-gds"]).0, 3);
    let promise = "Of several files the gravest counts: 2, then 1, 4, 3.";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (status, help, _) = run(&["--help"]);
    assert!(status == 0 && words(&help).contains(promise.trim_end_matches('.')), "{help}");
    assert!(words(&std::fs::read_to_string(root().join("README.md")).unwrap()).contains(promise));
}

#[test]
fn columns_and_row_groups() {
    let scan = |arguments: &[&str]| {
        let (status, out, err) = run(&[&["scan", "--verify", "--json"], arguments].concat());
        assert_eq!(status, 0, "{err}{out}");
        let object = objects(&out).remove(0);
        ["rows", "row_groups", "columns"].map(|key| object[key].as_u64().unwrap())
    };
    assert_eq!(scan(&[GOOD, "--columns", "order,note", "--row-groups", "0,2-3"]), [7_500, 3, 2]);
    assert_eq!(scan(&["testdata/nested.parquet", "--columns", "struct.x,map"]), [200, 1, 3]);
    assert_eq!(scan(&["testdata/row_groups.parquet", "--row-groups", "49,0-1"]), [30, 3, 8]);
    assert_eq!(scan(&[GOOD, "--filter", "order < 100"]), [2_500, 1, 8]);
}

#[test]
fn tables_fit_80_columns() {
    let mut plans = vec![vec!["doctor"], vec!["read", GOOD], vec!["plan", GOOD]];
    plans.extend([["scan", GOOD, "--verify"].to_vec(), ["scan", "testdata/delta.parquet"].to_vec()]);
    for device in if cfg!(feature = "emulated") { vec!["cpu", "emulated"] } else { vec!["cpu"] } {
        for arguments in &plans {
            let output = command().args(arguments).env("PARQUET_GPU_DEVICE", device).output().unwrap();
            let (status, out, err) = parts(output);
            assert_eq!((status, err.as_str()), (0, ""), "{arguments:?}");
            for line in out.lines() {
                assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
            }
        }
    }
}

#[test]
fn flags_before_our_variables_before_kvikio_s() {
    // The operations of the one range that the plan of a raw read has tell the task size.
    let operations = |kvikio: &str, ours: &str, flags: &[&str]| {
        let mut command = command();
        command.args(["read", GOOD, "--json"]).args(flags);
        for (name, value) in [("KVIKIO_TASK_SIZE", kvikio), ("PARQUET_GPU_TASK_SIZE", ours)] {
            if !value.is_empty() {
                command.env(name, value);
            }
        }
        let (status, out, err) = parts(command.output().unwrap());
        assert_eq!(status, 0, "{err}");
        objects(&out)[0]["operations"].as_u64().unwrap()
    };
    let len = std::fs::metadata(root().join(GOOD)).unwrap().len();
    assert_eq!(operations("", "", &[]), 1);
    assert_eq!(operations("8192", "", &[]), len.div_ceil(8 << 10));
    assert_eq!(operations("8192", "16KiB", &[]), len.div_ceil(16 << 10));
    assert_eq!(operations("8192", "16KiB", &["--task-size", "32KiB"]), len.div_ceil(32 << 10));

    let wrong = |name: &str, value: &str| parts(command().args(["read", GOOD]).env(name, value).output().unwrap());
    for (name, value) in
        [("KVIKIO_NTHREADS", "many"), ("PARQUET_GPU_THREADS", "many"), ("PARQUET_GPU_REQUIRE_GDS", "perhaps")]
    {
        let (status, out, err) = wrong(name, value);
        assert_eq!((status, out.as_str()), (2, ""), "{name}");
        assert!(err.contains(value), "{err}");
    }
    // An empty one is not set.
    let selection = ["DEVICE", "COLUMNS", "ROW_GROUPS", "FILTER", "VERIFY", "REPEAT", "JSON"];
    let selection = selection.map(|it| format!("PARQUET_GPU_{it}"));
    let settings = parquet_gpu::options::TABLE.iter().map(|it| it.variable.to_string());
    for name in settings.chain(selection) {
        let (status, out, err) = parts(command().args(["scan", GOOD]).env(&name, "").output().unwrap());
        assert_eq!((status, err.as_str()), (0, ""), "{name}: {out}");
    }
    let (status, out, _) = wrong("PARQUET_GPU_JSON", "1");
    assert_eq!((status, objects(&out).len()), (0, 1));
}

#[test]
fn help_names_every_flag_s_variable() {
    for subcommand in ["scan", "plan", "read"] {
        let (status, out, _) = run(&[subcommand, "--help"]);
        assert_eq!(status, 0);
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        let unwrapped = out.split_whitespace().collect::<Vec<_>>().join(" ");
        for flag in out.lines().filter_map(|line| line.trim().strip_prefix("--")) {
            let flag = flag.split([' ', '<']).next().unwrap();
            let variable = format!("PARQUET_GPU_{}", flag.to_uppercase().replace('-', "_"));
            assert!(unwrapped.contains(&format!("[env: {variable}=")), "{subcommand} --{flag}: {out}");
        }
    }
}

#[test]
fn require_gds_exits_with_3_and_still_reports() {
    for subcommand in ["scan", "read"] {
        let (status, out, err) = run(&[subcommand, GOOD, "--require-gds"]);
        assert_eq!(status, 3, "{err}");
        assert!(out.contains("unaccounted") && err.contains("GPUDirect Storage is required"), "{out}{err}");
        let (status, out, _) = run(&[subcommand, GOOD, "--require-gds", "--json"]);
        assert_eq!((status, &objects(&out)[0]["verdict"]), (3, &"host".into()));
    }
    // A file that fails outranks it.
    assert_eq!(run(&["scan", GOOD, BAD, "--require-gds"]).0, 1);
}

#[test]
fn credentials_are_never_shown() {
    // Port 9 (discard) of this machine: nothing answers, and nothing leaves it.
    let url = "https://user:hunter2@127.0.0.1:9/a.parquet?X-Amz-Signature=abcdef0123456789";
    for arguments in [&["scan", url, "--json"][..], &["plan", url], &["read", url]] {
        let (status, out, err) = run(arguments);
        assert_eq!(status, 1, "{out}{err}");
        for secret in ["hunter2", "abcdef0123456789", "user:"] {
            assert!(!out.contains(secret) && !err.contains(secret), "{out}{err}");
        }
        assert!(out.contains("127.0.0.1") || err.contains("127.0.0.1"), "{out}{err}");
    }
}

#[test]
fn names_do_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{1b}[2J.parquet");
    std::fs::copy(root().join("testdata/empty.parquet"), &path).unwrap();
    for arguments in [["scan", path.to_str().unwrap()], ["scan", "missing\u{1b}[2J"]] {
        let (_, out, err) = run(&arguments);
        assert!(!out.contains('\u{1b}') && !err.contains('\u{1b}'), "{out}{err}");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command().args(["plan", GOOD]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{}", output.status);
}

#[test]
fn plan_reads_the_footer_alone() {
    // Its pages are broken, and nobody looks.
    let (status, out, err) = run(&["plan", BAD]);
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("batch 0: row groups 0, 1000 rows") && out.contains("route"), "{out}");
    let (status, out, _) = run(&["plan", BAD, "--json", "--columns", "order"]);
    let object = &objects(&out)[0];
    assert_eq!((status, &object["file"], object["batches"].as_array().unwrap().len()), (0, &BAD.into(), 1));
    let range = &object["batches"][0]["ranges"][0];
    assert_eq!((&range["route"], &range["offset"]), (&"host".into(), &4.into()), "{out}");
}

/// A footer that arrow-rs refuses: with a converted type that the format does not have, and one of the corpus.
#[test]
fn a_repaired_footer_is_told() {
    let mut bytes = std::fs::read(root().join(GOOD)).unwrap();
    let named = b"note\x25\x00"; // in the schema, before field 6, converted_type, 0: UTF8
    let at = bytes.windows(named.len()).rposition(|it| it == named).unwrap();
    bytes[at + named.len() - 1] = 22 << 1;
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("repaired.parquet");
    std::fs::write(&ours, bytes).unwrap();
    let mut files = vec![(ours, "converted_type")];
    match std::env::var_os("PARQUET_GPU_CORPUS").map(PathBuf::from) {
        Some(corpus) => files.push((corpus.join("hyparam+hyparquet/test/files/strings.parquet"), "repetition_type")),
        None => println!("skipped in part: PARQUET_GPU_CORPUS is not set"),
    }
    for (path, repaired) in files {
        for subcommand in ["plan", "scan"] {
            let (status, out, err) = run(&[subcommand, path.to_str().unwrap()]);
            assert_eq!((status, err.as_str()), (0, ""));
            assert!(out.contains(&format!("footer repaired: {repaired}\n")), "{out}");
            let (status, out, _) = run(&[subcommand, path.to_str().unwrap(), "--json"]);
            assert_eq!((status, &objects(&out)[0]["footer_repaired"]), (0, &vec![repaired].into()), "{out}");
        }
    }
    for subcommand in ["plan", "scan"] {
        assert!(!run(&[subcommand, GOOD]).1.contains("repaired"));
        assert_eq!(objects(&run(&[subcommand, GOOD, "--json"]).1)[0]["footer_repaired"], Value::Array(Vec::new()));
    }
}

#[cfg(feature = "emulated")]
#[test]
fn plan_says_which_route_and_why() {
    let routes = |arguments: &[&str]| {
        let (_, out, err) = run(&[&["plan", GOOD, "--json", "--device", "emulated"], arguments].concat());
        let mut reasons = BTreeMap::new();
        for range in
            objects(&out).first().unwrap_or_else(|| panic!("{err}"))["batches"][0]["ranges"].as_array().unwrap()
        {
            let key = format!("{}: {}", range["route"].as_str().unwrap(), range["reason"].as_str().unwrap());
            *reasons.entry(key).or_insert(0) += 1;
        }
        reasons.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(routes(&["--gds-threshold", "1"]), ["direct: local file at or above gds_threshold"]);
    assert_eq!(routes(&["--gds-threshold", "1GiB"]), ["host: below gds_threshold"]);
    assert_eq!(routes(&["--compat", "on"]), ["host: compat mode is on"]);
}

#[test]
fn read_reports_every_byte() {
    let (status, out, err) = run(&["read", "testdata/make.rs", "--json", "--verify"]);
    assert_eq!((status, err.as_str()), (0, ""));
    let len = std::fs::metadata(root().join("testdata/make.rs")).unwrap().len();
    let object = &objects(&out)[0];
    assert_eq!((&object["file_bytes"], &object["paths"]["host"]["bytes"]), (&len.into(), &len.into()));
    assert_eq!(run(&["read", "missing", "--json"]).0, 1);
}

#[test]
fn doctor_says_what_each_finding_means() {
    let (status, out, err) = run(&["doctor", "testdata", "--json"]);
    assert_eq!((status, err.as_str()), (0, ""));
    let object = &objects(&out)[0];
    assert_eq!(keys(object), ["path", "checks"]);
    let checks = object["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|it| it["check"].as_str().unwrap()).collect();
    for name in
        ["driver", "bar1", "/proc/modules", "nvidia-fs", "libcufile", "cufile.json", "file system", "nvrtc", "nvcomp"]
    {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for check in checks {
        assert_eq!(keys(check), ["check", "state", "found", "means", "fix"]);
        assert!(matches!(check["state"].as_str().unwrap(), "ok" | "warn" | "missing"), "{check}");
        assert!(!check["means"].as_str().unwrap().is_empty(), "{check}");
    }
    let (status, out, _) = run(&["doctor", "/does/not/exist"]);
    assert!(status == 0 && out.contains("/does/not/exist"), "{out}");
}

#[test]
fn doctor_has_no_side_effects() {
    let folder = tempfile::tempdir().unwrap();
    let output = command().arg("doctor").current_dir(folder.path()).env("HOME", folder.path()).output().unwrap();
    assert!(output.status.success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The rows of the option table in the README are those of the library.
#[test]
fn the_readme_lists_every_setting() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let rows: Vec<&str> = readme.lines().filter(|line| line.starts_with("| `--")).collect();
    let expected: Vec<String> = parquet_gpu::options::TABLE
        .iter()
        .map(|it| {
            let kvikio = it.kvikio.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
            format!("| `{}` | `{}` | {kvikio} | {} | {} |", it.flag, it.variable, it.default, it.meaning)
        })
        .collect();
    assert_eq!(rows, expected, "the README should have:\n{}", expected.join("\n"));
}
