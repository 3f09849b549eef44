//! Headers by hand: every Thrift type, order and lie.

use bytes::Bytes;
use parquet::basic::{BrotliLevel, Compression, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescriptor;
use parquet_gpu::device::{Gpu, Stream};
use parquet_gpu::kernels::abi::{NONE, page_kind};
use parquet_gpu::page::header;

use super::{Chunk, assert_same, load, parse, place, read, reference, streams};

/// Thrift compact types.
const I32: u8 = 5;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Writes Thrift compact structs.
#[derive(Debug, Clone, Default)]
struct Thrift(Vec<u8>);

impl Thrift {
    fn varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn zigzag(self, value: i64) -> Self {
        self.varint(((value << 1) ^ (value >> 63)) as u64)
    }

    /// A field header with a delta of 1 to 15.
    fn field(mut self, delta: u8, kind: u8) -> Self {
        self.0.push(delta << 4 | kind);
        self
    }

    /// A field header with an absolute id.
    fn absolute(mut self, id: i16, kind: u8) -> Self {
        self.0.push(kind);
        self.zigzag(id.into())
    }

    fn int(self, delta: u8, value: i64) -> Self {
        self.field(delta, I32).zigzag(value)
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn binary(self, delta: u8, bytes: &[u8]) -> Self {
        self.field(delta, BINARY).varint(bytes.len() as u64).raw(bytes)
    }

    fn stop(self) -> Self {
        self.raw(&[0])
    }
}

/// PageHeader up to the sizes.
fn page(kind: i64, uncompressed: i64, compressed: i64) -> Thrift {
    Thrift::default().int(1, kind).int(1, uncompressed).int(1, compressed)
}

/// A DataPageHeader that more fields may follow.
fn open_v1(count: i64, bytes: i64) -> Thrift {
    page(0, bytes, bytes).field(2, STRUCT).int(1, count).int(1, 0).int(1, 3).int(1, 3)
}

fn v1(count: i64, body: &[u8]) -> Vec<u8> {
    open_v1(count, body.len() as i64).stop().stop().raw(body).0
}

/// A DataPageHeaderV2 that more fields may follow.
fn open_v2(count: i64, nulls: i64, def: i64, rep: i64, bytes: i64) -> Thrift {
    let page = page(3, bytes, bytes).field(5, STRUCT);
    page.int(1, count).int(1, nulls).int(1, count).int(1, 0).int(1, def).int(1, rep)
}

fn dictionary(count: i64, body: &[u8]) -> Vec<u8> {
    let page = page(2, body.len() as i64, body.len() as i64).field(4, STRUCT);
    page.int(1, count).int(1, 2).field(1, 1).stop().stop().raw(body).0
}

fn index(body: &[u8]) -> Vec<u8> {
    page(1, body.len() as i64, body.len() as i64).field(3, STRUCT).stop().stop().raw(body).0
}

fn metadata(bytes: &Bytes, codec: Compression) -> ColumnChunkMetaData {
    let schema = parse_message_type("message m { required int32 a; }").unwrap();
    let column = SchemaDescriptor::new(schema.into()).column(0);
    ColumnChunkMetaData::builder(column)
        .set_compression(codec)
        .set_total_compressed_size(bytes.len() as i64)
        .set_data_page_offset(0)
        .build()
        .unwrap()
}

/// Reads with several seeds and compares with arrow-rs, which agrees on whether there is a result.
fn check(name: &str, bytes: Vec<u8>, num_values: u64, good: bool) {
    let bytes = Bytes::from(bytes);
    let expected = reference(&bytes, &metadata(&bytes, Compression::UNCOMPRESSED), num_values);
    assert_eq!(expected.is_ok(), good, "{name}: arrow-rs says {expected:?}");
    for stream in streams(&[0, 5]) {
        let chunk = Chunk::plain(bytes.clone(), num_values);
        match (&expected, read(&stream, &[chunk])) {
            (Ok(pages), Ok((table, bodies))) => {
                assert_eq!(table.len(), pages.len(), "{name}");
                for (at, page) in pages.iter().enumerate() {
                    assert_same(table.header(at), bodies[at].as_ref(), page, name);
                }
            }
            (Err(_), Err(error)) => assert_eq!(error.kind(), "corrupt", "{name}: {error}"),
            (expected, ours) => panic!("{name}: arrow-rs {expected:?}, here {:?}", ours.map(|it| it.0)),
        }
    }
}

#[test]
fn kinds_of_pages() {
    check("V1", v1(3, b"abcdefghijkl"), 3, true);
    check("what follows is not read", [v1(3, b"abc"), vec![0xff; 40]].concat(), 3, true);
    check("nothing to read", vec![0xff; 40], 0, true);
    check("an empty page", [v1(0, b""), v1(2, b"x")].concat(), 2, true);
    check("a dictionary", [dictionary(2, b"dict"), v1(3, b"abc")].concat(), 3, true);
    check("a dictionary that comes late", [v1(1, b"abc"), dictionary(2, b"dict"), v1(3, b"abc")].concat(), 4, true);
    check("index pages", [index(b"xyz"), v1(1, b"a"), index(b""), v1(1, b"")].concat(), 2, true);
    let v2 = open_v2(4, 1, 2, 0, 5);
    check("V2", v2.clone().stop().stop().raw(b"hello").0, 4, true);
    check("V2, compressed", v2.clone().field(1, 1).stop().stop().raw(b"hello").0, 4, true);
    check("V2, not compressed", v2.field(1, 2).stop().stop().raw(b"hello").0, 4, true);
    check("V2 without values", open_v2(0, 0, 0, 0, 0).stop().stop().raw(&v1(1, b"")).0, 1, true);
    check("a checksum", page(0, 1, 1).int(1, -5).field(1, STRUCT).raw(&v1(1, b"")[7..]).raw(b"x").0, 1, true);
}

#[test]
fn fields_that_are_not_known() {
    let one_of_each: Vec<(&str, u8, Vec<u8>)> = vec![
        ("true", 1, vec![]),
        ("false", 2, vec![]),
        ("byte", 3, vec![0xff]),
        ("i16", 4, Thrift::default().zigzag(-300).0),
        ("i32", I32, Thrift::default().zigzag(i32::MIN.into()).0),
        ("i64", 6, Thrift::default().zigzag(i64::MIN).0),
        ("double", 7, vec![0xff; 8]),
        ("binary", BINARY, Thrift::default().varint(3000).raw(&[0xff; 3000]).0),
        ("empty list, as some spell it", LIST, vec![0]),
        ("list", LIST, Thrift::default().raw(&[3 << 4 | I32]).zigzag(1).zigzag(-1).zigzag(1 << 20).0),
        ("long list", LIST, Thrift::default().raw(&[15 << 4 | 3]).varint(2000).raw(&[7; 2000]).0),
        ("list of booleans, of which arrow-rs takes no bytes", LIST, vec![15 << 4 | 1, 0x80, 0x80, 0x40]),
        ("set", 10, Thrift::default().raw(&[2 << 4 | BINARY, 1, 9, 0]).0),
        ("list of structs", LIST, Thrift::default().raw(&[2 << 4 | STRUCT]).int(1, 5).stop().stop().0),
        ("map", MAP, Thrift::default().varint(2).raw(&[BINARY << 4 | 3, 1, 9, 5, 0, 5]).0),
        ("empty map", MAP, vec![0]),
        ("struct", STRUCT, Thrift::default().int(3, 1).binary(1, b"xy").field(1, STRUCT).stop().field(1, 1).stop().0),
        ("uuid", 13, vec![0xff; 16]),
    ];
    for (name, kind, bytes) in &one_of_each {
        let outside = open_v1(2, 4).stop().absolute(1000, *kind).raw(bytes).stop().raw(b"body").0;
        check(name, [outside, v1(1, b"xyz")].concat(), 3, true);
        let inside = open_v1(2, 4).field(5, *kind).raw(bytes).stop().stop().raw(b"body").0;
        check(name, [inside, v1(1, b"xyz")].concat(), 3, true);
    }
    // Statistics, whose strings may be longer than the window into the chunk.
    for length in [10, 480, 1000, 1024, 5000] {
        let text = vec![0x7f; length];
        let page = open_v1(2, 4).field(1, STRUCT).binary(5, &text).binary(1, &text).int(2, 3).stop();
        check("statistics", page.stop().stop().raw(b"body").0, 2, true);
    }
    // Lists in lists, to the depth that arrow-rs follows and beyond it.
    for depth in [1, 62, 63, 64, 65, 200] {
        let lists = vec![1 << 4 | LIST; depth - 1];
        for (innermost, reach) in [(vec![1 << 4 | 3, 9], 63), (vec![3], 64), (vec![1 << 4 | 1], 63)] {
            let page = open_v1(2, 4).field(5, LIST).raw(&lists).raw(&innermost).stop().stop().raw(b"body");
            check(&format!("{depth} lists"), page.0, 2, depth <= reach);
        }
    }
}

#[test]
fn orders_and_widths() {
    let backwards = Thrift::default()
        .absolute(5, STRUCT)
        .absolute(4, I32)
        .zigzag(3)
        .absolute(3, I32)
        .zigzag(3)
        .absolute(2, I32)
        .zigzag(8)
        .absolute(1, I32)
        .zigzag(7)
        .stop()
        .absolute(3, I32)
        .zigzag(2)
        .absolute(2, I32)
        .zigzag(2)
        .absolute(1, I32)
        .zigzag(0)
        .stop();
    check("absolute ids, last to first", backwards.raw(b"xy").0, 7, true);
    check("the last of two counts", open_v1(2, 1).absolute(1, I32).zigzag(6).stop().stop().raw(b"x").0, 6, true);
    check("more than 32 bits", open_v1((1 << 32) + 2, 1).stop().stop().raw(b"x").0, 2, true);
    let padded = page(0, 1, 1).field(2, STRUCT).field(1, I32).raw(&[0x84, 0x80, 0x80, 0]).int(1, 0).int(1, 3).int(1, 3);
    check("more bytes than a number needs", padded.stop().stop().raw(b"x").0, 2, true);
    let wide = [[0x84].as_slice(), &[0x80; 9], &[0]].concat();
    let wide = page(0, 1, 1).field(2, STRUCT).field(1, I32).raw(&wide).int(1, 0).int(1, 3).int(1, 3).stop().stop();
    let wide = Chunk::plain(wide.raw(b"x").0, 2);
    for stream in streams(&[0]) {
        let error = parse(&stream, std::slice::from_ref(&wide)).unwrap_err();
        assert_eq!(place(&error), (Some(0), Some(0), Some(18)), "eleven bytes, which arrow-rs takes: {error}");
    }
}

#[test]
fn lies() {
    let good = v1(2, b"body");
    check("good", good.clone(), 2, true);
    for cut in 1..good.len() {
        check(&format!("cut to {cut} bytes"), good[..cut].to_vec(), 2, false);
    }
    let v1_struct = |page: Thrift| page.field(2, STRUCT).int(1, 2).int(1, 0).int(1, 3).int(1, 3).stop().stop().0;
    check("a negative size", v1_struct(page(0, 0, -1)), 2, false);
    check("a negative plain size", v1_struct(page(0, -1, 0)), 2, false);
    check("a negative size of an index page", page(1, -1, 0).stop().raw(&v1(2, b"")).0, 2, false);
    check("an index page past the end", page(1, 0, 500).stop().raw(&v1(2, b"")).0, 2, false);
    check("a kind of page that is none", v1_struct(page(4, 0, 0)), 2, false);
    check("a negative count", v1(-1, b""), 2, false);
    check("a dictionary's negative count", [dictionary(-1, b""), v1(2, b"")].concat(), 2, false);
    check("no size", Thrift::default().int(1, 0).int(1, 0).stop().raw(&[0; 40]).0, 2, false);
    check("no header for the kind", page(0, 0, 0).stop().raw(&[0; 40]).0, 2, false);
    check("the header of another kind", page(2, 0, 0).raw(&v1(2, b"")[6..]).0, 2, false);
    let short = page(0, 0, 0).field(2, STRUCT).int(1, 2).int(1, 0).int(1, 3).stop().stop();
    check("no encoding of repetition levels", short.0, 2, false);
    for encoding in [-1, 1, 11] {
        let page = page(0, 0, 0).field(2, STRUCT).int(1, 2).int(1, encoding).int(1, 3).int(1, 3).stop().stop();
        check("an encoding that is none", page.0, 2, false);
    }
    for kind in [14, 15] {
        check("a type that is none", open_v1(2, 0).stop().field(9, kind).raw(&[0; 40]).0, 2, false);
    }
    for nibble in [0, 14, 15] {
        check(
            "an element type that is none",
            open_v1(2, 0).field(9, LIST).raw(&[0x20 | nibble]).raw(&[0; 40]).0,
            2,
            false,
        );
    }
    check("a list of 2^31", open_v1(2, 0).field(9, LIST).raw(&[0xf5]).varint(1 << 31).raw(&[0; 99]).0, 2, false);
    check("a map of 2^31", open_v1(2, 0).field(9, MAP).varint(1 << 31).raw(&[0x55; 99]).0, 2, false);
    check(
        "a list of 2^31 - 1",
        open_v1(2, 0).field(9, LIST).raw(&[0xf5]).varint((1 << 31) - 1).raw(&[0; 99]).0,
        2,
        false,
    );
    check("an endless string", open_v1(2, 0).field(9, BINARY).varint(u64::MAX).raw(&[0; 99]).0, 2, false);
    check("field ids run over", open_v1(2, 0).absolute(32767, 1).field(1, 1).stop().stop().0, 2, false);
    check("a flag that is none", open_v2(2, 0, 0, 0, 0).int(1, 1).stop().stop().0, 2, false);
    check("V2: levels beyond the page", open_v2(2, 0, 3, 3, 5).stop().stop().raw(b"hello").0, 2, false);
    check("V2: levels that run over", open_v2(2, 0, i32::MAX.into(), 1, 5).stop().stop().raw(b"hello").0, 2, false);
    check("V2: negative levels", open_v2(2, 0, -1, 0, 5).stop().stop().raw(b"hello").0, 2, false);
    check("V2: negative nulls", open_v2(2, -1, 0, 0, 5).stop().stop().raw(b"hello").0, 2, false);
}

#[test]
fn what_one_header_does_not_show() {
    streams(&[3]).iter().for_each(one_header_does_not_show);
}

fn one_header_does_not_show(stream: &Stream) {
    // arrow-rs notices these beyond the page reader, or not at all.
    let fails = |chunk: Chunk, expected: (usize, u64), word: &str| {
        let good = Chunk::plain(v1(1, b""), 1);
        let error = parse(stream, &[good, Chunk { file_offset: 1000, ..chunk }]).unwrap_err();
        assert_eq!(place(&error), (Some(1), Some(expected.0), Some(1000 + expected.1)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    let page = v1(2, b"body");
    let length = page.len() as u64;
    fails(Chunk::plain(page.repeat(2), 3), (1, length), "4 values");
    fails(Chunk::plain(page.repeat(2), 5), (2, 2 * length), "ends after 4 of 5 values");
    fails(Chunk::plain([page.clone(), vec![0x15]].concat(), 3), (1, length + 1), "runs past");
    fails(Chunk::plain(open_v2(2, 3, 0, 0, 0).stop().stop().0, 2), (0, 0), "malformed page header");
    let words = dictionary(2, b"dict");
    let two = [words.clone(), words.clone(), page.clone()].concat();
    fails(Chunk::plain(two.clone(), 2), (1, words.len() as u64), "second dictionary");

    let strings = Chunk { physical_type: Type::BYTE_ARRAY, ..Chunk::plain(two, 2) };
    let before = Chunk::plain([page.clone(), words, page].concat(), 4);
    let table = parse(stream, &[Chunk::plain(Vec::new(), 0), strings, Chunk::plain(vec![9], 0), before]).unwrap();
    assert_eq!((0..table.len()).map(|it| table.chunk_of(it)).collect::<Vec<_>>(), [1, 1, 1, 3, 3, 3]);
    let pages = table.describe();
    assert_eq!(pages.iter().map(|it| it.dictionary).collect::<Vec<_>>(), [NONE, NONE, 1, NONE, NONE, 4]);
    assert_eq!(pages.iter().map(|it| it.first_row).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 2]);
    assert_eq!(table.header(4).kind, page_kind::DICTIONARY);
}

#[test]
fn a_second_launch_for_all_that_were_guessed_short() {
    streams(&[9]).iter().for_each(|it| second_launch(it.gpu()));
}

fn second_launch(gpu: &Gpu) {
    let many = Chunk::plain(v1(1, b"x").repeat(700), 700);
    let few = Chunk::plain(v1(1, b"x").repeat(3), 3);
    let told = Chunk { expected_pages: Some(700), ..many.clone() };
    let lied = Chunk { expected_pages: Some(1), ..few.clone() };
    for (chunks, launches) in [(vec![few.clone(), told.clone()], 1), (vec![many.clone(), few, many, told, lied], 2)] {
        let stream = gpu.with_budget(u64::MAX).new_stream().unwrap(); // with counters of its own
        let loaded = load(&stream, &chunks);
        let waits = stream.gpu().counters().syncs();
        let table = header::parse(&stream, &loaded.inputs).unwrap();
        assert_eq!(stream.gpu().counters().launches(), launches);
        assert_eq!(stream.gpu().counters().syncs() - waits, launches);
        for (at, chunk) in chunks.iter().enumerate() {
            assert_eq!(table.pages(at).len() as u64, chunk.num_values);
            let page = chunk.bytes.len() as u64 / chunk.num_values;
            assert!(table.headers(at).iter().zip(0..).all(|(header, it)| header.header_offset == it * page));
        }
    }
    // The table counts against the budget.
    let stream = gpu.new_stream().unwrap();
    let loaded = load(&stream, &[Chunk::plain(v1(0, b"").repeat(10_000), 1)]);
    let small = stream.gpu().with_budget(100_000).new_stream().unwrap();
    assert_eq!(header::parse(&small, &loaded.inputs).unwrap_err().kind(), "budget");
}

#[test]
fn bodies_that_need_no_codec() {
    streams(&[2]).iter().for_each(need_no_codec);
}

fn need_no_codec(stream: &Stream) {
    let snappy = |bytes: Vec<u8>, count| Chunk { codec: Compression::SNAPPY, ..Chunk::plain(bytes, count) };
    let cases = [
        ("not compressed", open_v2(4, 1, 2, 0, 5).field(1, 2).stop().stop().raw(b"hello").0, Some(&b"hello"[..])),
        ("only levels", open_v2(4, 4, 2, 3, 5).stop().stop().raw(b"level").0, Some(b"level")),
        ("nothing, of something", page(0, 0, 3).raw(&v1(4, b"")[6..]).raw(b"xyz").0, Some(b"")),
        ("something, of nothing", page(0, 3, 0).raw(&v1(4, b"")[6..]).0, None),
        ("not Snappy", v1(4, b"hello"), None),
    ];
    for (name, bytes, body) in cases {
        let expected = reference(&bytes.clone().into(), &metadata(&bytes.clone().into(), Compression::SNAPPY), 4);
        assert_eq!(expected.ok().map(|it| it[0].buffer().to_vec()), body.map(<[u8]>::to_vec), "{name}");
        let ours = read(stream, &[snappy(bytes, 4)]);
        assert_eq!(ours.ok().map(|it| it.1[0].clone().unwrap().to_vec()), body.map(<[u8]>::to_vec), "{name}");
    }
    // Levels beyond what is stored: arrow-rs panics.
    let short = page(3, 9, 2).raw(&open_v2(4, 0, 2, 3, 0).stop().stop().0[6..]).raw(b"he").0;
    for chunk in [snappy(short.clone(), 4), Chunk::plain(short, 4)] {
        assert_eq!(place(&read(stream, &[chunk]).unwrap_err()), (Some(0), Some(0), Some(0)));
    }
    // A fault names the byte of the file: here the preamble of the second page.
    let first = page(0, 2, 4).raw(&v1(4, b"")[6..]).raw(&[2, 4, b'a', b'b']).0;
    let second = page(0, 2, 4).raw(&v1(4, b"")[6..]).raw(&[3, 4, b'a', b'b']).0;
    let bytes = [first.clone(), second.clone()].concat();
    let error = read(stream, &[Chunk { file_offset: 500, ..snappy(bytes, 8) }]).unwrap_err();
    assert_eq!(place(&error), (Some(0), Some(1), Some(500 + (first.len() + second.len()) as u64 - 3)), "{error}");

    let brotli = Chunk { codec: Compression::BROTLI(BrotliLevel::default()), ..Chunk::plain(v1(4, b"hello"), 4) };
    let loaded = load(stream, &[brotli]);
    let table = header::parse(stream, &loaded.inputs).unwrap();
    let error = parquet_gpu::decompress::place(stream, &table, &mut table.describe()).unwrap_err();
    assert_eq!(error.kind(), "unsupported", "{error}");
    // A page that claims more than its bytes can give, or than the budget has, is refused before memory is asked for.
    for (claim, kind) in [(i32::MAX, "corrupt"), (90_200, "corrupt"), (90_000, "budget")] {
        let bytes = page(0, claim.into(), 4096).raw(&v1(4, b"")[6..]).raw(&[0; 4096]).0;
        let small = stream.gpu().with_budget(1 << 16).new_stream().unwrap();
        assert_eq!(read(&small, &[snappy(bytes, 4)]).unwrap_err().kind(), kind, "{claim} bytes");
        assert!(small.gpu().budget().peak() < 1 << 16);
    }
}
