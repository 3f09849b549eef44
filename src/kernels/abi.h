// Structs that Rust (kernels/abi.rs) and the kernels share. Every field has a fixed width, every struct a size that is a
// multiple of its alignment without implicit padding; a test compares sizes, offsets and constants on both sides.
// Addresses are device addresses. `_` names padding that is zero.
#pragma once

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef short int16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#else
#include <stdint.h>
#endif

#define PQGPU_NONE 0xffffffffu

// Kinds of pages: parquet.thrift PageType, with data pages by version.
enum PageKind : uint8_t { PAGE_DATA_V1 = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };

// parquet.thrift Encoding.
enum Encoding : uint8_t {
    ENCODING_PLAIN = 0, ENCODING_PLAIN_DICTIONARY = 2, ENCODING_RLE = 3, ENCODING_BIT_PACKED = 4,
    ENCODING_DELTA_BINARY_PACKED = 5, ENCODING_DELTA_LENGTH_BYTE_ARRAY = 6, ENCODING_DELTA_BYTE_ARRAY = 7,
    ENCODING_RLE_DICTIONARY = 8, ENCODING_BYTE_STREAM_SPLIT = 9
};

// What a kernel found wrong. 0 is no fault.
enum FaultKind : uint32_t {
    FAULT_NONE = 0,
    FAULT_HEADER_TRUNCATED = 1,    // a page header runs past the chunk
    FAULT_HEADER_MALFORMED = 2,    // not Thrift compact, or a field is missing or out of range
    FAULT_BODY_TRUNCATED = 3,      // a page body runs past the chunk
    FAULT_DECOMPRESS = 4,          // the compressed stream is malformed
    FAULT_DECOMPRESSED_LENGTH = 5, // it does not decompress to the length that the header states
    FAULT_LEVELS = 6,              // levels run past their bytes, or a level is above the maximum
    FAULT_VALUES_TRUNCATED = 7,    // fewer value bytes than the levels ask for
    FAULT_DICTIONARY_INDEX = 8,    // an index is not below the dictionary's length
    FAULT_RLE = 9,                 // a run or bit width is malformed
    FAULT_STRING_LENGTH = 10,      // a string runs past its page
    FAULT_UTF8 = 11,               // not UTF-8
    FAULT_REPETITION_LEVELS = 12,  // as FAULT_LEVELS, of repetition levels; or a chunk that does not start with a row
    FAULT_FIXED_SIZE_LIST = 13,    // a fixed-size list of another size
    FAULT_DELTA = 14,              // a header, block or count of a DELTA_* encoding is malformed
    FAULT_DECIMAL_LENGTH = 15,     // a decimal has more bytes than its Arrow type
    FAULT_CRC = 16,                // a page has another checksum than its header states
};

// The first fault of a batch, by page and then by offset, as one word that kernels lower with atomicMin:
// page index << 36 | min(offset, 2^28 - 1) << 8 | kind. All ones: no fault.
struct FaultSlot { uint64_t word; };

// One column chunk for the header kernel.
struct ChunkDesc {
    uint64_t address;    // of its first byte
    uint64_t bytes;
    uint64_t num_values; // from the footer: headers are read until their data pages hold this many
    uint32_t first_page; // its slots in the table of headers
    uint32_t capacity;
};

// What the header kernel found in a chunk.
struct ChunkResult {
    uint32_t pages;        // pages seen; those beyond the capacity were counted, not stored
    uint32_t fault;        // FaultKind
    uint64_t fault_offset; // from the chunk's first byte
};

// Facts of one page header, as read.
struct PageHeader {
    uint64_t header_offset; // from the chunk's first byte
    uint64_t body_offset;
    uint32_t compressed_bytes;
    uint32_t uncompressed_bytes;
    uint32_t num_values; // nulls included
    uint32_t num_rows;   // V2 only
    uint32_t num_nulls;  // V2 only, and never trusted
    uint32_t def_bytes;  // V2 only
    uint32_t rep_bytes;  // V2 only
    uint32_t crc;
    uint8_t kind;        // PageKind
    uint8_t encoding;    // Encoding
    uint8_t def_encoding;
    uint8_t rep_encoding;
    uint8_t is_compressed; // V2's flag; 1 for V1
    uint8_t has_crc;
    uint8_t _pad[2];
};

// One page as the host has placed it.
struct Page {
    uint64_t source;  // compressed body
    uint64_t body;    // plain body, levels first: where decompression writes, or `source` itself
    uint64_t entries; // dictionary pages of strings: where their StringRefs go
    uint64_t first_row; // of its column in this batch; 0 for shaped columns
    uint64_t levels;    // shaped columns: a byte for each definition level; from the next multiple of 8 bytes on the same
                        // for repetition levels, where the column has any
    uint64_t expanded;  // DELTA_* and BYTE_STREAM_SPLIT: where the plain values or a StringRef a value go; otherwise 0
    uint64_t counts;    // shaped columns: lists + 1 slot counts, by class; then of each list and each struct, and of the column itself, its valid slots
    uint32_t source_bytes;
    uint32_t body_bytes;
    uint32_t num_values;
    uint32_t def_bytes; // V2: level bytes, which lie uncompressed before the values
    uint32_t rep_bytes;
    uint32_t column;     // index of its Column
    uint32_t dictionary; // index of its dictionary page, or PQGPU_NONE
    uint32_t stated_values; // V2: num_values less num_nulls of its header, which the levels may not exceed; else num_values
    uint8_t kind;
    uint8_t encoding;
    uint8_t def_encoding;
    uint8_t rep_encoding;
    uint8_t is_first; // of the data pages of its chunk
    uint8_t _pad[3];
};

// What the level kernel found in a page, for the kernels after it.
struct PageState {
    uint64_t values;      // address of the encoded values; 0: the page has a fault, and no values are decoded
    uint32_t value_bytes;
    uint32_t valid;       // values that are not null; dictionary pages of strings: entries
    uint64_t string_bytes; // DELTA_*: bytes of the page's strings once they are put together
    uint64_t first_slot;   // of the page's slots in the column's array: the rows of a flat column
    uint32_t slots;        // places of values and nulls
    uint32_t rows;         // shaped columns: rows that start in the page, selected or not
};

// Shaped pages of a column that follow each other, as a part of a work list.
struct PageRun {
    uint64_t first_row; // of the first page, among all rows of the batch
    uint32_t first;
    uint32_t end;
};

// One part of those into which the slots of a page are divided, so that many blocks work on a large page.
struct PagePart {
    uint32_t page;
    uint32_t part;
    uint32_t parts;
    uint32_t other; // a page that belongs to it, or PQGPU_NONE
};

// Two pages that belong together.
struct PagePair {
    uint32_t page;
    uint32_t other;
};

// One string or byte array.
struct StringRef {
    uint64_t address;
    uint32_t bytes;
    uint32_t _pad;
};

// How a fixed-width value becomes its Arrow value.
enum Conversion : uint32_t {
    CONVERT_COPY = 0,        // out_width bytes as they are; fewer than in_width: the low ones
    CONVERT_BOOL = 1,        // bits to bits
    CONVERT_SIGN_EXTEND = 2, // little-endian, to a wider integer
    CONVERT_BIG_ENDIAN = 3,  // big-endian two's complement to a little-endian integer
    CONVERT_INT96_NANOS = 4, // Julian day and nanoseconds to units of `factor` nanoseconds (1: nanoseconds) since 1970
    CONVERT_DIVIDE = 5,      // 64-bit integer divided by `factor`, towards zero
    CONVERT_MULTIPLY = 6,    // 32-bit integer times `factor`, to 64 bits
    CONVERT_COPY_TAIL = 7,   // the last out_width bytes as they are
};

// Column.flags.
enum ColumnFlag : uint32_t {
    COLUMN_SELECTED = 2,  // of a scan that selects rows: there are bytes for repetition levels in any case
    COLUMN_FIXED_LEN = 1, // FIXED_LEN_BYTE_ARRAY: the bytes of a PLAIN page are exactly those of its values
};

// A list or a struct on the way from the top to a leaf (a map is a list), for columns whose levels say more than which
// rows are null: "shaped" columns.
//
// Slots are counted by class: class 0 are the rows, class n + 1 the elements of the n-th list from the top. A position
// of the levels is a slot of class n + 1 when its repetition level is at most `rep` and its definition level at least
// `def` of that list; of a fixed-size list that is not there, its position stands for `size` slots, all null.
struct Node {
    uint64_t offsets;  // lists: where slots + 1 offsets go; 0: nowhere, for another column writes them or there are none
    uint64_t validity; // 32-bit words, zeroed; 0: nowhere
    uint64_t slots;    // in the batch
    uint64_t children; // lists: slots of the class below, in the batch
    uint32_t def;      // lists: the level from which on there is an element; structs: from which on the struct is there
    uint32_t rep;      // lists: the level at which elements repeat
    uint32_t size;     // fixed-size lists: elements of each; otherwise 0
    uint32_t offset_width;  // 4 or 8
    uint32_t slot_class;    // in which its slots are counted
    uint32_t is_fixed_size; // lists
};

// One leaf column's output in this batch.
struct Column {
    uint64_t values;    // fixed width: values; strings: views, where they are asked for
    uint64_t validity;  // 32-bit words, zeroed before the level kernel; 0 for required columns
    uint64_t refs;      // byte arrays: a StringRef a row
    uint64_t ranks;     // of a scan that selects rows: for each slot that is not null, which of the page's values it has; else 0
    uint64_t offsets;   // strings: rows + 1 offsets
    uint64_t data;      // strings: bytes
    uint64_t rows;      // slots of a shaped column
    int64_t factor;
    uint32_t first_node; // shaped columns: of its nodes, which are its lists from the top down, then structs that may be null
    uint32_t lists;
    uint32_t structs;
    uint32_t max_def;
    uint32_t max_rep;
    uint32_t conversion; // Conversion
    uint32_t in_width;   // bytes of a PLAIN value
    uint32_t out_width;  // bytes of an Arrow value; strings: bytes of an offset, 4 or 8
    uint32_t flags;      // ColumnFlag
    uint32_t _pad;
};

struct ScatterEntry {
    uint64_t source;
    uint64_t target;
    uint64_t bytes;
};

// Bytes to be zeroed.
struct ZeroEntry {
    uint64_t target;
    uint64_t bytes;
};

// Arguments, one struct a kernel.
struct ScatterArgs { uint64_t entries; uint64_t count; };
struct PageHeadersArgs { uint64_t chunks; uint64_t headers; uint64_t results; uint64_t count; };
struct SnappyArgs { uint64_t pages; uint64_t items; uint64_t fault; uint64_t count; };
struct Lz4Args { uint64_t pages; uint64_t items; uint64_t fault; uint64_t count; };
// A page with a checksum, as stored.
struct CrcItem {
    uint64_t source;
    uint32_t bytes;
    uint32_t crc;
    uint32_t page;
    uint32_t _pad;
};
struct CrcArgs { uint64_t items; uint64_t fault; uint64_t count; };
struct LevelsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
struct NestedLevelsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
// `bases`: slots before a page, by class; for each item, the index of its first is in `first_bases`.
struct ShapeArgs { uint64_t pages; uint64_t columns; uint64_t nodes; uint64_t states; uint64_t items; uint64_t bases; uint64_t first_bases; uint64_t fault; uint64_t count; };
struct PageRowsArgs { uint64_t states; uint64_t items; uint64_t runs; uint64_t count; };
struct StrikeOutArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t selected; uint64_t rows; uint64_t count; };
struct SlotCountsArgs { uint64_t pages; uint64_t columns; uint64_t nodes; uint64_t states; uint64_t items; uint64_t count; };
struct DeltaIntegersArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
struct DeltaLengthsArgs { uint64_t pages; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
// `targets`: for each item, where its strings go.
struct DeltaStringsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t targets; uint64_t fault; uint64_t count; };
struct SplitArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
struct ZeroArgs { uint64_t entries; uint64_t count; };
struct DictionaryStringsArgs { uint64_t pages; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
// `items` of the kernels from here on are PageParts.
struct FixedArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
struct ByteDecimalsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
// `items`: PagePairs, of pages of entries with the pages that they are copies of; `runs`: PageRuns of those of each column.
struct EntriesArgs { uint64_t pages; uint64_t states; uint64_t items; uint64_t runs; uint64_t fault; uint64_t count; };
// `other`: the page of the entries that the keys of a part count in.
struct KeysArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t fault; uint64_t count; };
// `bytes`: zeroed; for each item, those of its strings. The items of a page follow each other.
struct StringRefsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t bytes; uint64_t fault; uint64_t count; };
// `bases`: for each item, where its strings start in the column's data.
struct StringGatherArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t bases; uint64_t count; };
// `items` are dictionary pages (their entries) and PLAIN pages (their gathered bytes).
// `bases`: for each item with a dictionary, where the dictionary's body starts in the column's buffer of such.
struct StringViewsArgs { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t bases; uint64_t count; };
struct Utf8Args { uint64_t pages; uint64_t columns; uint64_t states; uint64_t items; uint64_t bases; uint64_t bytes; uint64_t fault; uint64_t count; };
