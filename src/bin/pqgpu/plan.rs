//! `pqgpu plan`.

use std::sync::Arc;

use parquet_gpu::Result;
use parquet_gpu::io::Source;
use parquet_gpu::plan::{BatchPlan, Route, ScanPlan};
use serde_json::{Value, json};

use crate::Status;
use crate::args::Plan;
use crate::{names, report};

pub fn run(args: &Plan) -> Result<Status> {
    let options = args.common.options()?;
    let device = args.common.open_device()?;
    let outcome = Source::open(&args.source).and_then(|source| {
        let (builder, ..) = args.selection.builder(Arc::new(source), device, options)?;
        builder.plan()
    });
    let name = names::shown(&args.source);
    match outcome {
        Ok(plan) if args.common.json => println!("{}", object(&name, &plan)),
        Ok(plan) => print!("{}\n{plan}", report::line(&name)),
        Err(error) => return Ok(crate::failed(&name, &error, args.common.json)),
    }
    Ok(Status::Done)
}

fn object(file: &str, plan: &ScanPlan) -> Value {
    let batches: Vec<_> = plan.batches.iter().map(batch).collect();
    json!({ "file": file, "leaves": plan.leaves, "footer_repaired": *plan.repaired, "batches": batches })
}

fn batch(batch: &BatchPlan) -> Value {
    let ranges = batch.ranges.iter().map(|it| {
        json!({
            "offset": it.read.start,
            "bytes": it.read.end - it.read.start,
            "wasted": it.wasted,
            "route": if it.route == Route::Direct { "direct" } else { "host" },
            "reason": it.reason.to_string(),
            "slab_offset": it.slab_offset,
            "tasks": it.tasks.len(),
        })
    });
    let chunks = batch.chunks.iter().map(|it| {
        json!({
            "row_group": it.row_group,
            "leaf": it.leaf,
            "offset": it.bytes.start,
            "bytes": it.bytes.end - it.bytes.start,
            "slab_offset": it.slab_offset,
            "on_cpu": it.on_cpu,
        })
    });
    json!({
        "row_groups": batch.row_groups.iter().map(|it| it.index).collect::<Vec<_>>(),
        "rows": batch.rows,
        "slab_bytes": batch.slab_bytes,
        "memory": batch.memory,
        "ranges": ranges.collect::<Vec<_>>(),
        "chunks": chunks.collect::<Vec<_>>(),
    })
}
