//! `pqgpu scan`.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parquet_gpu::device::Device;
use parquet_gpu::io::Source;
use parquet_gpu::verify::{Difference, Verifier};
use parquet_gpu::{Error, ReadOptions, Result, ScanReport};
use serde_json::{Value, json};

use crate::Status;
use crate::args::{Scan, Selected};
use crate::{names, report};

/// What one file came to.
struct Scanned {
    report: ScanReport,
    seconds: f64,
    difference: Option<Difference>,
}

pub fn run(args: &Scan) -> Result<Status> {
    let options = args.common.options()?;
    let device = args.common.open_device()?;
    let bar = progress();
    let mut worst = Status::Done;
    for argument in &args.sources {
        let names = match names::expand(argument) {
            Ok(names) => names,
            Err(error) => {
                worst = worst.max(crate::failed(&names::shown(argument), &error, args.common.json));
                continue;
            }
        };
        for name in &names {
            bar.set_message(names::shown(name));
            let outcome = scan(args, name, &device, &options, &bar);
            let status = bar.suspend(|| tell(args, &names::shown(name), &device, &options, outcome));
            worst = worst.max(status);
        }
    }
    bar.finish_and_clear();
    Ok(worst)
}

fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_msg} {human_pos} of {human_len} rows");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn scan(args: &Scan, name: &str, device: &Device, options: &ReadOptions, bar: &ProgressBar) -> Result<Scanned> {
    let source = Arc::new(Source::open(name)?);
    let mut seconds = Vec::new();
    let runs = args.repeat.map_or(1, |timed| timed.max(1) + 1);
    let mut last = None;
    for run in 0..runs {
        let (builder, selected) = args.selection.builder(source.clone(), device.clone(), options.clone())?;
        let footer = builder.footer().with_types(options)?;
        let rows = u64::try_from(footer.metadata().file_metadata().num_rows()).unwrap_or(0);
        bar.set_length(rows);
        bar.set_position(0);
        let mut verifier = match args.verify && run == 0 {
            true => {
                let Selected { projection, row_groups, rows } = selected;
                Some(Verifier::new(source.clone(), &footer, &projection, row_groups, rows.as_ref())?)
            }
            false => None,
        };
        let mut difference = None;
        // The footer was read before, as any engine does when it plans a query.
        let mut start = Instant::now();
        let mut elapsed = 0.0;
        let mut reader = builder.build()?;
        for batch in reader.by_ref() {
            let batch = batch?;
            elapsed += start.elapsed().as_secs_f64();
            bar.inc(batch.num_rows() as u64);
            if let (Some(verifier), None) = (&mut verifier, &difference) {
                difference = verifier.check(&batch)?;
            }
            drop(batch); // not part of the time that reading takes
            start = Instant::now();
        }
        elapsed += start.elapsed().as_secs_f64();
        if let (Some(verifier), None) = (verifier, &difference) {
            difference = verifier.finish()?;
        }
        if run > 0 || runs == 1 {
            seconds.push(elapsed);
        }
        let difference = last.take().and_then(|it: Scanned| it.difference).or(difference);
        last = Some(Scanned { report: reader.report(), seconds: 0.0, difference });
    }
    let last = last.ok_or_else(|| Error::Argument("nothing was scanned".into()))?;
    Ok(Scanned { seconds: report::median(seconds), ..last })
}

/// Prints the outcome of a file and says what it means for the exit status.
fn tell(args: &Scan, name: &str, device: &Device, options: &ReadOptions, outcome: Result<Scanned>) -> Status {
    let scanned = match outcome {
        Ok(scanned) => scanned,
        Err(error) => return crate::failed(name, &error, args.common.json),
    };
    let unmet = options.io.require_gds.then(|| scanned.report.paths.require_gds().err()).flatten();
    if args.common.json {
        println!("{}", object(args, name, device, &scanned, unmet.as_ref()));
    } else {
        print(name, device, args, &scanned);
        if let Some(error) = &unmet {
            crate::complain(&format!("{name}: {error}"));
        }
    }
    match (&scanned.difference, unmet) {
        (Some(_), _) => Status::Differs,
        (None, Some(_)) => Status::GdsNotMet,
        (None, None) => Status::Done,
    }
}

fn object(args: &Scan, name: &str, device: &Device, scanned: &Scanned, unmet: Option<&Error>) -> Value {
    let it = &scanned.report;
    let mut value = json!({
        "file": name,
        "rows": it.rows,
        "row_groups": it.row_groups,
        "batches": it.batches,
        "columns": it.columns,
        "footer_repaired": *it.footer_repaired,
        "columns_on_cpu": it.columns_on_cpu.len(),
        "cpu_reasons": report::by_reason(&it.columns_on_cpu),
        "decompressed_on_cpu": it.decompressed_on_cpu,
        "file_bytes": it.file_bytes,
        "page_bytes": it.page_bytes,
        "arrow_bytes": it.arrow_bytes,
        "seconds": scanned.seconds,
        "device": device.name(),
        "verified": args.verify.then_some(scanned.difference.is_none()),
        "difference": scanned.difference.as_ref().map(ToString::to_string),
        "launches": it.launches,
        "syncs": it.syncs,
        "peak_device_bytes": it.peak_device_bytes,
        "paths": report::paths(&it.paths),
    });
    if let Value::Object(object) = &mut value {
        report::add_verdict(object, &it.paths);
        if let Some(error) = unmet {
            object.insert("gds_required".into(), error.to_string().into());
        }
    }
    value
}

fn print(name: &str, device: &Device, args: &Scan, scanned: &Scanned) {
    let Scanned { report: it, seconds, difference } = scanned;
    println!("{}", report::line(name));
    println!(
        "{}",
        report::line(&format!(
            "  {} rows, {} row groups, {} columns in {} batches on {}",
            it.rows,
            it.row_groups,
            it.columns,
            it.batches,
            device.name()
        ))
    );
    let row = |what: &str, bytes: u64| {
        println!("  {what:<6} {:>12} {:>14}", report::size(bytes), report::speed(bytes, *seconds));
    };
    if !it.footer_repaired.is_empty() {
        println!("{}", report::line(&format!("  footer repaired: {}", it.footer_repaired.join(", "))));
    }
    println!("  {seconds:.4} s, {} launches, {} waits", it.launches, it.syncs);
    row("file", it.file_bytes);
    row("pages", it.page_bytes);
    row("arrow", it.arrow_bytes);
    for (reason, count) in report::by_reason(&it.columns_on_cpu) {
        println!("{}", report::line(&format!("  columns on cpu: {count}, {reason}")));
    }
    for (codec, chunks) in &it.decompressed_on_cpu {
        println!("{}", report::line(&format!("  chunks decompressed on cpu: {chunks}, {codec}")));
    }
    match (args.verify, difference) {
        (true, None) => println!("  verified: every value equals arrow-rs's"),
        (true, Some(difference)) => println!("{}", report::line(&format!("  differs: {difference}"))),
        (false, _) => (),
    }
    println!("{}", it.paths);
}
