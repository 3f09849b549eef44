//! The LZ4 kernel against the `lz4_flex` crate: the same bytes, and the same streams refused.
#![allow(clippy::unwrap_used)]

mod compressed;
mod devices;

use compressed::{Case, Random, inputs, repeats};
use devices::{devices, devices_with};
use parquet_gpu::decompress::lz4;
use parquet_gpu::device::Gpu;
use parquet_gpu::kernels::abi;
use proptest::prelude::*;

const SEEDS: [u64; 3] = [0, 1, 77];
const MALFORMED: u64 = abi::fault::DECOMPRESS as u64;
const WRONG_LENGTH: u64 = abi::fault::DECOMPRESSED_LENGTH as u64;

fn run(gpu: &Gpu, cases: &[Case]) -> Vec<Result<Vec<u8>, u64>> {
    compressed::run(lz4::launch, gpu, cases)
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    lz4_flex::block::compress(bytes)
}

/// What the `parquet` crate makes of a stream that is to give `length` bytes.
fn reference(stream: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; length];
    let written = lz4_flex::block::decompress_into(stream, &mut out).ok()?;
    (written == length).then_some(out)
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

/// Lengths that take none, one and many bytes beside the token, of literals and of copies, also of more than one look of
/// the warp.
#[test]
fn lengths_of_every_size() {
    let mut random = Random(23);
    let mut cases = Vec::new();
    for literals in [0, 1, 13, 14, 15, 16, 63, 64, 65, 269, 270, 271, 524, 525, 5_000, 8_175, 8_176, 20_000] {
        for copied in [0, 4, 17, 18, 19, 20, 273, 274, 275, 600, 8_180, 8_181, 30_000] {
            let length = |of: usize| {
                let mut more = Vec::new();
                if of >= 15 {
                    more.extend(vec![255; (of - 15) / 255]);
                    more.push(((of - 15) % 255) as u8);
                }
                (of.min(15) as u8, more)
            };
            let mut stream = vec![1 << 4, b'x', 1, 0]; // five bytes to copy from
            let mut body = 5;
            let (high, more) = length(literals);
            let (low, more_copied) = length(copied.max(4) - 4);
            stream.push(high << 4 | low);
            stream.extend(more);
            stream.extend(random.bytes(literals));
            body += literals;
            if copied > 0 {
                stream.extend([3, 0]);
                stream.extend(more_copied);
                stream.extend([5 << 4, 1, 2, 3, 4, 5]);
                body += copied + 5;
            }
            let case = Case::of(stream, body);
            assert!(reference(&case.stored, body).is_some(), "{literals} and {copied}");
            cases.push(case);
        }
    }
    for gpu in devices_with(&SEEDS) {
        for (case, result) in cases.iter().zip(run(&gpu, &cases)) {
            assert!(result.ok() == reference(&case.stored, case.body_bytes as usize));
        }
    }
}

#[test]
#[rustfmt::skip] // a table: a line a stream
fn every_form_of_sequence() {
    let good: [(&[u8], usize); 8] = [
        (&[3 << 4, b'a', b'b', b'c'], 3),                              // literals alone
        (&[3 << 4 | 9, b'a', b'b', b'c'], 3),                          // a copy's length in the last token says nothing
        (&[1 << 4, b'a', 1, 0, 0], 5),                                 // an end without literals
        (&[1 << 4, b'a', 1, 0, 5 << 4, 1, 2, 3, 4, 5], 10),            // a copy of its own bytes
        (&[3 << 4 | 2, 1, 2, 3, 2, 0, 1 << 4, 9], 10),
        (&[1 << 4 | 15, b'a', 1, 0, 0, 0], 20),                        // one more byte of length, of nothing
        (&[15 << 4, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 15),
        (&[0x10, b'a', 1, 0, 0x01, 2, 0, 0x00], 10),                   // a sequence without literals
    ];
    let bad: [(&[u8], usize, u64, u64); 18] = [
        (&[], 1, MALFORMED, 0),                                        // nothing at all
        (&[1 << 4], 1, MALFORMED, 0),                                  // literals cut short
        (&[3 << 4, 1, 2], 3, MALFORMED, 0),
        (&[15 << 4], 15, MALFORMED, 0),                                // their length cut short
        (&[15 << 4, 255, 255], 600, MALFORMED, 0),
        (&[3 << 4, 1, 2, 3], 2, MALFORMED, 0),                         // past the output's end
        (&[1 << 4, b'a', 1], 5, MALFORMED, 0),                         // a distance cut short
        (&[1 << 4, b'a', 0, 0, 0], 5, MALFORMED, 0),                   // a distance of 0
        (&[1 << 4, b'a', 2, 0, 0], 5, MALFORMED, 0),                   // before the output
        (&[0, 1, 0, 0], 4, MALFORMED, 0),                              // nothing to copy yet
        (&[1 << 4, b'a', 1, 0], 5, MALFORMED, 0),                      // an end with a copy
        (&[1 << 4 | 15, b'a', 1, 0], 20, MALFORMED, 0),                // a copy's length cut short
        (&[1 << 4 | 15, b'a', 1, 0, 0], 20, MALFORMED, 0),             // an end with a longer copy
        (&[1 << 4, b'a', 1, 0, 0], 4, MALFORMED, 0),                   // a copy past the output's end
        (&[1 << 4 | 15, b'a', 1, 0, 255, 255, 9, 0], 400, MALFORMED, 0),
        (&[1 << 4, b'a', 1, 0, 0, 2, 0, 0, 9, 9, 0], 9, MALFORMED, 7), // the third sequence, from too far
        (&[3 << 4, 1, 2, 3], 4, WRONG_LENGTH, 4),                      // too few bytes
        (&[0], 1, WRONG_LENGTH, 1),
    ];
    let cases: Vec<Case> = good.iter().map(|(stream, length)| Case::of(stream.to_vec(), *length)).collect();
    let bad_cases: Vec<Case> = bad.iter().map(|(stream, length, ..)| Case::of(stream.to_vec(), *length)).collect();
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
    fn refuses_what_lz4_flex_refuses(
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
