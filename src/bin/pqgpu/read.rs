//! `pqgpu read`.

use std::sync::Arc;

use parquet_gpu::io::Source;
use parquet_gpu::{RawReader, Result};
use serde_json::{Value, json};

use crate::Status;
use crate::args::Read;
use crate::{names, report};

pub fn run(args: &Read) -> Result<Status> {
    let name = names::shown(&args.source);
    Ok(read(args, &name).unwrap_or_else(|error| crate::failed(&name, &error, args.common.json)))
}

fn read(args: &Read, name: &str) -> Result<Status> {
    let options = args.common.options()?;
    let device = args.common.open_device()?;
    let source = Arc::new(Source::open(&args.source)?);
    let mut seconds = Vec::new();
    if args.repeat.is_some() {
        // The warm-up, with a ledger of its own.
        RawReader::try_new(source.clone(), &device, &options)?.read()?;
    }
    let mut reader = RawReader::try_new(source, &device, &options)?;
    if args.repeat.is_some() {
        reader.read()?; // threads and pinned buffers of this reader
    }
    for _ in 0..args.repeat.unwrap_or(1).max(1) {
        seconds.push(reader.read()?.as_secs_f64());
    }
    let seconds = report::median(seconds);
    let difference = if args.verify { reader.verify()? } else { None };
    let paths = reader.report();
    let unmet = options.io.require_gds.then(|| paths.require_gds().err()).flatten();
    if args.common.json {
        let mut value = json!({
            "file": name,
            "file_bytes": reader.bytes(),
            "operations": reader.operations(),
            "seconds": seconds,
            "device": device.name(),
            "verified": args.verify.then_some(difference.is_none()),
            "paths": report::paths(&paths),
        });
        if let Value::Object(object) = &mut value {
            report::add_verdict(object, &paths);
            if let Some(error) = &unmet {
                object.insert("gds_required".into(), error.to_string().into());
            }
        }
        println!("{value}");
    } else {
        println!("{}", report::line(name));
        println!(
            "  {} in {seconds:.4} s, {}, {} operations on {}",
            report::size(reader.bytes()),
            report::speed(reader.bytes(), seconds),
            reader.operations(),
            device.name()
        );
        match (args.verify, difference) {
            (true, None) => println!("  verified: every byte equals the file's"),
            (true, Some(offset)) => println!("  differs at byte {offset}"),
            (false, _) => (),
        }
        print!("{paths}");
        if let Some(error) = &unmet {
            crate::complain(&format!("{name}: {error}"));
        }
    }
    Ok(match (difference, unmet) {
        (Some(_), _) => Status::Differs,
        (None, Some(_)) => Status::GdsNotMet,
        (None, None) => Status::Done,
    })
}
