//! The decode engine against arrow-rs: whole files of every flat type, pages written by hand, and malformed pages.
#![allow(clippy::unwrap_used)]

mod corrupt;
mod files;
mod pages;
mod support;
