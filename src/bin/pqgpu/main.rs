//! The command `pqgpu`: scans Parquet files into GPU memory, and says which path every byte took.

mod args;
mod doctor;
mod names;
mod plan;
mod read;
mod report;
mod scan;

use std::process::ExitCode;

use clap::Parser;
use parquet_gpu::Error;

use args::{Args, Command};

/// How a run ended. Of several files the gravest counts, which is the last in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    /// Everything was done.
    Done,
    /// `--require-gds` was not met.
    GdsNotMet,
    /// `--verify` found a difference.
    Differs,
    /// Something failed.
    Failed,
    /// The command line makes no sense.
    Usage,
}

impl Status {
    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::GdsNotMet => 3,
            Self::Differs => 4,
        }
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::Argument(_) => Self::Usage,
            Error::GdsRequired { .. } => Self::GdsNotMet,
            _ => Self::Failed,
        }
    }
}

fn main() -> ExitCode {
    // A closed pipe ends the command quietly, as it ends every other.
    // SAFETY: it runs before any thread is made, and SIG_DFL is a valid handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    ignore_empty_variables();
    let args = Args::parse(); // exits with 2 itself
    let outcome = match &args.command {
        Command::Scan(it) => scan::run(it),
        Command::Plan(it) => plan::run(it),
        Command::Read(it) => read::run(it),
        Command::Doctor(it) => doctor::run(it),
        Command::DoctorProbe { probe } => doctor::probe::serve(*probe),
    };
    let status = outcome.unwrap_or_else(|error| {
        complain(&error.to_string());
        Status::of(&error)
    });
    ExitCode::from(status.code())
}

/// An empty variable is not set, as in `ReadOptions::from_env`; clap would read it as a value.
fn ignore_empty_variables() {
    let ours = |name: &str| name.starts_with("PARQUET_GPU_");
    for (name, _) in std::env::vars_os().filter(|(name, value)| value.is_empty() && name.to_str().is_some_and(ours)) {
        // SAFETY: it runs before any thread is made.
        unsafe { std::env::remove_var(name) };
    }
}

/// A line on standard error.
fn complain(message: &str) {
    eprintln!("pqgpu: {}", report::printable(message));
}

/// Reports what failed for one file: as an object on standard output with `--json`, else on standard error.
fn failed(file: &str, error: &Error, as_json: bool) -> Status {
    let is_named = match error {
        Error::NotFound { source_name: name, .. } | Error::Io { what: name, .. } => name.contains(file),
        _ => false,
    };
    match as_json {
        true => println!("{}", report::failure(file, error)),
        false if is_named => complain(&error.to_string()),
        false => complain(&format!("{file}: {error}")),
    }
    Status::of(error)
}
