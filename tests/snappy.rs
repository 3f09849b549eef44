//! The Snappy kernel against the `snap` crate: the same bytes, and the same streams refused.
#![allow(clippy::unwrap_used)]

mod compressed;
mod devices;

use compressed::{Case, Random, inputs, repeats};
use devices::{devices, devices_with};
use parquet_gpu::decompress::snappy;
use parquet_gpu::device::Gpu;
use parquet_gpu::kernels::abi;
use proptest::prelude::*;

const SEEDS: [u64; 3] = [0, 1, 77];
const MALFORMED: u64 = abi::fault::DECOMPRESS as u64;
const WRONG_LENGTH: u64 = abi::fault::DECOMPRESSED_LENGTH as u64;

fn run(gpu: &Gpu, cases: &[Case]) -> Vec<Result<Vec<u8>, u64>> {
    compressed::run(snappy::launch, gpu, cases)
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes).unwrap()
}

/// What `snap` makes of a stream that is to give `length` bytes. The stated length must be that: `snap` is also content
/// with less.
fn reference(stream: &[u8], length: usize) -> Option<Vec<u8>> {
    if stream.is_empty() || snap::raw::decompress_len(stream).ok()? != length {
        return None;
    }
    snap::raw::Decoder::new().decompress_vec(stream).ok()
}

#[test]
fn equals_what_was_compressed() {
    let inputs = inputs();
    let cases: Vec<Case> = inputs.iter().map(|it| Case::of(compress(it), it.len())).collect();
    for gpu in devices_with(&SEEDS) {
        for (index, (input, result)) in inputs.iter().zip(run(&gpu, &cases)).enumerate() {
            assert!(result.as_ref() == Ok(input), "{}, input {index}: {:?}", gpu.name(), result.map(|it| it.len()));
        }
    }
}

#[test]
fn several_mebibytes() {
    let mut random = Random(3);
    let mut input = repeats(&mut random, 2 << 20, 40_000, 30);
    input.extend(random.bytes(1 << 20));
    let case = Case::of(compress(&input), input.len());
    for gpu in devices(5) {
        assert!(run(&gpu, std::slice::from_ref(&case)) == [Ok(input.clone())]);
    }
}

#[test]
fn levels_are_copied_as_they_are() {
    let mut random = Random(11);
    let mut cases = Vec::new();
    let mut bodies = Vec::new();
    for levels in [1, 2, 15, 16, 40, 1000] {
        for input in [random.bytes(300), b"ab".repeat(2_000), vec![]] {
            let head = random.bytes(levels);
            let stored = [head.clone(), compress(&input)].concat();
            let body = [head, input].concat();
            cases.push(Case { stored, levels: levels as u32, body_bytes: body.len() as u32 });
            bodies.push(body);
        }
    }
    // No value is stored where the levels are all there is; not even an empty stream.
    cases.push(Case { stored: random.bytes(9), levels: 9, body_bytes: 9 });
    bodies.push(cases.last().unwrap().stored.clone());
    for gpu in devices_with(&SEEDS) {
        for (body, result) in bodies.iter().zip(run(&gpu, &cases)) {
            assert!(result.as_ref() == Ok(body));
        }
    }
}

/// A stream by hand: the stated length, then symbols.
fn stream(length: u8, symbols: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![length];
    for symbol in symbols {
        out.extend_from_slice(symbol);
    }
    out
}

#[test]
#[rustfmt::skip] // a table: a line a stream
fn every_form_of_symbol() {
    let abc = [2 << 2, b'a', b'b', b'c']; // a literal of 3
    let good = [
        (stream(3, &[&abc]), 3),
        (stream(7, &[&abc, &[0b001, 3]]), 7),                     // copy, 1-byte offset, length 4
        (stream(14, &[&abc, &[0b111 << 2 | 1, 1]]), 14),          // length 11, offset 1
        (stream(4, &[&abc, &[0b10, 2, 0]]), 4),                   // 2-byte offset, length 1
        (stream(67, &[&abc, &[63 << 2 | 0b10, 3, 0]]), 67),       // length 64
        (stream(67, &[&abc, &[63 << 2 | 0b11, 2, 0, 0, 0]]), 67), // 4-byte offset
        (stream(3, &[&[60 << 2, 2, 1, 2, 3]]), 3),                // literal, 1 byte of length
        (stream(3, &[&[61 << 2, 2, 0, 1, 2, 3]]), 3),             // 2 bytes
        (stream(3, &[&[62 << 2, 2, 0, 0, 1, 2, 3]]), 3),          // 3 bytes
        (stream(3, &[&[63 << 2, 2, 0, 0, 0, 1, 2, 3]]), 3),       // 4 bytes
        (vec![0x83, 0x80, 0x80, 0x80, 0x00, 2 << 2, 1, 2, 3], 3), // a length with more bytes than it needs
    ];
    let bad = [
        (stream(7, &[&abc, &[0b001, 0]]), 7, MALFORMED, 5),                           // offset 0
        (stream(7, &[&abc, &[0b001, 4]]), 7, MALFORMED, 5),                           // before the output
        (stream(4, &[&[0b001, 1]]), 4, MALFORMED, 1),                                 // nothing to copy yet
        (stream(6, &[&abc, &[0b001, 3]]), 6, MALFORMED, 5),                           // past the output's end
        (stream(3, &[&abc, &abc]), 3, MALFORMED, 5),                                  // a literal too many
        (stream(3, &[&abc, &[0]]), 3, MALFORMED, 5),                                  // trailing bytes
        (stream(3, &[&abc[..3]]), 3, MALFORMED, 1),                                   // a literal cut short
        (stream(3, &[&[61 << 2, 2]]), 3, MALFORMED, 1),                               // its length cut short
        (stream(7, &[&abc, &[0b01]]), 7, MALFORMED, 5),                               // offsets cut short
        (stream(7, &[&abc, &[0b10, 3]]), 7, MALFORMED, 5),
        (stream(7, &[&abc, &[0b11, 3, 0, 0]]), 7, MALFORMED, 5),
        (stream(3, &[&[63 << 2, 0xff, 0xff, 0xff, 0xff, 1, 2, 3]]), 3, MALFORMED, 1), // 4 GiB
        (stream(3, &[&[63 << 2, 0xfe, 0xff, 0xff, 0x7f, 1, 2, 3]]), 3, MALFORMED, 1),
        (stream(7, &[&abc, &[0b11, 0xff, 0xff, 0xff, 0xff]]), 7, MALFORMED, 5),
        (stream(4, &[&abc]), 4, WRONG_LENGTH, 5),                                     // too few bytes
        (stream(3, &[&abc]), 4, WRONG_LENGTH, 1),                                     // not the page's length
        (stream(5, &[&abc]), 4, WRONG_LENGTH, 1),
        (vec![1], 1, WRONG_LENGTH, 1),                                                // no symbol
        (vec![], 1, MALFORMED, 0),                                                    // nothing at all
        (vec![0x83], 3, MALFORMED, 0),                                                // a length cut short
        (vec![0x83, 0x80, 0x80, 0x80, 0x80, 0x00, 2 << 2, 1, 2, 3], 3, MALFORMED, 0), // of six bytes
        (vec![0x83, 0x80, 0x80, 0x80, 0x10, 2 << 2, 1, 2, 3], 3, WRONG_LENGTH, 5),    // 2^32 + 3
    ];
    let cases: Vec<Case> = good.iter().map(|(stream, length)| Case::of(stream.clone(), *length)).collect();
    let bad_cases: Vec<Case> = bad.iter().map(|(stream, length, ..)| Case::of(stream.clone(), *length)).collect();
    for gpu in devices_with(&SEEDS) {
        for (index, ((stream, length), result)) in good.iter().zip(run(&gpu, &cases)).enumerate() {
            assert_eq!(result.ok(), reference(stream, *length), "good {index}");
            assert!(reference(stream, *length).is_some(), "good {index}");
        }
        for (index, ((stream, length, kind, offset), result)) in bad.iter().zip(run(&gpu, &bad_cases)).enumerate() {
            assert_eq!(reference(stream, *length), None, "bad {index}");
            assert_eq!(result, Err((index as u64) << 36 | offset << 8 | kind), "bad {index}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn refuses_what_snap_refuses(
        seed in any::<u64>(),
        length in 1usize..3_000,
        distance in 1usize..3_000,
        fresh in 0usize..80,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8, any::<bool>()), 48),
    ) {
        let input = repeats(&mut Random(seed), length, distance, fresh);
        let stream = compress(&input);
        let mut cases = vec![Case::of(stream.clone(), input.len())];
        for (place, bit, cut) in flips {
            let mut broken = stream.clone();
            let place = place.index(broken.len());
            broken[place] ^= 1 << bit;
            if cut && bit == 0 {
                broken.truncate(place);
            }
            cases.push(Case::of(broken, input.len()));
        }
        for gpu in devices(seed) {
            for (case, result) in cases.iter().zip(run(&gpu, &cases)) {
                prop_assert_eq!(result.ok(), reference(&case.stored, case.body_bytes as usize));
            }
        }
    }
}
