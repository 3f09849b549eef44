//! Reads Parquet into GPU memory as Arrow, and proves which path every byte took.
//!
//! # The pipeline
//!
//! ```text
//!  source ──► footer ──► plan ──► fetch ──► pages ──► decompress ──► decode ──► batch
//!  io/source  footer/    plan/    io/       page/     decompress/    decode/    batch.rs
//!             CPU        CPU      I/O       GPU       GPU            GPU        arrays in
//!             metadata,  pure:    │                                             device memory
//!             leaves     ranges,  ├──► ledger: which path each operation took     ▲
//!                        routes   │                                               │
//!                                 └──► arrow-rs (cpu.rs): columns that no kernel ─┘
//!                                      decodes yet, and all columns on the CPU
//! ```
//!
//! Each stage takes the value that the stage before it made and knows nothing of the stages after it:
//!
//! | stage | takes | makes | where |
//! |---|---|---|---|
//! | open | path or URL | [`Source`](io::Source) | `io/source.rs`, `io/object.rs` |
//! | footer | `Source` | [`Footer`](footer::Footer): metadata, Arrow schema, leaves, and trees of lists and structs over them | `footer/` |
//! | plan | `Footer`, options | [`ScanPlan`](plan::ScanPlan): batches of ranges with routes and reasons | `plan/` |
//! | fetch | one [`BatchPlan`](plan::BatchPlan) | bytes in a device slab, bytes in host memory | `io/` |
//! | pages | a slab | the page table: one descriptor a page | `page/` |
//! | decompress | page table, for codecs of the CPU host bytes | addresses of plain page bodies | `decompress/` |
//! | decode | page table, leaves | [`DeviceArray`]s | `decode/` |
//!
//! [`reader`] alone wires them together: `reader/gpu.rs` a batch on a device with kernels, `reader/host.rs` a batch on the
//! CPU, `reader/raw.rs` a file undecoded. [`verify`] compares a scan with arrow-rs. Underneath lie [`device`] (memory, streams, events, launches: CUDA, or the
//! same kernels on the CPU) and `sys` (symbol tables of foreign libraries); neither knows of Parquet. `kernels/` holds
//! the CUDA C++ beside `abi.h`, the structs that Rust shares with it; a kernel file has the base name of the Rust file
//! that launches it.
//!
//! What no kernel decodes yet is decoded by arrow-rs, a column at a time, and copied over: counted, with the reason.

pub mod batch;
pub mod cpu;
pub mod decode;
pub mod decompress;
pub mod device;
pub mod error;
pub mod footer;
pub mod guard;
pub mod io;
pub mod kernels;
pub mod options;
pub mod page;
pub mod plan;
pub mod reader;
pub mod sys;
pub mod verify;

pub use batch::{DeviceArray, DeviceBatch};
pub use device::Device;
pub use error::{Error, Place, Result};
pub use io::ledger::{Ledger, PathReport};
pub use options::{CompatMode, IoOptions, ReadOptions, StringType};
pub use reader::{GpuReader, GpuReaderBuilder, RawReader, ScanReport};
