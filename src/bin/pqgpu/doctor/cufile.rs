//! cuFile: what it waits for, where it is, whether it opens, and how it is configured.

use std::fs;
use std::path::{Path, PathBuf};

use parquet_gpu::sys::cufile::hangs_without_modules;
use serde_json::Value;

use super::probe::{self, Probe};
use super::{Check, State};

/// Where libcufile looks for its configuration when `CUFILE_ENV_PATH_JSON` does not say.
const CONFIGURATION: &str = "/etc/cufile.json";

const WITHOUT: &str = "files are read through CPU memory by our own threads";

pub fn checks() -> Vec<Check> {
    let modules = fs::read_to_string("/proc/modules").ok();
    let mut checks = vec![proc_modules(modules.is_some()), nvidia_fs(modules.as_deref(), Path::new("/"))];
    let library = probe::ask(Probe::Cufile);
    checks.push(found(&library));
    let version = library.as_ref().ok().and_then(|it| it["version"].as_i64()).and_then(|it| i32::try_from(it).ok());
    if version.is_some_and(|it| modules.is_some() || !hangs_without_modules(it)) {
        checks.push(opened(probe::ask(Probe::CufileOpen)));
    }
    let named = std::env::var_os("CUFILE_ENV_PATH_JSON").filter(|it| !it.is_empty()).map(PathBuf::from);
    checks.push(configuration(&named.unwrap_or_else(|| CONFIGURATION.into())));
    checks
}

fn proc_modules(there: bool) -> Check {
    match there {
        true => Check::new("/proc/modules", State::Ok, "can be read", "cuFile can be opened"),
        false => {
            let means = "libcufile from 1.16 would wait for it for ever, so cuFile is not opened";
            Check::new("/proc/modules", State::Missing, "cannot be read", means)
                .fix("mount /proc, and use a kernel with loadable modules")
        }
    }
}

fn nvidia_fs(modules: Option<&str>, root: &Path) -> Check {
    let loaded = root.join("proc/driver/nvidia-fs").exists()
        || modules.is_some_and(|it| it.lines().any(|line| line.starts_with("nvidia_fs ")));
    let nodes = fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    let nodes = nodes.filter(|it| it.file_name().to_string_lossy().starts_with("nvidia-fs")).count();
    let posix = "cuFile goes through CPU memory, unless it can use PCIe peer to peer (`cufile/p2p`)";
    match (loaded, nodes) {
        (false, _) => Check::new("nvidia-fs", State::Missing, "the module is not loaded", posix)
            .fix("install nvidia-fs (package nvidia-gds) and `modprobe nvidia-fs`, on the host of a container"),
        (true, 0) => Check::new("nvidia-fs", State::Warn, "loaded, but /dev/nvidia-fs* is missing", posix)
            .fix("in a container, pass /dev/nvidia-fs* (--device); on the host, reload the module"),
        (true, nodes) => {
            let version = fs::read_to_string(root.join("sys/module/nvidia_fs/version")).unwrap_or_default();
            let found = format!("loaded, {nodes} device nodes {}", version.trim());
            Check::new("nvidia-fs", State::Ok, found.trim(), "storage can reach GPU memory directly")
        }
    }
}

fn found(library: &Result<Value, String>) -> Check {
    match library {
        Ok(answer) => {
            let found = format!(
                "{} at {}",
                answer["text"].as_str().unwrap_or_default(),
                answer["path"].as_str().unwrap_or_default()
            );
            // Statistics by path came with 1.15.
            if answer["version"].as_i64().is_some_and(|it| it >= 1150) {
                Check::new("libcufile", State::Ok, found, "cuFile can be used, and tells which path it took")
            } else {
                Check::new("libcufile", State::Warn, found, "cuFile can be used; its path is reported as unknown")
                    .fix("install libcufile 1.15 (CUDA 13.0) or newer, such as `pip install nvidia-cufile`")
            }
        }
        Err(why) => Check::new("libcufile", State::Missing, why, WITHOUT)
            .fix("install gds-tools or libcufile of the CUDA toolkit, or `pip install nvidia-cufile`"),
    }
}

fn opened(answer: Result<Value, String>) -> Check {
    match answer {
        Ok(answer) => {
            let device = answer["device"].as_str().unwrap_or_default();
            Check::new(
                "cufile driver",
                State::Ok,
                format!("opens, on {device}"),
                "cuFile works as far as a file allows",
            )
        }
        Err(why) => Check::new("cufile driver", State::Warn, why, WITHOUT)
            .fix("CUFILE_LOGFILE_PATH=/dev/stderr shows cuFile's own log; or leave it out with --compat on"),
    }
}

fn configuration(path: &Path) -> Check {
    let name = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            return Check::new("cufile.json", State::Ok, format!("{name}: {error}"), "cuFile uses its defaults");
        }
    };
    let Ok(settings) = serde_json::from_str::<Value>(&without_comments(&text)) else {
        return Check::new("cufile.json", State::Warn, format!("{name} is not JSON"), "cuFile may not open")
            .fix("repair the file, or point CUFILE_ENV_PATH_JSON at another");
    };
    let properties = &settings["properties"];
    let mut said = Vec::new();
    for key in ["allow_compat_mode", "use_pci_p2pdma", "gds_rdma_write_support", "max_direct_io_size_kb"] {
        if let Some(value) = properties.get(key) {
            said.push(format!("{key} = {value}"));
        }
    }
    let found = if said.is_empty() { name.to_string() } else { format!("{name}: {}", said.join(", ")) };
    match properties.get("allow_compat_mode").and_then(Value::as_bool) {
        Some(false) => {
            let means = "cuFile refuses files that it cannot read directly; they are then read by our own threads";
            Check::new("cufile.json", State::Ok, found, means)
        }
        _ => Check::new("cufile.json", State::Ok, found, "cuFile may go through CPU memory (`cufile/posix`)"),
    }
}

/// cufile.json has `//` comments, which JSON has not.
fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let (mut quoted, mut escaped, mut end) = (false, false, line.len());
        for (at, byte) in line.bytes().enumerate() {
            match byte {
                b'/' if !quoted && line[at..].starts_with("//") => {
                    end = at;
                    break;
                }
                b'"' if !escaped => quoted = !quoted,
                _ => {}
            }
            escaped = byte == b'\\' && !escaped;
        }
        kept.push_str(&line[..end]);
        kept.push('\n');
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_strings_stay() {
        let text = "{ // a comment\n\"a\": \"http://x\\\"//\" // \"another\"\n}";
        let value: Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!(value, serde_json::json!({ "a": "http://x\"//" }));
    }

    #[test]
    fn configurations() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cufile.json");
        assert!(configuration(&path).means.contains("defaults"));
        fs::write(&path, "{ // x\n \"properties\": { \"allow_compat_mode\": false } }").unwrap();
        assert!(configuration(&path).found.ends_with("allow_compat_mode = false"));
        fs::write(&path, "{").unwrap();
        assert_eq!(configuration(&path).state, State::Warn);
    }

    #[test]
    fn nvidia_fs_by_module_and_nodes() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(nvidia_fs(Some("ext4 1 0\n"), root.path()).state, State::Missing);
        assert_eq!(nvidia_fs(Some("nvidia_fs 1 0\n"), root.path()).state, State::Warn);
        fs::create_dir(root.path().join("dev")).unwrap();
        fs::write(root.path().join("dev/nvidia-fs0"), "").unwrap();
        assert_eq!(nvidia_fs(Some("nvidia_fs 1 0\n"), root.path()).state, State::Ok);
    }
}
