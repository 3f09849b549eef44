//! A plan as a table of at most 80 columns.

use std::collections::BTreeMap;
use std::fmt;

use super::{BatchPlan, Route, ScanPlan};

impl fmt::Display for ScanPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: usize = self.batches.iter().map(|it| it.row_groups.len()).sum();
        let rows: u64 = self.batches.iter().map(|it| it.rows).sum();
        writeln!(
            f,
            "{} columns, {groups} row groups, {rows} rows in {} batches",
            self.leaves.len(),
            self.batches.len()
        )?;
        if !self.repaired.is_empty() {
            writeln!(f, "{}", cut(&format!("footer repaired: {}", self.repaired.join(", "))))?;
        }
        self.batches.iter().enumerate().try_for_each(|(at, batch)| batch.write(f, at))
    }
}

impl BatchPlan {
    fn write(&self, f: &mut fmt::Formatter<'_>, at: usize) -> fmt::Result {
        let groups = match (self.row_groups.first(), self.row_groups.last()) {
            (Some(first), Some(last)) if first.index != last.index => format!("{} to {}", first.index, last.index),
            (Some(only), _) => only.index.to_string(),
            _ => "none".into(),
        };
        writeln!(f, "\nbatch {at}: row groups {groups}, {} rows", self.rows)?;
        writeln!(f, "  slab {} bytes, device memory up to {} bytes", self.slab_bytes, self.memory)?;
        writeln!(f, "  {:>14} {:>12} {:>8} {:>6} {:<6} reason", "offset", "bytes", "wasted", "tasks", "route")?;
        for range in &self.ranges {
            let route = match range.route {
                Route::Direct => "direct",
                Route::Host => "host",
            };
            let bytes = range.read.end - range.read.start;
            let line = format!(
                "  {:>14} {bytes:>12} {:>8} {:>6} {route:<6} {}",
                range.read.start,
                range.wasted,
                range.tasks.len(),
                range.reason
            );
            writeln!(f, "{}", cut(&line))?;
        }
        let mut on_cpu: BTreeMap<&str, usize> = BTreeMap::new();
        let first = self.row_groups.first().map(|it| it.index);
        for chunk in self.chunks.iter().filter(|it| Some(it.row_group) == first) {
            if let Some(reason) = &chunk.on_cpu {
                *on_cpu.entry(reason).or_default() += 1;
            }
        }
        on_cpu
            .iter()
            .try_for_each(|(reason, count)| writeln!(f, "{}", cut(&format!("  columns on cpu: {count}, {reason}"))))
    }
}

/// The line, at most 80 columns of it.
fn cut(line: &str) -> String {
    if line.chars().count() <= 80 { line.into() } else { line.chars().take(79).chain(['…']).collect() }
}
