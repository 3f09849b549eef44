//! Which path every operation took, and why: ours counted as it happens, cuFile's reconciled with its statistics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::plan::RouteReason;

/// Operations and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.bytes += other.bytes;
    }
}

/// Reads that cuFile's level-3 statistics counted for a GPU, by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads {
    /// All.
    pub total: u64,
    /// Through nvidia-fs.
    pub nvfs: u64,
    /// Through PCIe peer to peer.
    pub p2p: u64,
    /// Through CPU memory.
    pub posix: u64,
}

impl Reads {
    /// What was counted since `before`; `None` where a counter went back, as somebody reset them.
    pub fn since(self, before: Self) -> Option<Self> {
        self.zip(before, u64::checked_sub)
    }

    fn plus(self, other: Self) -> Self {
        self.zip(other, |one, two| Some(one.saturating_add(two))).unwrap_or_default()
    }

    fn zip(self, other: Self, with: impl Fn(u64, u64) -> Option<u64>) -> Option<Self> {
        Some(Self {
            total: with(self.total, other.total)?,
            nvfs: with(self.nvfs, other.nvfs)?,
            p2p: with(self.p2p, other.p2p)?,
            posix: with(self.posix, other.posix)?,
        })
    }
}

/// What cuFile's statistics have counted at one time, a row a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<[u8; 16], Reads>);

impl Snapshot {
    /// Enters the row of the GPU with this UUID.
    pub fn add(&mut self, uuid: [u8; 16], reads: Reads) {
        let row = self.0.entry(uuid).or_default();
        *row = row.plus(reads);
    }

    /// What was counted since `before` for the GPU with this UUID or, where no row has it, for all together; `None` when
    /// there is no row, or where a counter went back: then nothing is proven. A row appears with its GPU's first read, so one that is missing in `before` was zero.
    pub fn since(&self, before: &Self, uuid: Option<[u8; 16]>) -> Option<Reads> {
        let counted = |(uuid, reads): (&[u8; 16], &Reads)| reads.since(before.0.get(uuid).copied().unwrap_or_default());
        match uuid.and_then(|it| self.0.get_key_value(&it)) {
            Some(row) => counted(row),
            None => self.0.iter().map(counted).reduce(|one, two| Some(one?.plus(two?)))?,
        }
    }
}

/// The account of one scan. Safe to share between threads.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<PathReport>);

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, PathReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters host reads of one range.
    pub fn host(&self, reason: &RouteReason, ops: u64, bytes: u64) {
        let count = Count { ops, bytes };
        let mut report = self.entries();
        report.host.add(count);
        report.reasons.entry(reason.to_string()).or_default().add(count);
        if let RouteReason::CuFileRefused(why) = reason {
            *report.fallbacks.entry(why.clone()).or_default() += ops;
        }
    }

    /// Enters reads that cuFile did for us on `gpu`, and what its statistics counted meanwhile; `None`: it has none.
    pub fn direct(&self, gpu: &str, ours: Count, counted: Option<Reads>) {
        let paths = reconcile(ours, counted);
        let mut report = self.entries();
        report.nvfs.add(paths.nvfs);
        report.p2p.add(paths.p2p);
        report.cufile_posix.add(paths.posix);
        report.unknown.add(paths.unknown);
        report.unaccounted.add(paths.unaccounted);
        report.gpus.entry(gpu.to_string()).or_default().add(&paths);
    }

    /// Notes something that the counts do not say, once.
    pub fn remark(&self, text: impl Into<String>) {
        let text = text.into();
        let mut report = self.entries();
        if !report.remarks.contains(&text) {
            report.remarks.push(text);
        }
    }

    /// The account so far.
    pub fn report(&self) -> PathReport {
        self.entries().clone()
    }
}

/// Operations of cuFile by path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuPaths {
    /// Through nvidia-fs.
    pub nvfs: Count,
    /// Through PCIe peer to peer.
    pub p2p: Count,
    /// Through CPU memory.
    pub posix: Count,
    /// cuFile did not say.
    pub unknown: Count,
    /// Counted by one side alone.
    pub unaccounted: Count,
}

impl GpuPaths {
    fn add(&mut self, other: &Self) {
        self.nvfs.add(other.nvfs);
        self.p2p.add(other.p2p);
        self.posix.add(other.posix);
        self.unknown.add(other.unknown);
        self.unaccounted.add(other.unaccounted);
    }
}

/// Attributes our operations to paths by what cuFile counted in the same time, by operations alone: a short read at a
/// file's end counts its aligned size, so bytes do not add up and are only divided for display.
///
/// Where cuFile counted more reads than ours, somebody else in the process uses it, and which of the reads were ours is
/// not known: then ours are taken for the slowest ones, so that nothing is called direct that may not have been. Where
/// it counted fewer, ours that it does not know are unaccounted.
fn reconcile(ours: Count, counted: Option<Reads>) -> GpuPaths {
    let Some(counted) = counted else { return GpuPaths { unknown: ours, ..GpuPaths::default() } };
    let mut left = ours.ops;
    let mut take = |ops: u64| {
        let taken = ops.min(left);
        left -= taken;
        taken
    };
    let posix = take(counted.posix);
    // Reads of no path that we know, such as those that a newer library counts elsewhere.
    let named = counted.nvfs.saturating_add(counted.p2p).saturating_add(counted.posix);
    let unknown = take(counted.total.saturating_sub(named));
    let (p2p, nvfs) = (take(counted.p2p), take(counted.nvfs));
    let missing = left;
    let foreign = counted.total.saturating_sub(ours.ops);

    let mut bytes_left = ours.bytes;
    let mut share = |ops: u64, last: bool| {
        let bytes = if last {
            bytes_left
        } else {
            (u128::from(ours.bytes) * u128::from(ops) / u128::from(ours.ops.max(1))) as u64
        };
        let bytes = if ops == 0 { 0 } else { bytes.min(bytes_left) };
        bytes_left -= bytes;
        Count { ops, bytes }
    };
    let parts = [nvfs, p2p, posix, unknown, missing];
    let last = parts.iter().rposition(|ops| *ops > 0);
    let [nvfs, p2p, posix, unknown, missing] = std::array::from_fn(|at| share(parts[at], Some(at) == last));
    let unaccounted = Count { ops: missing.ops + foreign, bytes: missing.bytes };
    GpuPaths { nvfs, p2p, posix, unknown, unaccounted }
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
    /// cuFile read it, by a library that does not say how.
    pub unknown: Count,
    /// Our own reads.
    pub host: Count,
    /// Operations where our count and cuFile's differ.
    pub unaccounted: Count,
    /// cuFile's operations by GPU.
    pub gpus: BTreeMap<String, GpuPaths>,
    /// Host operations by reason.
    pub reasons: BTreeMap<String, Count>,
    /// Operations that were meant for cuFile and were not given to it, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// What else is worth knowing, such as a registration that failed.
    pub remarks: Vec<String>,
}

/// What a path report proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every operation of cuFile went from storage to the GPU: nvfs + p2p = all.
    Direct,
    /// Some did, some did not.
    Mixed,
    /// Every operation of cuFile crossed CPU memory.
    CpuMemory,
    /// cuFile was not used.
    Host,
    /// cuFile was used and does not say how.
    Unknown,
    /// Our count and cuFile's differ.
    Unaccounted,
}

impl Verdict {
    /// One word, for `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Mixed => "mixed",
            Self::CpuMemory => "cpu_memory",
            Self::Host => "host",
            Self::Unknown => "unknown",
            Self::Unaccounted => "unaccounted",
        }
    }
}

impl PathReport {
    /// What the counts prove.
    pub fn verdict(&self) -> Verdict {
        let (direct, posix) = (self.nvfs.ops + self.p2p.ops, self.cufile_posix.ops);
        if self.unaccounted.ops > 0 {
            Verdict::Unaccounted
        } else if self.unknown.ops > 0 {
            Verdict::Unknown
        } else if direct + posix == 0 {
            Verdict::Host
        } else if direct == 0 {
            Verdict::CpuMemory
        } else if posix > 0 || !self.fallbacks.is_empty() {
            Verdict::Mixed
        } else {
            Verdict::Direct
        }
    }

    /// Fails unless every byte that could have gone from storage to the GPU provably did.
    ///
    /// Operations below `gds_threshold` do not count against it: they are the host's by plan. Everything else on the
    /// host does: compat mode, a refusal, a remote source, the CPU device, a column that arrow-rs decodes. A scan that
    /// read everything through the host fails, too, however little it was: it proved nothing.
    ///
    /// # Errors
    /// [`Error::GdsRequired`] with what was seen instead.
    pub fn require_gds(&self) -> Result<()> {
        let by_plan = RouteReason::BelowThreshold.to_string();
        let on_host = self.reasons.iter().find(|(reason, _)| **reason != by_plan);
        let message = match (self.verdict(), on_host) {
            (Verdict::Direct, None) => return Ok(()),
            (Verdict::Host, None) if self.host.ops == 0 => return Ok(()), // nothing was read
            (_, Some((reason, count))) => format!("{} operations went through the host: {reason}", count.ops),
            (verdict, None) => format!("{}: {}", verdict.name(), self.explain()),
        };
        Err(Error::GdsRequired { message })
    }

    /// The verdict in a sentence, with the reason where it is known.
    pub fn explain(&self) -> String {
        let sentence = match self.verdict() {
            Verdict::Direct => "every operation of cuFile went from storage to the GPU".into(),
            Verdict::Mixed => format!(
                "{} operations went from storage to the GPU, {} crossed CPU memory",
                self.nvfs.ops + self.p2p.ops,
                self.cufile_posix.ops + self.fallbacks.values().sum::<u64>()
            ),
            Verdict::CpuMemory => "every operation of cuFile crossed CPU memory".into(),
            Verdict::Host => "cuFile was not used".into(),
            Verdict::Unknown => "this libcufile does not say which path it took".into(),
            Verdict::Unaccounted => {
                "cuFile's count and ours differ; something else in this process uses cuFile".to_string()
            }
        };
        let reasons: Vec<&str> = self.remarks.iter().chain(self.fallbacks.keys()).map(String::as_str).collect();
        match reasons.is_empty() {
            true => sentence,
            false => format!("{sentence}: {}", reasons.join("; ")),
        }
    }
}

/// The path table, at most 80 columns wide.
impl std::fmt::Display for PathReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:<13} {:>9} {:>11}  meaning", "path", "ops", "MiB")?;
        let mut row = |path: &str, count: Count, meaning: &str| {
            let mib = count.bytes as f64 / f64::from(1 << 20);
            let line = format!("{path:<13} {:>9} {mib:>11.1}  {meaning}", count.ops);
            let line: String = line.chars().take(80).collect();
            writeln!(f, "{}", line.trim_end())
        };
        row("cufile/nvfs", self.nvfs, "storage to GPU directly")?;
        row("cufile/p2p", self.p2p, "storage to GPU directly, without nvidia-fs")?;
        row("cufile/posix", self.cufile_posix, "cuFile went through CPU memory")?;
        if self.unknown.ops > 0 {
            row("cufile/?", self.unknown, "this libcufile does not say")?;
        }
        if self.reasons.is_empty() {
            row("host", self.host, "")?;
        }
        for (reason, count) in &self.reasons {
            row("host", *count, reason)?;
        }
        row("unaccounted", self.unaccounted, "")?;
        let verdict = format!("verdict: {}, {}", self.verdict().name(), self.explain());
        for line in wrap(&verdict, 80) {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Lines of at most `width` columns, broken at spaces; a longer word is cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let word: String = word.chars().take(width).collect();
        let last = lines.last_mut().expect("it starts with a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word);
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(&word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(ops: u64) -> Count {
        Count { ops, bytes: ops * 100 }
    }

    fn reads(nvfs: u64, p2p: u64, posix: u64) -> Option<Reads> {
        Some(Reads { total: nvfs + p2p + posix, nvfs, p2p, posix })
    }

    fn report(ops: u64, counted: Option<Reads>) -> PathReport {
        let ledger = Ledger::default();
        ledger.direct("gpu", ours(ops), counted);
        ledger.report()
    }

    #[test]
    fn equal_counts_are_attributed() {
        let direct = report(10, reads(7, 3, 0));
        assert_eq!((direct.nvfs, direct.p2p, direct.unaccounted.ops), (ours(7), ours(3), 0));
        assert_eq!(direct.verdict(), Verdict::Direct);
        direct.require_gds().expect("all direct");
        let mixed = report(10, reads(7, 0, 3));
        assert_eq!((mixed.verdict(), mixed.cufile_posix), (Verdict::Mixed, ours(3)));
        assert_eq!(mixed.require_gds().expect_err("3 are not").kind(), "gds_required");
        assert_eq!(report(10, reads(0, 0, 10)).verdict(), Verdict::CpuMemory);
    }

    #[test]
    fn a_row_that_appears_with_our_first_read_is_compared_with_nothing() {
        let row = |nvfs, posix| Reads { total: nvfs + posix, nvfs, p2p: 0, posix };
        let (mut before, mut after) = (Snapshot::default(), Snapshot::default());
        before.add([1; 16], row(0, 4)); // another GPU's, read into earlier
        after.add([1; 16], row(0, 4));
        after.add([2; 16], row(10, 0));
        assert_eq!(after.since(&before, Some([2; 16])), reads(10, 0, 0));
        assert_eq!(report(10, after.since(&before, Some([2; 16]))).verdict(), Verdict::Direct);
        // No row is ours by name: all that was counted meanwhile.
        assert_eq!(after.since(&before, None), reads(10, 0, 0));
        assert_eq!(after.since(&after, Some([2; 16])), reads(0, 0, 0));
        assert_eq!(Snapshot::default().since(&Snapshot::default(), Some([2; 16])), None);
    }

    #[test]
    fn counters_that_went_back_prove_nothing() {
        // Reset meanwhile, 303 reads ago, of which 3 went through CPU memory: a difference that stops at zero would show
        // none of these 3, and the reads of somebody else fill the gap.
        let row = |nvfs, posix| Reads { total: nvfs + posix, nvfs, p2p: 0, posix };
        let (mut before, mut after) = (Snapshot::default(), Snapshot::default());
        before.add([1; 16], row(0, 203));
        after.add([1; 16], row(300, 3));
        for uuid in [Some([1; 16]), None] {
            assert_eq!(after.since(&before, uuid), None);
        }
    }

    #[test]
    fn reads_of_others_make_ours_the_slowest() {
        let report = report(10, reads(10, 0, 4));
        assert_eq!((report.cufile_posix, report.nvfs, report.unaccounted.ops), (ours(4), ours(6), 4));
        assert_eq!(report.verdict(), Verdict::Unaccounted);
        report.require_gds().expect_err("not proven");
    }

    #[test]
    fn no_posix_read_alone_proves_nothing() {
        let fewer = report(10, reads(4, 0, 0));
        assert_eq!((fewer.nvfs.ops, fewer.unaccounted), (4, ours(6)));
        let silent = report(10, Some(Reads { total: 10, ..Reads::default() }));
        assert_eq!((silent.unknown, silent.verdict()), (ours(10), Verdict::Unknown));
        let none = report(10, None);
        assert_eq!((none.unknown, none.verdict()), (ours(10), Verdict::Unknown));
        none.require_gds().expect_err("unknown is not direct");
    }

    #[test]
    fn host_reads_violate_only_when_the_plan_would_have_had_them_direct() {
        let ledger = Ledger::default();
        ledger.direct("gpu", ours(2), reads(2, 0, 0));
        ledger.host(&RouteReason::BelowThreshold, 3, 30);
        ledger.report().require_gds().expect("below the threshold by plan");
        ledger.host(&RouteReason::CuFileRefused("5027".into()), 1, 10);
        let report = ledger.report();
        report.require_gds().expect_err("refused");
        assert_eq!((report.fallbacks["5027"], report.verdict()), (1, Verdict::Mixed));
        for line in report.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
