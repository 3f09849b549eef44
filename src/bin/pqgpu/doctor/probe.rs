//! Foreign libraries, loaded in a child process: one that hangs or crashes takes the child with it and nothing else.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parquet_gpu::device::Device;
use parquet_gpu::sys::cufile::CuFile;
use parquet_gpu::sys::nvcomp::NvComp;
use parquet_gpu::{Error, Result};
use serde_json::{Value, json};

use crate::Status;

/// Opening cuFile took at most half a second where it opened at all; where it waits, it waits for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// What a child looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Probe {
    /// The CUDA driver and its GPUs.
    Gpus,
    /// libcufile, loaded.
    Cufile,
    /// cuFile's driver, opened.
    CufileOpen,
    /// NVRTC, loaded.
    Nvrtc,
    /// nvCOMP, loaded.
    Nvcomp,
}

/// Runs a probe in a child and returns what it found.
///
/// # Errors
/// What went wrong, for people.
pub fn ask(probe: Probe) -> Result<Value, String> {
    let name = clap::ValueEnum::to_possible_value(&probe).map(|it| it.get_name().to_string()).unwrap_or_default();
    let program = std::env::current_exe().map_err(|error| format!("cannot start a child: {error}"))?;
    let mut command = Command::new(program);
    command.args(["doctor-probe", &name]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    if std::env::var_os("CUFILE_LOGFILE_PATH").is_none() {
        command.env("CUFILE_LOGFILE_PATH", "/dev/null"); // else it writes cufile.log into the working directory
    }
    let mut child = command.spawn().map_err(|error| format!("cannot start a child: {error}"))?;
    let pipe = child.stdout.take();
    // Read on the side, so that a talkative library does not block on a full pipe.
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // A child that waits inside the kernel does not die at once, so nobody waits for it.
                let _ = child.kill();
                return Err(format!("did not return within {} s", LIMIT.as_secs()));
            }
            Err(error) => return Err(format!("lost the child: {error}")),
        }
    };
    let text = reader.join().unwrap_or_default();
    // The library may have written to standard output, too; the answer is the last line.
    let answer = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    match answer {
        Some(answer) => match answer.get("error").and_then(Value::as_str) {
            Some(error) => Err(error.to_string()),
            None => Ok(answer),
        },
        None => Err(format!("the child ended without an answer: {status}")),
    }
}

/// The child's side.
pub fn serve(probe: Probe) -> Result<Status> {
    let answer = match probe {
        Probe::Gpus => gpus(),
        Probe::Cufile => cufile(),
        Probe::CufileOpen => cufile_open(),
        Probe::Nvrtc => nvrtc(),
        Probe::Nvcomp => nvcomp(),
    };
    // On a line of its own, whatever the library wrote before.
    println!("\n{}", answer.unwrap_or_else(|error| json!({ "error": error.to_string() })));
    Ok(Status::Done)
}

#[cfg(feature = "cuda")]
fn gpus() -> Result<Value> {
    use parquet_gpu::device::cuda;
    let version = cuda::driver_version()?;
    let gpus = match cuda::devices() {
        Ok(devices) => devices
            .iter()
            .map(|it| {
                json!({
                    "name": it.name,
                    "product": it.product,
                    "capability": format!("{}.{}", it.capability.0, it.capability.1),
                    "memory": it.memory,
                })
            })
            .collect::<Vec<_>>(),
        Err(error) => return Ok(json!({ "driver": version, "gpus": [], "why": error.to_string() })),
    };
    Ok(json!({ "driver": version, "gpus": gpus }))
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> Result<Value> {
    Err(Error::Argument("this build lacks the feature `cuda`".into()))
}

fn cufile() -> Result<Value> {
    let library = CuFile::find(None)?;
    Ok(json!({
        "path": library.path().to_string_lossy(),
        "version": library.version(),
        "text": library.version_text(),
    }))
}

fn cufile_open() -> Result<Value> {
    let library = CuFile::find(None)?;
    // Device buffers need a context that is current on this thread.
    let device = Device::open(Default::default())?;
    if let Device::Gpu(gpu) = &device {
        gpu.backend().bind()?;
    }
    // SAFETY: it takes nothing. The process ends after this, so it is not closed.
    let status = unsafe { (library.functions.cuFileDriverOpen)() };
    match status.code {
        0 => Ok(json!({ "device": device.name() })),
        code => {
            Err(Error::CuFile { call: "cuFileDriverOpen", code, message: parquet_gpu::io::cufile::describe(status) })
        }
    }
}

#[cfg(feature = "cuda")]
fn nvrtc() -> Result<Value> {
    let driver = parquet_gpu::device::cuda::driver_version().ok().map(|it| it.0);
    let nvrtc = parquet_gpu::sys::nvrtc::Nvrtc::get(driver)?;
    Ok(json!({ "path": nvrtc.path().to_string_lossy(), "version": nvrtc.version() }))
}

#[cfg(not(feature = "cuda"))]
fn nvrtc() -> Result<Value> {
    let nvrtc = parquet_gpu::sys::nvrtc::Nvrtc::get(None)?;
    Ok(json!({ "path": nvrtc.path().to_string_lossy(), "version": nvrtc.version() }))
}

fn nvcomp() -> Result<Value> {
    let library = NvComp::find(None)?;
    Ok(json!({ "path": library.path().to_string_lossy(), "version": library.version_text() }))
}
