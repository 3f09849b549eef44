//! `pqgpu doctor`: what this machine offers, what it means, and how to fix what is missing. Changes nothing: foreign
//! libraries are loaded in child processes with a time limit, and everything else is read.

mod cufile;
mod files;
mod gpu;
pub mod probe;

use parquet_gpu::Result;
use serde_json::{Value, json};

use crate::Status;
use crate::args::Doctor;
use crate::report;

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There, and fit for use.
    Ok,
    /// There, but slower or less than it could be; or not to be told.
    Warn,
    /// Not there.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Missing => "missing",
        }
    }
}

/// One entry of the report.
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What that means for reading.
    means: String,
    /// What to do about it, where there is something.
    fix: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { name, state, found: found.into(), means: means.into(), fix: None }
    }

    fn fix(mut self, how: impl Into<String>) -> Self {
        self.fix = Some(how.into());
        self
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = report::wrap(&format!("{:<8} {:<14} ", self.state.name(), self.name), &self.found);
        lines.extend(report::wrap("           means: ", &self.means));
        if let Some(fix) = &self.fix {
            lines.extend(report::wrap("           fix:   ", fix));
        }
        lines
    }

    fn object(&self) -> Value {
        json!({
            "check": self.name,
            "state": self.state.name(),
            "found": self.found,
            "means": self.means,
            "fix": self.fix,
        })
    }
}

pub fn run(args: &Doctor) -> Result<Status> {
    let mut checks = gpu::checks();
    checks.extend(cufile::checks());
    checks.extend(files::checks(&args.path));
    checks.extend(gpu::library_checks());
    if args.json {
        let checks: Vec<Value> = checks.iter().map(Check::object).collect();
        println!("{}", json!({ "path": args.path.to_string_lossy(), "checks": checks }));
    } else {
        checks.iter().flat_map(Check::lines).for_each(|line| println!("{line}"));
    }
    Ok(Status::Done)
}
