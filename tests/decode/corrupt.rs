//! Malformed pages: an error that names the place, no other effect, and the next batch decodes.

use arrow::array::{Array, AsArray, Int32Array};
use arrow::datatypes::DataType;
use parquet::basic::{Compression, Type as PhysicalType};
use parquet_gpu::Error;
use parquet_gpu::footer::Leaf;
use parquet_gpu::kernels::abi::{PageHeader, encoding, fault_message};

use crate::support::*;

const LEVELS: u32 = 6;
const TRUNCATED: u32 = 7;
const INDEX: u32 = 8;
const RLE: u32 = 9;
const STRING: u32 = 10;
const UTF8: u32 = 11;

/// Decodes a column whose second page, or its dictionary, is `bad`; before it comes a good page, in another column of
/// the batch a good chunk. The error has to name the bad page.
fn assert_fault(what: &str, leaf: Leaf, pages: &[(PageHeader, Vec<u8>)], bad: usize, kind: u32) {
    for (name, gpu) in devices(0..3) {
        let bad_column = column(leaf.clone(), pages);
        let rows = bad_column.rows() as i32;
        let good = column(int32(false), &[(v1(rows as u32, encoding::PLAIN), plain_ints(0..rows))]);
        for skew in [0, 3] {
            let error = decode(&gpu, &[good.clone(), bad_column.clone()], skew).expect_err(what);
            let Error::Corrupt { place, message } = &error else { panic!("{what} on {name}: {error}") };
            assert!(message.starts_with(fault_message(kind)), "{what} on {name}: {error}");
            assert_eq!(
                (place.row_group, place.column.as_deref()),
                (Some(0), Some(leaf.path.as_str())),
                "{what}: {error}"
            );
            assert_eq!(place.page, Some(bad), "{what} on {name}: {error}");
            let offset = place.offset.unwrap() - FILE_OFFSET;
            let header = &bad_column.chunks[0].headers[bad];
            let end = header.body_offset + u64::from(header.compressed_bytes);
            assert!((header.header_offset..=end).contains(&offset), "{what} on {name}: {error}");
        }
        // The device is as good as before.
        let array = decode(&gpu, &[good], 0).unwrap().remove(0);
        assert_eq!(array.as_primitive(), &Int32Array::from_iter_values(0..rows), "{what} on {name}");
    }
}

fn runs() -> RunBytes {
    RunBytes::default()
}

fn flags(optional: bool) -> Leaf {
    leaf("flags", PhysicalType::BOOLEAN, 0, &DataType::Boolean, optional)
}

#[test]
fn definition_levels() {
    let good = (v1(2, encoding::PLAIN), runs().rle(1, 1, 2).v1(&plain_ints([1, 2])));
    let long = |bytes: u32, rest: &[u8]| [&bytes.to_le_bytes()[..], rest].concat();
    let values = plain_ints([1, 2, 3]);
    let cases: &[(&str, Vec<u8>)] = &[
        ("no length", vec![2, 0, 0]),
        ("a length past the page", long(60, &[6, 1])),
        ("a length past 4 GiB", long(u32::MAX, &[6, 1])),
        ("no runs", runs().v1(&values)),
        ("runs end early", runs().rle(1, 1, 2).v1(&values)),
        ("a run without its value", runs().varint(6).v1(&[])),
        ("a packed run without its bits", runs().varint(3).v1(&[])),
        ("a packed run of 2^60 groups", runs().varint(1 << 60 | 1).raw(&[7]).v1(&values)),
        ("a run of 2^40 values", runs().varint(1 << 41).raw(&[1]).v1(&values)),
        ("a header that does not end", runs().raw(&[0x80; 12]).v1(&values)),
    ];
    for (what, body) in cases {
        assert_fault(what, int32(true), &[good.clone(), (v1(3, encoding::PLAIN), body.clone())], 1, LEVELS);
    }
    let short = PageHeader { def_encoding: encoding::BIT_PACKED, ..v1(30, encoding::PLAIN) };
    assert_fault("BIT_PACKED past the page", int32(true), &[good.clone(), (short, vec![1, 2, 3])], 1, LEVELS);
    let body = [runs().rle(1, 1, 2).0, values].concat();
    assert_fault("V2 runs end early", int32(true), &[good, (v2(3, 0, encoding::PLAIN, 2), body)], 1, LEVELS);
}

#[test]
fn values_that_are_missing() {
    let fixed = leaf("fixed", PhysicalType::FIXED_LEN_BYTE_ARRAY, 3, &DataType::FixedSizeBinary(3), false);
    let three = v1(3, encoding::PLAIN);
    let cases: Vec<(&str, Leaf, PageHeader, Vec<u8>)> = vec![
        ("integers", int32(false), three, plain_ints([1, 2])),
        ("part of an integer", int32(false), three, vec![0; 11]),
        ("nothing", int32(false), three, vec![]),
        ("booleans", flags(false), v1(9, encoding::PLAIN), vec![0]),
        ("run-length booleans without a length", flags(false), v1(9, encoding::RLE), vec![0, 0]),
        ("run-length booleans past the page", flags(false), v1(9, encoding::RLE), vec![9, 0, 0, 0, 18, 1]),
        ("run-length booleans that end early", flags(false), v1(9, encoding::RLE), runs().rle(1, 1, 8).v1(&[])),
        ("strings", utf8(false), three, plain_strings(["a", "b"])),
        ("fixed-length, short", fixed.clone(), three, vec![0; 8]),
        ("fixed-length, long", fixed.clone(), three, vec![0; 10]),
        ("fixed-length, as long as with lengths", fixed, three, vec![0; 21]),
    ];
    for (what, leaf, header, body) in cases {
        assert_fault(what, leaf, &[(header, body)], 0, TRUNCATED);
    }
    let levels = runs().rle(1, 1, 3).0;
    let body = [&levels[..], &plain_ints([1, 2, 3])].concat();
    let header = v2(3, 1, encoding::PLAIN, levels.len());
    assert_fault("more values than a V2 header states", int32(true), &[(header, body)], 0, TRUNCATED);
}

/// Both kinds of dictionaries, of three entries, before a page of three indices.
fn assert_indices(what: &str, body: &[u8], kind: u32) {
    let page = (v1(3, encoding::RLE_DICTIONARY), body.to_vec());
    let ints = (dictionary(3), plain_ints([1, 2, 3]));
    assert_fault(what, int32(false), &[ints, page.clone()], 1, kind);
    let words = (dictionary(3), plain_strings(["a", "b", "c"]));
    assert_fault(what, utf8(false), &[words.clone(), page.clone()], 1, kind);
    // A good page and a null before it.
    let good = (v1(1, encoding::RLE_DICTIONARY), runs().rle(1, 1, 1).v1(&runs().raw(&[2]).rle(2, 2, 1).0));
    let page = (v1(4, encoding::RLE_DICTIONARY), runs().packed(1, &[0, 1, 1, 1]).v1(body));
    assert_fault(what, utf8(true), &[words, good, page], 2, kind);
}

#[test]
fn dictionary_indices() {
    let width = |bits: u8| runs().raw(&[bits]);
    assert_indices("an index past the dictionary, in a run", &width(2).rle(2, 3, 3).0, INDEX);
    assert_indices("an index past the dictionary, packed", &width(2).packed(2, &[0, 3, 1]).0, INDEX);
    assert_indices("an index of 32 bits", &width(32).packed(32, &[0, u32::MAX, 1]).0, INDEX);
    assert_indices("no bit width", &[], TRUNCATED);
    assert_indices("no runs", &width(2).0, TRUNCATED);
    assert_indices("runs end early", &width(2).rle(2, 1, 2).0, TRUNCATED);
    assert_indices("a packed run without its bits", &width(12).varint(3).raw(&[0; 4]).0, TRUNCATED);
    assert_indices("padding before the last value", &width(2).rle(2, 1, 2).raw(&[0, 0]).rle(2, 1, 2).0, TRUNCATED);
    assert_indices("33 bits", &width(33).rle(32, 1, 3).0, RLE);
    assert_indices("a value wider than its bits", &width(2).rle(2, 4, 3).0, RLE);
    assert_indices("a run without its value", &width(9).varint(6).raw(&[0]).0, RLE);
    assert_indices("a run of 2^31 values", &width(2).varint(1 << 32).raw(&[0]).0, RLE);
    assert_indices("2^28 groups", &width(2).varint(1 << 29 | 1).raw(&[0; 9]).0, RLE);
    assert_indices("a header that does not end", &width(2).raw(&[0x81; 11]).0, RLE);
}

/// arrow-rs reads the first run when it opens a page, also when no value asks for one.
#[test]
fn the_first_run_of_a_page_of_nulls() {
    let words = (dictionary(1), plain_strings(["a"]));
    let page = |body: &[u8]| (v1(3, encoding::RLE_DICTIONARY), runs().rle(1, 0, 3).v1(body));
    assert_fault("no bit width", utf8(true), &[words.clone(), page(&[])], 1, TRUNCATED);
    assert_fault("33 bits", utf8(true), &[words.clone(), page(&[33])], 1, RLE);
    assert_fault("a value wider than its bits", utf8(true), &[words.clone(), page(&[1, 2, 2])], 1, RLE);
    for (_, gpu) in devices(0..1) {
        for body in [&[1][..], &[1, 0, 2, 2], &[1, 2, 1, 2, 2]] {
            let array = decode(&gpu, &[column(utf8(true), &[words.clone(), page(body)])], 0).unwrap().remove(0);
            assert_eq!(array.null_count(), 3);
        }
    }
}

#[test]
fn a_page_that_does_not_decompress_is_told_as_such() {
    for (name, gpu) in devices(0..2) {
        for leaf in [int32(true), utf8(true)] {
            let mut bad = column(leaf, &[(dictionary(1), vec![0x7f; 12]), (v1(2, encoding::PLAIN), vec![0x7f; 12])]);
            bad.codec = Compression::SNAPPY;
            let error = decode(&gpu, &[bad], 0).unwrap_err();
            assert!(error.to_string().contains("compress"), "{name}: {error}");
            assert_eq!(error.place().unwrap().page, Some(0), "{name}: {error}");
        }
    }
}

#[test]
fn indices_into_a_dictionary_without_entries() {
    let page = (v1(3, encoding::RLE_DICTIONARY), runs().raw(&[0]).rle(0, 0, 3).0);
    for leaf in [int32(false), utf8(false)] {
        assert_fault("no entries", leaf, &[(dictionary(0), vec![]), page.clone()], 1, INDEX);
    }
    // Entries that the header states and the page lacks.
    let page = (v1(3, encoding::RLE_DICTIONARY), runs().raw(&[1]).rle(1, 1, 3).0);
    assert_fault("one entry of two", utf8(false), &[(dictionary(2), plain_strings(["a"])), page], 1, INDEX);
}

#[test]
fn strings_that_run_past_their_page() {
    let long = |bytes: u32| [plain_strings(["good"]), bytes.to_le_bytes().to_vec(), vec![b'x'; 9]].concat();
    let index = (v1(1, encoding::RLE_DICTIONARY), runs().raw(&[0]).rle(0, 0, 1).0);
    for (what, body) in [
        ("one byte too long", long(10)),
        ("4 GiB", long(u32::MAX)),
        ("a length past the end", [plain_strings(["good"]), vec![1, 0, 0]].concat()),
    ] {
        assert_fault(what, utf8(false), &[(v1(2, encoding::PLAIN), body.clone())], 0, STRING);
        assert_fault(what, utf8(false), &[(dictionary(2), body), index.clone()], 0, STRING);
    }
}

#[test]
fn text_that_is_not_utf8() {
    let bad: &[&[u8]] = &[
        b"\x80",
        b"abc\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xc2",
        b"\xc2a",
        b"\xe0\x9f\xbf",
        b"\xe1\x80",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xf1\x80\x80",
        b"\xc3\xa4\xa4",
        b"\xf1\x80\x80\x80\x80",
        b"\xff",
    ];
    let index = (v1(1, encoding::RLE_DICTIONARY), runs().raw(&[2]).rle(2, 0, 1).0);
    for text in bad {
        for padding in [0, 5, 90] {
            let text = [&b"fine ".repeat(padding / 5)[..], text, b"more"].concat();
            let what = format!("{text:x?}");
            let plain = plain_strings([&b"good"[..], &text, b"good"]);
            assert_fault(&what, utf8(false), &[(v1(3, encoding::PLAIN), plain.clone())], 0, UTF8);
            // Also when no row refers to it.
            assert_fault(&what, utf8(false), &[(dictionary(3), plain), index.clone()], 0, UTF8);
        }
    }
    // Characters split between two strings, and between a string and the one of the next page.
    let split = plain_strings([&b"\xe6\x97"[..], b"\xa5"]);
    assert_fault("a split character", utf8(false), &[(v1(2, encoding::PLAIN), split)], 0, UTF8);
    let pages = [&b"\xe6\x97"[..], b"\xa5"].map(|it| (v1(1, encoding::PLAIN), plain_strings([it])));
    assert_fault("a character over two pages", utf8(false), &pages, 0, UTF8);
    // Bytes that need not be text are not checked.
    let binary = leaf("bytes", PhysicalType::BYTE_ARRAY, 0, &DataType::Binary, false);
    for (_, gpu) in devices(0..1) {
        let page = (v1(1, encoding::PLAIN), plain_strings([bad[0]]));
        assert_eq!(decode(&gpu, &[column(binary.clone(), &[page])], 0).unwrap()[0].as_binary::<i32>().value(0), bad[0]);
    }
}

#[test]
fn the_first_bad_page_is_named_whatever_comes_after_it() {
    let bad = (v1(2, encoding::PLAIN), vec![0; 7]);
    let good = (v1(2, encoding::PLAIN), plain_ints([1, 2]));
    let pages = [good.clone(), bad.clone(), good, bad.clone(), bad];
    assert_fault("three bad pages", int32(false), &pages, 1, TRUNCATED);
}

#[test]
fn headers_that_contradict_themselves() {
    let levels = runs().rle(1, 1, 2).0;
    let body = [&levels[..], &plain_ints([1, 2])].concat();
    let index = (v1(2, encoding::RLE_DICTIONARY), runs().raw(&[0]).rle(0, 0, 2).0);
    type Pages = Vec<(PageHeader, Vec<u8>)>;
    let cases: Vec<(&str, Leaf, Pages)> = vec![
        ("more nulls than values", int32(true), vec![(v2(2, 3, encoding::PLAIN, levels.len()), body.clone())]),
        ("levels past the page", int32(true), vec![(v2(2, 0, encoding::PLAIN, body.len() + 1), body)]),
        ("2^31 values", int32(false), vec![(v1(1 << 31, encoding::PLAIN), vec![])]),
        ("no dictionary", int32(false), vec![index.clone()]),
        ("no dictionary of strings", utf8(false), vec![index.clone()]),
        ("a short dictionary", int32(false), vec![(dictionary(3), plain_ints([1, 2])), index]),
    ];
    for (name, gpu) in devices(0..1) {
        for (what, leaf, pages) in &cases {
            let error = decode(&gpu, &[column(leaf.clone(), pages)], 0).expect_err(what);
            assert_eq!(error.kind(), "corrupt", "{what} on {name}: {error}");
            let place = error.place().unwrap();
            assert_eq!((place.row_group, place.page), (Some(0), Some(0)), "{what} on {name}: {error}");
            assert!(place.offset.is_some() && place.column.is_some(), "{what} on {name}: {error}");
        }
    }
}

#[test]
fn memory_that_a_file_claims_is_bounded_by_the_budget() {
    let runs = runs().rle(1, 0, 2_000_000_000);
    let claim = column(utf8(true), &[(v1(2_000_000_000, encoding::PLAIN), runs.v1(&[]))]);
    for (_, gpu) in devices(0..1) {
        let gpu = gpu.with_budget(64 << 20);
        assert_eq!(decode(&gpu, std::slice::from_ref(&claim), 0).unwrap_err().kind(), "budget");
        assert!(gpu.budget().peak() <= 64 << 20);
    }
}
