//! Pages by hand: headers, levels and values, as no writer at hand makes them.

/// Writes Thrift compact structs.
#[derive(Debug, Clone, Default)]
struct Thrift(Vec<u8>);

impl Thrift {
    fn int(mut self, delta: u8, value: usize) -> Self {
        const I32: u8 = 5;
        self.0.push(delta << 4 | I32);
        varint(&mut self.0, (value as u64) << 1); // zigzag of what is not negative
        self
    }

    fn flag(mut self, delta: u8, value: bool) -> Self {
        self.0.push(delta << 4 | if value { 1 } else { 2 });
        self
    }

    fn open(mut self, delta: u8) -> Self {
        const STRUCT: u8 = 12;
        self.0.push(delta << 4 | STRUCT);
        self
    }

    fn stop(mut self) -> Self {
        self.0.push(0);
        self
    }
}

pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodings by their number in `parquet.thrift`.
pub mod encoding {
    pub const PLAIN: usize = 0;
    pub const RLE: usize = 3;
    pub const BIT_PACKED: usize = 4;
    pub const DELTA_BINARY_PACKED: usize = 5;
    pub const DELTA_LENGTH_BYTE_ARRAY: usize = 6;
    pub const DELTA_BYTE_ARRAY: usize = 7;
    pub const RLE_DICTIONARY: usize = 8;
    pub const BYTE_STREAM_SPLIT: usize = 9;
}

/// A dictionary page.
pub fn dictionary(entries: usize, plain: usize, body: &[u8]) -> Vec<u8> {
    let header = Thrift::default().int(1, 2).int(1, plain).int(1, body.len()).open(4);
    let mut page = header.int(1, entries).int(1, encoding::PLAIN).stop().stop().0;
    page.extend_from_slice(body);
    page
}

/// A data page of version 1. `plain` is the size of the body before compression.
pub fn v1(values: usize, encoding: usize, levels: usize, plain: usize, body: &[u8]) -> Vec<u8> {
    let header = Thrift::default().int(1, 0).int(1, plain).int(1, body.len()).open(2);
    let mut page = header.int(1, values).int(1, encoding).int(1, levels).int(1, levels).stop().stop().0;
    page.extend_from_slice(body);
    page
}

/// What the header of a version 2 page states.
pub struct V2 {
    pub values: usize,
    pub nulls: usize,
    pub rows: usize,
    pub encoding: usize,
    pub definition: usize,
    pub repetition: usize,
    pub compressed: bool,
    pub plain: usize,
}

/// A data page of version 2: repetition levels, definition levels and values.
pub fn v2(it: &V2, body: &[u8]) -> Vec<u8> {
    let header = Thrift::default().int(1, 3).int(1, it.plain).int(1, body.len()).open(5);
    let header = header.int(1, it.values).int(1, it.nulls).int(1, it.rows).int(1, it.encoding);
    let header = header.int(1, it.definition).int(1, it.repetition).flag(1, it.compressed);
    let mut page = header.stop().stop().0;
    page.extend_from_slice(body);
    page
}

/// The bits that numbers up to `largest` take.
pub fn width(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

/// RLE and bit-packed runs in turn: `pick` chooses, where both are possible. The last packed run is padded.
pub fn runs(numbers: &[u64], width: u32, mut pick: impl FnMut() -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let same = numbers[at..].iter().take_while(|it| **it == numbers[at]).count();
        if same >= 8 || pick() {
            varint(&mut out, (same as u64) << 1);
            out.extend_from_slice(&numbers[at].to_le_bytes()[..width.div_ceil(8) as usize]);
            at += same;
        } else {
            let left = numbers.len() - at;
            // Groups of eight; only the last run of all may be short of numbers.
            let groups = if pick() { left.div_ceil(8) } else { 1 };
            let taken = left.min(groups * 8);
            varint(&mut out, (groups as u64) << 1 | 1);
            let mut padded = numbers[at..at + taken].to_vec();
            padded.resize(groups * 8, 0);
            out.extend_from_slice(&pack(&padded, width));
            at += taken;
        }
    }
    out
}

/// Least significant bits first, as RLE's packed runs and DELTA_BINARY_PACKED have them; arrow-rs reads the old BIT_PACKED
/// levels so, too.
pub fn pack(numbers: &[u64], width: u32) -> Vec<u8> {
    let mut out = vec![0u8; (numbers.len() * width as usize).div_ceil(8)];
    for (at, number) in numbers.iter().enumerate() {
        for bit in 0..width as usize {
            let place = at * width as usize + bit;
            out[place / 8] |= ((number >> bit & 1) as u8) << (place % 8);
        }
    }
    out
}

/// DELTA_BINARY_PACKED with blocks of `block` in `minis` miniblocks. `bits` is that of the type, 32 or 64.
pub fn delta(numbers: &[i64], bits: u32, block: usize, minis: usize) -> Vec<u8> {
    let zigzag = |it: i64| ((it << 1) ^ (it >> 63)) as u64;
    // Arithmetic wraps around at the width of the type.
    let cut = |it: i64| if bits == 32 { i64::from(it as i32) } else { it };
    let mut out = Vec::new();
    varint(&mut out, block as u64);
    varint(&mut out, minis as u64);
    varint(&mut out, numbers.len() as u64);
    varint(&mut out, zigzag(numbers.first().copied().unwrap_or(0)));
    let deltas: Vec<i64> = numbers.windows(2).map(|it| cut(it[1].wrapping_sub(it[0]))).collect();
    for block_of in deltas.chunks(block) {
        let least = *block_of.iter().min().unwrap();
        let over: Vec<u64> = block_of.iter().map(|it| cut(it.wrapping_sub(least)) as u64).collect();
        let over: Vec<u64> = over.iter().map(|it| if bits == 32 { *it & 0xffff_ffff } else { *it }).collect();
        varint(&mut out, zigzag(least));
        let mini = block / minis;
        let width_of = |at: usize| over.iter().skip(at * mini).take(mini).map(|it| width(*it)).max().unwrap_or(0);
        out.extend((0..minis).map(|at| width_of(at) as u8));
        for (at, part) in over.chunks(mini).enumerate() {
            let mut padded = part.to_vec();
            padded.resize(mini, 0);
            out.extend_from_slice(&pack(&padded, width_of(at)));
        }
    }
    out
}

/// BYTE_STREAM_SPLIT of values of one size.
pub fn split(values: &[Vec<u8>]) -> Vec<u8> {
    let size = values.first().map_or(0, Vec::len);
    (0..size).flat_map(|byte| values.iter().map(move |it| it[byte])).collect()
}

/// DELTA_LENGTH_BYTE_ARRAY.
pub fn delta_length(values: &[Vec<u8>]) -> Vec<u8> {
    let lengths: Vec<i64> = values.iter().map(|it| it.len() as i64).collect();
    let mut out = delta(&lengths, 32, 128, 4);
    values.iter().for_each(|it| out.extend_from_slice(it));
    out
}

/// DELTA_BYTE_ARRAY.
pub fn delta_bytes(values: &[Vec<u8>]) -> Vec<u8> {
    let mut previous: &[u8] = &[];
    let mut shared = Vec::new();
    let mut suffixes = Vec::new();
    for value in values {
        let common = previous.iter().zip(value).take_while(|(one, other)| one == other).count();
        shared.push(common as i64);
        suffixes.push(value[common..].to_vec());
        previous = value;
    }
    let mut out = delta(&shared, 32, 128, 4);
    out.extend_from_slice(&delta_length(&suffixes));
    out
}
