//! The decode engine against arrow-rs: whole files of every flat type, pages written by hand, and malformed pages.
#![allow(clippy::unwrap_used)]

mod corrupt;
#[path = "../devices/mod.rs"]
mod devices;
mod files;
#[path = "../generate/mod.rs"]
mod generate;
mod pages;
mod support;
