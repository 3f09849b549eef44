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
    let (below, above) = (seconds.len().saturating_sub(1) / 2, seconds.len() / 2);
    match (seconds.get(below), seconds.get(above)) {
        (Some(below), Some(above)) => f64::midpoint(*below, *above),
        _ => 0.0,
    }
}

/// Columns of a line.
pub const WIDTH: usize = 80;

/// A line of at most 80 columns.
pub fn line(text: &str) -> String {
    let text = printable(text).replace('\n', "\\n");
    if text.chars().count() <= WIDTH { text } else { text.chars().take(WIDTH - 1).chain(['…']).collect() }
}

/// Text with control characters escaped: names in a file are anybody's, and must not steer a terminal.
pub fn printable(text: &str) -> String {
    let mut printed = String::with_capacity(text.len());
    for char in text.chars() {
        match char.is_control() && char != '\n' {
            true => printed.extend(char.escape_default()),
            false => printed.push(char),
        }
    }
    printed
}

/// `text` after `first`, broken at spaces; further lines are indented as far as the text of the first.
pub fn wrap(first: &str, text: &str) -> Vec<String> {
    let indent = first.chars().count();
    let mut lines = vec![first.to_string()];
    let mut used = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > indent && used + 1 + length > WIDTH {
            lines.push(" ".repeat(indent));
            used = indent;
        }
        let last = lines.last_mut().expect("it starts with a line");
        if used > indent {
            last.push(' ');
            used += 1;
        }
        last.push_str(word);
        used += length;
    }
    lines.iter().map(|it| line(it.trim_end())).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_do_not_steer() {
        let lines = wrap("ok  ", &"word ".repeat(40));
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|it| it.chars().count() <= WIDTH));
        assert!(lines[1].starts_with("    word"));
        assert_eq!(wrap("a ", ""), ["a"]);
        assert_eq!(line("a\nb"), "a\\nb");
        assert_eq!(line(&"ß".repeat(100)).chars().count(), WIDTH);
        assert_eq!(printable("a\u{1b}[2Jb\nß"), "a\\u{1b}[2Jb\nß");
    }

    #[test]
    fn speeds_and_sizes() {
        assert_eq!((size(1023), size(1536), size(4 << 40)), ("1023 B".into(), "1.5 KiB".into(), "4.0 TiB".into()));
        assert_eq!((speed(2_000_000_000, 0.5), speed(1, 0.0)), ("4.00 GB/s".into(), "-".into()));
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![])), (2.0, 0.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
    }
}
