//! The kernels: their names, sources and block sizes. One `.cu` file a concern, named like the Rust file that
//! launches it; `abi.h` and [`abi`] hold the structs that both sides read.

pub mod abi;
#[cfg(all(test, feature = "emulated"))]
mod abi_tests;

/// Declares every kernel once: the variant, its symbol, its file's base name and its block size.
macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident = $symbol:ident in $module:literal, $threads:literal threads;)*) => {
        /// A kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kernel { $($(#[$doc])* $variant,)* }

        impl Kernel {
            /// Every kernel.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name under which the compiled module exports it.
            pub fn symbol(self) -> &'static str {
                match self { $(Self::$variant => stringify!($symbol),)* }
            }

            /// Base name of the file that holds it.
            pub fn module(self) -> &'static str {
                match self { $(Self::$variant => $module,)* }
            }

            /// The module's source.
            pub fn source(self) -> &'static str {
                match self { $(Self::$variant => include_str!(concat!($module, ".cu")),)* }
            }

            /// Threads of a block.
            pub fn threads(self) -> u32 {
                match self { $(Self::$variant => $threads,)* }
            }
        }

        /// The kernels built for the CPU.
        #[cfg(feature = "emulated")]
        pub(crate) mod emulated {
            use super::Kernel;
            use crate::device::emulated::KernelBody;

            // SAFETY: the symbols are defined by KERNEL in prelude.cuh, once for each kernel, with this signature.
            unsafe extern "C" { $(fn $symbol(args: *const std::ffi::c_void);)* }

            /// The function that one emulated thread runs.
            pub(crate) fn body(kernel: Kernel) -> KernelBody {
                match kernel { $(Kernel::$variant => $symbol,)* }
            }
        }
    };
}

kernels! {
    /// Small ranges from one packed buffer to their places.
    Scatter = pqgpu_scatter in "scatter", 128 threads;
    /// Zeroes ranges, a block a range.
    Zero = pqgpu_zero in "zero", 128 threads;
    /// Thrift page headers, a warp a chunk.
    PageHeaders = pqgpu_page_headers in "header", 32 threads;
    /// Checksums of pages as stored, a block a page.
    Crc = pqgpu_crc in "crc", 256 threads;
    /// Snappy pages, a block a page.
    Snappy = pqgpu_snappy in "snappy", 128 threads;
    /// Raw LZ4 pages, a block a page.
    Lz4 = pqgpu_lz4 in "lz4", 128 threads;
    /// Definition levels of flat columns to validity bits and counts, a block a page.
    Levels = pqgpu_levels in "levels", 128 threads;
    /// Levels of shaped columns to bytes, a block a page.
    NestedLevels = pqgpu_nested_levels in "nested", 128 threads;
    /// Rows before each page of a scan that selects rows, a thread a run of pages.
    PageRows = pqgpu_page_rows in "nested", 32 threads;
    /// Strikes out rows that are not selected, a block a page.
    StrikeOut = pqgpu_strike_out in "nested", 128 threads;
    /// How many slots of each class the levels of a page make, a block a page.
    SlotCounts = pqgpu_slot_counts in "nested", 128 threads;
    /// Levels to the offsets and validity bits of lists, structs and leaves, a block a page.
    Shape = pqgpu_shape in "nested", 128 threads;
    /// DELTA_BINARY_PACKED pages to plain values, a block a page.
    DeltaIntegers = pqgpu_delta_integers in "delta", 128 threads;
    /// Lengths of the strings of DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY pages, a block a page.
    DeltaLengths = pqgpu_delta_lengths in "delta", 128 threads;
    /// Prefixes and suffixes of DELTA_BYTE_ARRAY pages to strings, a block a page.
    DeltaStrings = pqgpu_delta_strings in "delta", 128 threads;
    /// BYTE_STREAM_SPLIT pages to plain values, a block a page.
    Split = pqgpu_split in "split", 128 threads;
    /// String dictionaries to references, a block a dictionary page.
    DictionaryStrings = pqgpu_dictionary_strings in "dictionary", 128 threads;
    /// Fixed-width values, PLAIN or from a dictionary, a block a page.
    Fixed = pqgpu_fixed in "fixed", 128 threads;
    /// References to each row's string, and bytes a page, a block a page.
    StringRefs = pqgpu_string_refs in "strings", 128 threads;
    /// Where the entries of dictionaries that are kept go, a block a column.
    Entries = pqgpu_entries in "keys", 128 threads;
    /// Keys into dictionaries that are kept, a block a page.
    Keys = pqgpu_keys in "keys", 128 threads;
    /// Decimals from references, a block a page.
    ByteDecimals = pqgpu_byte_decimals in "decimals", 128 threads;
    /// Offsets and bytes from references, a block a page.
    StringGather = pqgpu_string_gather in "strings", 128 threads;
    /// Views of gathered strings, a block a page.
    StringViews = pqgpu_string_views in "strings", 128 threads;
    /// UTF-8 validation of gathered bytes.
    Utf8 = pqgpu_utf8 in "utf8", 256 threads;
}

/// What the kernels include, by the name in the `#include`.
pub const HEADERS: &[(&str, &str)] = &[
    ("abi.h", include_str!("abi.h")),
    ("prelude.cuh", include_str!("prelude.cuh")),
    ("ring.cuh", include_str!("ring.cuh")),
    ("bytes.cuh", include_str!("bytes.cuh")),
    ("rows.cuh", include_str!("rows.cuh")),
    ("delta.cuh", include_str!("delta.cuh")),
    ("levels.cuh", include_str!("levels.cuh")),
    ("chain.cuh", include_str!("chain.cuh")),
    ("indices.cuh", include_str!("indices.cuh")),
    ("rle.cuh", include_str!("rle.cuh")),
];
