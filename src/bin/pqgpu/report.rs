//! Results as text that fits 80 columns, and as JSON.

use std::collections::BTreeMap;

use parquet_gpu::io::ledger::Count;
use parquet_gpu::{Error, PathReport};
use serde_json::{Map, Value, json};

/// A size for people.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Gigabytes a second, 10^9 bytes each.
pub fn speed(bytes: u64, seconds: f64) -> String {
    if seconds > 0.0 { format!("{:.2} GB/s", bytes as f64 / seconds / 1e9) } else { "-".into() }
}

/// The median of some times, in seconds.
pub fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// A line of at most 80 columns.
pub fn line(text: &str) -> String {
    if text.chars().count() <= 80 { text.into() } else { text.chars().take(79).chain(['…']).collect() }
}

/// Columns on the CPU, by reason.
pub fn by_reason(columns: &BTreeMap<String, String>) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for reason in columns.values() {
        *reasons.entry(reason.as_str()).or_default() += 1;
    }
    reasons
}

/// The `paths` of the JSON contract.
pub fn paths(report: &PathReport) -> Value {
    let count = |it: Count| json!({ "ops": it.ops, "bytes": it.bytes });
    json!({
        "nvfs": count(report.nvfs),
        "p2p": count(report.p2p),
        "cufile_posix": count(report.cufile_posix),
        "unknown": count(report.unknown),
        "host": count(report.host),
        "unaccounted": count(report.unaccounted),
    })
}

/// `fallbacks`, `reasons`, `remarks` and `verdict`, added to an object.
pub fn add_verdict(object: &mut Map<String, Value>, report: &PathReport) {
    let reasons: Map<String, Value> = report.reasons.iter().map(|(it, count)| (it.clone(), count.ops.into())).collect();
    object.insert("fallbacks".into(), json!(report.fallbacks));
    object.insert("reasons".into(), Value::Object(reasons));
    object.insert("remarks".into(), json!(report.remarks));
    object.insert("verdict".into(), report.verdict().name().into());
}

/// The object of a file that failed.
pub fn failure(file: &str, error: &Error) -> Value {
    let place = error.place();
    json!({
        "file": file,
        "error": {
            "kind": error.kind(),
            "message": error.to_string(),
            "row_group": place.and_then(|it| it.row_group),
            "column": place.and_then(|it| it.column.clone()),
            "page": place.and_then(|it| it.page),
            "offset": place.and_then(|it| it.offset),
        },
    })
}
