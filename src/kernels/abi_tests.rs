//! `abi.rs` against `abi.h` as the C++ compiler sees it; build.rs reads the header and writes the table.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

use super::{Kernel, abi};

#[repr(C)]
struct AbiField {
    struct_name: *const c_char,
    size: u64,
    name: *const c_char,
    offset: u64,
}

#[repr(C)]
struct AbiConstant {
    name: *const c_char,
    value: u64,
}

// SAFETY: arrays that end with a null name, as build.rs writes them.
unsafe extern "C" {
    static simt_abi_fields: [AbiField; 0];
    static simt_abi_constants: [AbiConstant; 0];
}

fn text(name: *const c_char) -> Option<String> {
    // SAFETY: either null or a string literal.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned())
}

/// Size and fields of every struct in `abi.h`.
fn structs() -> BTreeMap<String, (u64, BTreeMap<String, u64>)> {
    let mut structs = BTreeMap::<String, (u64, BTreeMap<String, u64>)>::new();
    for index in 0.. {
        // SAFETY: the entry with a null name, the last, ends the loop.
        let field = unsafe { &*(&raw const simt_abi_fields).cast::<AbiField>().add(index) };
        let Some(name) = text(field.struct_name) else { break };
        let entry = structs.entry(name).or_insert((field.size, BTreeMap::new()));
        entry.1.insert(text(field.name).unwrap(), field.offset);
    }
    structs
}

fn constants() -> BTreeMap<String, u64> {
    let mut constants = BTreeMap::new();
    for index in 0.. {
        // SAFETY: the entry with a null name, the last, ends the loop.
        let constant = unsafe { &*(&raw const simt_abi_constants).cast::<AbiConstant>().add(index) };
        let Some(name) = text(constant.name) else { break };
        constants.insert(name, constant.value);
    }
    constants
}

#[test]
fn abi_structs_are_the_same_on_both_sides() {
    let rust: BTreeMap<_, _> = abi::layouts()
        .into_iter()
        .map(|(name, size, fields)| {
            let fields = fields.into_iter().map(|(name, offset)| (name.to_owned(), offset as u64));
            (name.to_owned(), (size as u64, fields.collect::<BTreeMap<_, _>>()))
        })
        .collect();
    let cpp = structs();
    assert!(cpp.len() >= 17, "the table in build.rs finds the structs of abi.h: {:?}", cpp.keys());
    assert_eq!(rust, cpp);
}

#[test]
fn abi_constants_are_the_same_on_both_sides() {
    let cpp = constants();
    assert!(cpp.len() >= 30, "the table in build.rs finds the enums of abi.h: {cpp:?}");
    let rust = abi::constants();
    assert!(rust.len() >= 15, "{rust:?}");
    for (name, value) in &rust {
        assert_eq!(cpp.get(name), Some(value), "{name}");
    }
}

#[test]
fn every_fault_kind_has_a_message() {
    let unknown = abi::fault_message(u32::MAX);
    let mut kinds = 0;
    for (name, kind) in constants().into_iter().filter(|(name, _)| name.starts_with("FAULT_") && name != "FAULT_NONE") {
        assert_ne!(abi::fault_message(kind.try_into().unwrap()), unknown, "{name}");
        kinds += 1;
    }
    assert!(kinds >= 11);
}

#[test]
fn kernels_have_the_block_size_that_their_source_states() {
    for kernel in Kernel::ALL {
        let _linked_in = super::emulated::body(*kernel);
        let (threads, args_bytes) = crate::device::simt::declared(kernel.symbol()).unwrap();
        assert_eq!(threads, kernel.threads(), "{kernel:?}");
        assert!(args_bytes > 0 && args_bytes % 8 == 0, "{kernel:?}: {args_bytes}");
    }
}
