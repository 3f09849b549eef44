//! Files whose pages are cut anew: what no writer at hand makes, and what most readers got wrong at one time.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::cases::{Case, sample};
use crate::generate::Random;
use crate::generated::{leaves_of, write};
use crate::repage::{Style, repage};
use crate::{Subject, Tally, case_count};

fn check(case: &Case, tally: &Mutex<Tally>) {
    let mut random = Random(case.seed ^ 2);
    let style = Style {
        page_values: [1, 10, 60, 5000][random.below(4) as usize],
        snappy: random.below(2) == 0,
        plain: random.below(2) == 0,
        v1: random.below(2) == 0,
        bit_packed: random.below(3) == 0,
    };
    let (bytes, schema) = write(case);
    let bytes = repage(&bytes, style, &mut random);
    let leaves = leaves_of(case, &schema);
    let name = format!("repaged {style:?} {case:?}, leaves {leaves:?}");
    Subject { name, bytes, leaves, cut: case.cut, rows: case.selected, groups: case.groups }
        .check(case.seed % 7, tally);
}

#[test]
fn pages_cut_anywhere() {
    let (cases, _) = sample(case_count(300));
    let tally = Mutex::default();
    cases.par_iter().for_each(|case| check(case, &tally));
    let tally = tally.into_inner().unwrap();
    tally.finish(&format!("{} cases", cases.len()), cases.len());
}
