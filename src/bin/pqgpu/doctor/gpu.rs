//! Driver, GPUs, and the libraries around them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::probe::{self, Probe};
use super::{Check, State};

const MIB: u64 = 1 << 20;

/// Driver, GPUs and BAR1.
pub fn checks() -> Vec<Check> {
    let answer = probe::ask(Probe::Gpus);
    let mut checks = vec![driver(&answer)];
    checks.extend(gpus(&answer));
    checks.push(bar1(Path::new("/sys/bus/pci/devices")));
    checks
}

fn driver(answer: &Result<Value, String>) -> Check {
    let install = "install NVIDIA's driver, 525 or newer; in a container, start it with --gpus all";
    match answer {
        Ok(answer) => {
            let version: Vec<String> =
                answer["driver"].as_array().into_iter().flatten().map(ToString::to_string).collect();
            Check::new("driver", State::Ok, format!("for CUDA {}", version.join(".")), "kernels can run")
        }
        Err(why) => Check::new("driver", State::Missing, why, "files are read into CPU memory").fix(install),
    }
}

fn gpus(answer: &Result<Value, String>) -> Vec<Check> {
    let Ok(answer) = answer else { return Vec::new() };
    let gpus: Vec<Check> = answer["gpus"].as_array().into_iter().flatten().map(gpu).collect();
    if gpus.is_empty() {
        let why = answer["why"].as_str().unwrap_or("the driver shows none");
        let fix = "see `nvidia-smi` and CUDA_VISIBLE_DEVICES; in a container, start it with --gpus all";
        return vec![Check::new("gpu", State::Missing, why, "files are read into CPU memory").fix(fix)];
    }
    gpus
}

fn gpu(gpu: &Value) -> Check {
    let text = |key: &str| gpu[key].as_str().unwrap_or_default().to_string();
    let memory = gpu["memory"].as_u64().unwrap_or(0) / MIB;
    let found = format!("{}: {}, sm {}, {memory} MiB", text("name"), text("product"), text("capability"));
    Check::new("gpu", State::Ok, found, format!("`--device {}` reads into it", text("name")))
}

/// BAR1 is the window through which other devices reach GPU memory: nvidia-fs maps the buffers that it fills there.
fn bar1(devices: &Path) -> Check {
    let mut windows: Vec<(String, u64)> = fs::read_dir(devices)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_string_lossy().into_owned(), window(&entry.path())?)))
        .collect();
    windows.sort();
    if windows.is_empty() {
        let means = "how much GPU memory can be filled directly at a time is not known";
        return Check::new("bar1", State::Warn, "unknown: no NVIDIA GPU in /sys/bus/pci", means)
            .fix("nothing where there is no GPU; else `nvidia-smi -q -d MEMORY` shows it");
    }
    let found: Vec<String> = windows.iter().map(|(slot, bytes)| format!("{slot}: {} MiB", bytes / MIB)).collect();
    // 256 MiB is what a GPU shows without resizable BAR: little more than a few registered slabs.
    let small = windows.iter().any(|(_, bytes)| *bytes <= 256 * MIB);
    let check = |state, means| Check::new("bar1", state, found.join(", "), means);
    match small {
        true => check(State::Warn, "few bytes can be registered with cuFile at a time")
            .fix("enable `Above 4G decoding` and `Resizable BAR` in the firmware"),
        false => check(State::Ok, "that much GPU memory can be filled directly at a time"),
    }
}

/// The size of BAR1 of a PCI device, if it is an NVIDIA GPU.
fn window(device: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(device.join(name)).ok();
    // Vendor 10de; class 03: a display controller, 3D controllers included.
    if read("vendor")?.trim() != "0x10de" || !read("class")?.starts_with("0x03") {
        return None;
    }
    // A line a BAR: start, end, flags. A 64-bit BAR takes two lines; BAR1 is the second window, after the registers.
    let resource = read("resource")?;
    let mut lines = resource.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        Some((words.next()?.ok()?, words.next()?.ok()?))
    });
    let (start, end) = lines.next()??;
    end.checked_sub(start).filter(|_| end > 0)?.checked_add(1)
}

/// NVRTC, nvCOMP and the cache of kernels.
pub fn library_checks() -> Vec<Check> {
    let mut checks = vec![nvrtc(), nvcomp()];
    #[cfg(feature = "cuda")]
    checks.push(cache(parquet_gpu::device::cache::KernelCache::from_environment().folder()));
    checks
}

fn nvrtc() -> Check {
    match probe::ask(Probe::Nvrtc) {
        Ok(answer) => {
            let version = &answer["version"];
            let path = answer["path"].as_str().unwrap_or_default();
            let found = format!("{}.{} at {path}", version[0], version[1]);
            Check::new("nvrtc", State::Ok, found, "kernels are compiled for the GPU at hand")
        }
        // The message names the fix.
        Err(why) => Check::new("nvrtc", State::Missing, why, "kernels that are not in the cache cannot be compiled")
            .fix("install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`"),
    }
}

fn nvcomp() -> Check {
    match probe::ask(Probe::Nvcomp) {
        Ok(answer) => {
            let text = |key: &str| answer[key].as_str().unwrap_or_default().to_string();
            let found = format!("{} at {}", text("version"), text("path"));
            Check::new("nvcomp", State::Ok, found, "ZSTD and GZIP pages are decompressed on the GPU")
        }
        Err(why) => Check::new("nvcomp", State::Missing, why, "ZSTD and GZIP pages are decompressed on the CPU")
            .fix("`pip install nvidia-libnvcomp-cu12`, or -cu13 for a driver of 13.0 and newer"),
    }
}

#[cfg(feature = "cuda")]
fn cache(folder: Option<&Path>) -> Check {
    let slow = "every process compiles its kernels, which takes a second or two";
    let fix = "set PARQUET_GPU_CACHE_DIR to a folder that can be written";
    let Some(folder) = folder else {
        return Check::new("kernel cache", State::Warn, "none", slow).fix(fix);
    };
    let nearest = folder.ancestors().find(|it| it.exists());
    let found = folder.display().to_string();
    if nearest.is_some_and(super::files::writable) {
        let kernels = fs::read_dir(folder).map_or(0, |entries| entries.flatten().count());
        return Check::new("kernel cache", State::Ok, format!("{found}, {kernels} kernels"), "a kernel compiles once");
    }
    Check::new("kernel cache", State::Warn, format!("{found} cannot be written"), slow).fix(fix)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bar1_of_a_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let write = |device: &str, name: &str, text: &str| {
            let device = folder.path().join(device);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join(name), text).unwrap();
        };
        for (device, vendor) in [("0000:01:00.0", "0x10de\n"), ("0000:02:00.0", "0x8086\n")] {
            write(device, "vendor", vendor);
            write(device, "class", "0x030200\n");
            let lines =
                "0x0000000090000000 0x0000000090ffffff 0x40200\n0x0000000800000000 0x0000000fffffffff 0x14220c\n";
            write(device, "resource", lines);
        }
        let check = bar1(folder.path());
        assert_eq!((check.state, check.found.as_str()), (State::Ok, "0000:01:00.0: 32768 MiB"));
        assert_eq!(bar1(&folder.path().join("nothing")).state, State::Warn);
    }
}
