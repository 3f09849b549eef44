//! Decimals in byte arrays of any length, to 128 and 256 bits.

use parquet::data_type::{ByteArray, ByteArrayType};

use crate::generate::Random;
use crate::{check, refused, styles, write_raw};

/// Big-endian two's complement of random lengths, nothing at all and more than needed included.
fn values(random: &mut Random, rows: usize, longest: u64, nulls: u64) -> Vec<Option<ByteArray>> {
    let different: Vec<Vec<u8>> = (0..40)
        .map(|at| match at {
            0 => Vec::new(),
            1 => vec![0xff; longest as usize],
            2 => vec![0; longest as usize],
            3 => vec![0x80],
            _ => {
                let length = random.below(longest + 1) as usize;
                random.bytes(length)
            }
        })
        .collect();
    (0..rows)
        .map(|_| (random.below(100) >= nulls).then(|| ByteArray::from(different[random.below(40) as usize].clone())))
        .collect()
}

#[test]
fn decimals_in_byte_arrays() {
    let mut random = Random(1);
    let mut compared = 0;
    for (style, properties) in styles() {
        for (precision, longest) in [(38, 16), (20, 9), (76, 32), (40, 17)] {
            for (repetition, nulls) in [("optional", 25), ("optional", 100), ("required", 0)] {
                let field = format!("{repetition} binary a (DECIMAL({precision}, 3))");
                let groups: Vec<_> =
                    [0, 1, 250, 33].map(|rows| values(&mut random, rows, longest, nulls)).into_iter().collect();
                let bytes = write_raw::<ByteArrayType>(&field, properties.clone(), &groups);
                let name = format!("{style}, {field}, {nulls} % nulls");
                compared += check(&name, &bytes, 0..2);
            }
        }
    }
    println!("{compared} reads of decimals in byte arrays equal arrow-rs");
    assert!(compared > 0 || !cfg!(feature = "emulated"));
}

/// One byte more than the Arrow value has, though it be a zero, in a page or used from a dictionary.
#[test]
fn longer_decimals_are_refused() {
    let mut random = Random(2);
    for (style, properties) in styles() {
        for (precision, longest) in [(38, 16), (76, 32)] {
            let mut group = values(&mut random, 200, longest, 10);
            group[150] = Some(ByteArray::from(vec![0u8; longest as usize + 1]));
            let field = format!("optional binary a (DECIMAL({precision}, 3))");
            let bytes = write_raw::<ByteArrayType>(&field, properties.clone(), &[values(&mut random, 50, 3, 0), group]);
            for error in refused(&style, &bytes, 3) {
                let message = error.to_string();
                assert!(message.contains("more bytes than its Arrow type"), "{style}: {message}");
                assert_eq!(error.place().and_then(|it| it.row_group), Some(1), "{style}: {message}");
            }
        }
    }
}
