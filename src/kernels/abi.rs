//! The Rust side of `abi.h`; see there for what each field means.
#![allow(missing_docs)] // abi.h documents the fields, once

use bytemuck::{Pod, Zeroable};

use super::Kernel;

/// No page, no dictionary.
pub const NONE: u32 = u32::MAX;

/// A kernel's one argument struct.
///
/// # Safety
/// The type is the one that the kernel named by `KERNEL` takes.
pub unsafe trait KernelArgs: Pod {
    /// The kernel.
    const KERNEL: Kernel;
}

macro_rules! structs {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` in `abi.h`.")]
            #[repr(C)]
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
            pub struct $name { $(pub $field: $type,)* }
        )*

        /// Name, size and field offsets of every struct, for comparison with the C++ side.
        pub fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

structs! {
    FaultSlot { word: u64 }
    ChunkDesc { address: u64, bytes: u64, num_values: u64, first_page: u32, capacity: u32 }
    ChunkResult { pages: u32, fault: u32, fault_offset: u64 }
    PageHeader {
        header_offset: u64, body_offset: u64, compressed_bytes: u32, uncompressed_bytes: u32, num_values: u32,
        num_rows: u32, num_nulls: u32, def_bytes: u32, rep_bytes: u32, crc: u32, kind: u8, encoding: u8,
        def_encoding: u8, rep_encoding: u8, is_compressed: u8, has_crc: u8, _pad: [u8; 2],
    }
    Page {
        source: u64, body: u64, entries: u64, first_row: u64, levels: u64, expanded: u64, counts: u64, source_bytes: u32, body_bytes: u32, num_values: u32,
        def_bytes: u32, rep_bytes: u32, column: u32, dictionary: u32, stated_values: u32,
        kind: u8, encoding: u8, def_encoding: u8, rep_encoding: u8, is_first: u8, _pad: [u8; 3],
    }
    PageState { values: u64, value_bytes: u32, valid: u32, string_bytes: u64, first_slot: u64, slots: u32, rows: u32 }
    PageRun { first_row: u64, first: u32, end: u32 }
    PagePart { page: u32, part: u32, parts: u32, other: u32 }
    PagePair { page: u32, other: u32 }
    StringRef { address: u64, bytes: u32, _pad: u32 }
    Node {
        offsets: u64, validity: u64, slots: u64, children: u64, def: u32, rep: u32, size: u32, offset_width: u32,
        slot_class: u32, is_fixed_size: u32,
    }
    Column {
        values: u64, validity: u64, refs: u64, ranks: u64, offsets: u64, data: u64, rows: u64, factor: i64, first_node: u32,
        lists: u32, structs: u32, max_def: u32, max_rep: u32, conversion: u32, in_width: u32, out_width: u32, flags: u32,
        _pad: u32,
    }
    ScatterEntry { source: u64, target: u64, bytes: u64 }
    ZeroEntry { target: u64, bytes: u64 }
    ScatterArgs { entries: u64, count: u64 }
    ZeroArgs { entries: u64, count: u64 }
    PageHeadersArgs { chunks: u64, headers: u64, results: u64, count: u64 }
    SnappyArgs { pages: u64, items: u64, fault: u64, count: u64 }
    Lz4Args { pages: u64, items: u64, fault: u64, count: u64 }
    CrcItem { source: u64, bytes: u32, crc: u32, page: u32, _pad: u32 }
    CrcArgs { items: u64, fault: u64, count: u64 }
    LevelsArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    NestedLevelsArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    PageRowsArgs { states: u64, items: u64, runs: u64, count: u64 }
    StrikeOutArgs { pages: u64, columns: u64, states: u64, items: u64, selected: u64, rows: u64, count: u64 }
    DeltaIntegersArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    DeltaLengthsArgs { pages: u64, states: u64, items: u64, fault: u64, count: u64 }
    DeltaStringsArgs { pages: u64, columns: u64, states: u64, items: u64, targets: u64, fault: u64, count: u64 }
    SplitArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    SlotCountsArgs { pages: u64, columns: u64, nodes: u64, states: u64, items: u64, count: u64 }
    ShapeArgs { pages: u64, columns: u64, nodes: u64, states: u64, items: u64, bases: u64, first_bases: u64, fault: u64, count: u64 }
    DictionaryStringsArgs { pages: u64, states: u64, items: u64, fault: u64, count: u64 }
    FixedArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    ByteDecimalsArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    EntriesArgs { pages: u64, states: u64, items: u64, runs: u64, fault: u64, count: u64 }
    KeysArgs { pages: u64, columns: u64, states: u64, items: u64, fault: u64, count: u64 }
    StringRefsArgs { pages: u64, columns: u64, states: u64, items: u64, bytes: u64, fault: u64, count: u64 }
    StringGatherArgs { pages: u64, columns: u64, states: u64, items: u64, bases: u64, count: u64 }
    StringViewsArgs { pages: u64, columns: u64, states: u64, items: u64, bases: u64, count: u64 }
    Utf8Args { pages: u64, columns: u64, states: u64, items: u64, bases: u64, bytes: u64, fault: u64, count: u64 }
}

macro_rules! kernel_args {
    ($($name:ident => $kernel:ident),* $(,)?) => {
        // SAFETY: the KERNEL line of each kernel names this struct; the emulated tests and abi.h's test check both.
        $(unsafe impl KernelArgs for $name { const KERNEL: Kernel = Kernel::$kernel; })*
    };
}

kernel_args! {
    ScatterArgs => Scatter, PageHeadersArgs => PageHeaders, SnappyArgs => Snappy, Lz4Args => Lz4, CrcArgs => Crc, LevelsArgs => Levels,
    NestedLevelsArgs => NestedLevels, ShapeArgs => Shape, PageRowsArgs => PageRows, StrikeOutArgs => StrikeOut,
    SlotCountsArgs => SlotCounts, DeltaIntegersArgs => DeltaIntegers, DeltaLengthsArgs => DeltaLengths,
    DeltaStringsArgs => DeltaStrings, SplitArgs => Split,
    DictionaryStringsArgs => DictionaryStrings, FixedArgs => Fixed, StringRefsArgs => StringRefs, EntriesArgs => Entries, KeysArgs => Keys, ByteDecimalsArgs => ByteDecimals,
    StringGatherArgs => StringGather, StringViewsArgs => StringViews, Utf8Args => Utf8, ZeroArgs => Zero,
}

macro_rules! constants {
    ($($(#[$doc:meta])* $module:ident: $type:ty, $prefix:literal { $($name:ident = $value:literal),* $(,)? })*) => {
        $($(#[$doc])* pub mod $module { $(pub const $name: $type = $value;)* })*

        /// Every constant by its name in `abi.h`, for comparison with the C++ side.
        pub fn constants() -> Vec<(String, u64)> {
            vec![
                ("PQGPU_NONE".into(), NONE.into()),
                $($((concat!($prefix, stringify!($name)).into(), $module::$name.into()),)*)*
            ]
        }
    };
}

constants! {
    /// `PageKind` in `abi.h`.
    page_kind: u8, "PAGE_" { DATA_V1 = 0, INDEX = 1, DICTIONARY = 2, DATA_V2 = 3 }
    /// `Encoding` in `abi.h`.
    encoding: u8, "ENCODING_" {
        PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, BIT_PACKED = 4, DELTA_BINARY_PACKED = 5, DELTA_LENGTH_BYTE_ARRAY = 6,
        DELTA_BYTE_ARRAY = 7, RLE_DICTIONARY = 8, BYTE_STREAM_SPLIT = 9,
    }
    /// `Conversion` in `abi.h`.
    conversion: u32, "CONVERT_" {
        COPY = 0, BOOL = 1, SIGN_EXTEND = 2, BIG_ENDIAN = 3, INT96_NANOS = 4, DIVIDE = 5, MULTIPLY = 6, COPY_TAIL = 7,
    }
    /// `ColumnFlag` in `abi.h`.
    column_flag: u32, "COLUMN_" { FIXED_LEN = 1, SELECTED = 2 }
    /// `FaultKind` in `abi.h`.
    fault: u32, "FAULT_" {
        NONE = 0, HEADER_TRUNCATED = 1, HEADER_MALFORMED = 2, BODY_TRUNCATED = 3, DECOMPRESS = 4,
        DECOMPRESSED_LENGTH = 5, LEVELS = 6, VALUES_TRUNCATED = 7, DICTIONARY_INDEX = 8, RLE = 9, STRING_LENGTH = 10,
        UTF8 = 11, REPETITION_LEVELS = 12, FIXED_SIZE_LIST = 13, DELTA = 14, DECIMAL_LENGTH = 15, CRC = 16,
    }
}

/// `FaultKind` in `abi.h`, as words.
pub fn fault_message(kind: u32) -> &'static str {
    match kind {
        fault::HEADER_TRUNCATED => "a page header runs past the column chunk",
        fault::HEADER_MALFORMED => "malformed page header",
        fault::BODY_TRUNCATED => "a page body runs past the column chunk",
        fault::DECOMPRESS => "malformed compressed page",
        fault::DECOMPRESSED_LENGTH => "a page does not decompress to the length that its header states",
        fault::LEVELS => "malformed definition levels",
        fault::VALUES_TRUNCATED => "fewer values than the levels ask for",
        fault::DICTIONARY_INDEX => "a dictionary index is out of range",
        fault::RLE => "malformed run-length encoding",
        fault::STRING_LENGTH => "a string runs past its page",
        fault::REPETITION_LEVELS => "malformed repetition levels",
        fault::DELTA => "malformed delta encoding",
        fault::FIXED_SIZE_LIST => "a fixed-size list has another size",
        fault::DECIMAL_LENGTH => "a decimal has more bytes than its Arrow type",
        fault::CRC => "a page does not have the checksum that its header states",
        fault::UTF8 => "a string is not UTF-8",
        _ => "unknown fault",
    }
}
