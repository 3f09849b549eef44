// Thrift compact page headers, a warp a chunk.
//
// Headers are a chain: where one lies is known when the one before it has been read. So what costs is the time from one
// load to the next, and the bytes come through a window in shared memory that the warp fills at once. All lanes run the
// same parser on the same bytes; whichever step runs off the window refills it, with every lane there to help.
//
// What is accepted is what arrow-rs accepts (parquet_thrift.rs): fields in any order, the type nibble of a known field
// not looked at, 32-bit integers cut to 32 bits, unknown fields skipped to a depth of 64.
#include "prelude.cuh"

static constexpr unsigned WINDOW = 1024;          // a header without statistics has 20 to 60 bytes
static constexpr unsigned MAX_DEPTH = 64;         // as in arrow-rs
static constexpr unsigned MAX_VARINT = 10;        // bytes of a 64-bit varint
static constexpr uint32_t MAX_SIZE = 0x7fffffffu; // Thrift sizes are signed

// Thrift compact types.
enum : unsigned {
    T_STOP = 0, T_TRUE = 1, T_FALSE = 2, T_BYTE = 3, T_I16 = 4, T_I32 = 5, T_I64 = 6, T_DOUBLE = 7, T_BINARY = 8,
    T_LIST = 9, T_SET = 10, T_MAP = 11, T_STRUCT = 12, T_UUID = 13
};

// A position in a chunk; offsets count from its first byte. After a fault it stands at the end, where every byte reads
// as 0: that ends varints and structs, and so every loop.
struct Reader {
    uint8_t* window;       // in shared memory
    uint64_t begin;        // address of the chunk's first byte
    uint64_t end;          // and of the byte after its last
    uint64_t at;           // address of the next byte
    uint64_t window_begin; // address of the window's first byte, a multiple of 16
    uint64_t fault_at;
    uint32_t fault;
};

DEVICE void fail(Reader& reader, uint32_t fault) {
    if (reader.fault != FAULT_NONE) return;
    reader.fault = fault;
    reader.fault_at = reader.at;
    reader.at = reader.end;
}

// Moves the window to the next byte. Reads nothing outside the chunk.
DEVICE void refill(Reader& reader) {
    const uint64_t window = reader.at & ~15ull;
    __syncwarp(); // some lanes may still read the old bytes
    for (unsigned slot = lane() * 16; slot < WINDOW; slot += 32 * 16) {
        const uint64_t source = window + slot;
        if (source >= reader.begin && source < reader.end && reader.end - source >= 16) {
            *(uint4*)(reader.window + slot) = *at<const uint4>(source);
        } else {
            for (unsigned i = 0; i < 16; i++) {
                const uint64_t byte = source + i;
                reader.window[slot + i] = byte >= reader.begin && byte < reader.end ? *at<const uint8_t>(byte) : 0;
            }
        }
    }
    __syncwarp();
    reader.window_begin = window;
}

DEVICE unsigned next_byte(Reader& reader) {
    if (reader.at >= reader.end) {
        fail(reader, FAULT_HEADER_TRUNCATED);
        return 0;
    }
    // The position never moves back, so one comparison tells.
    if (reader.at - reader.window_begin >= WINDOW) refill(reader);
    return reader.window[reader.at++ - reader.window_begin];
}

DEVICE void advance(Reader& reader, uint64_t bytes) {
    if (bytes > reader.end - reader.at) fail(reader, FAULT_HEADER_TRUNCATED);
    else reader.at += bytes;
}

DEVICE uint64_t varint(Reader& reader) {
    uint64_t value = 0;
    for (unsigned i = 0; i < MAX_VARINT; i++) {
        const uint64_t byte = next_byte(reader);
        value |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) return value;
    }
    fail(reader, FAULT_HEADER_MALFORMED);
    return 0;
}

DEVICE int64_t zigzag(Reader& reader) {
    const uint64_t value = varint(reader);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

struct Field {
    unsigned type;
    int id;
};

DEVICE Field next_field(Reader& reader, int last) {
    const unsigned byte = next_byte(reader);
    const unsigned type = byte & 15, delta = byte >> 4;
    if (type == T_STOP) return {T_STOP, 0};
    if (type > T_UUID) {
        fail(reader, FAULT_HEADER_MALFORMED);
        return {T_STOP, 0};
    }
    const int id = delta != 0 ? last + (int)delta : (int)(int16_t)zigzag(reader);
    if (id > 0x7fff) {
        fail(reader, FAULT_HEADER_MALFORMED);
        return {T_STOP, 0};
    }
    return {type, id};
}

// The type of a list's or map's elements.
DEVICE unsigned element_type(Reader& reader, unsigned nibble) {
    if (nibble < T_TRUE || nibble > T_UUID) fail(reader, FAULT_HEADER_MALFORMED);
    return nibble;
}

DEVICE bool is_bool(unsigned type) { return type == T_TRUE || type == T_FALSE; }

// A container whose elements are being skipped: `first` is the next element's type, then the two change places.
// A struct is told by T_STOP.
struct Level {
    uint32_t left;
    uint8_t first, second;
};

DEVICE void skip(Reader& reader, unsigned type) {
    Level levels[MAX_DEPTH];
    unsigned depth = 0;
    for (;;) {
        if (depth == MAX_DEPTH) return fail(reader, FAULT_HEADER_MALFORMED);
        uint64_t count = 0;
        unsigned first = T_STOP, second = T_STOP;
        switch (type) {
        case T_BYTE: advance(reader, 1); break;
        case T_I16: case T_I32: case T_I64: varint(reader); break;
        case T_DOUBLE: advance(reader, 8); break;
        case T_UUID: advance(reader, 16); break;
        case T_BINARY: advance(reader, varint(reader)); break;
        case T_STRUCT: count = 1; break;
        case T_LIST: case T_SET: {
            const unsigned byte = next_byte(reader);
            if (byte == 0) break; // how some writers spell an empty list
            first = second = element_type(reader, byte & 15);
            count = byte >> 4;
            if (count == 15) count = varint(reader);
            if (count > MAX_SIZE) return fail(reader, FAULT_HEADER_MALFORMED);
            break;
        }
        case T_MAP: {
            count = varint(reader);
            if (count > MAX_SIZE) return fail(reader, FAULT_HEADER_MALFORMED);
            if (count == 0) break;
            const unsigned byte = next_byte(reader);
            first = element_type(reader, byte >> 4);
            second = element_type(reader, byte & 15);
            count *= 2;
            break;
        }
        default: break; // booleans: the value is the type
        }
        if (count != 0) {
            if (depth + 1 == MAX_DEPTH && first != T_STOP) return fail(reader, FAULT_HEADER_MALFORMED);
            // arrow-rs takes no bytes for a boolean in a collection: there is nothing to go through.
            if (!(is_bool(first) && is_bool(second))) {
                levels[depth++] = {(uint32_t)count, (uint8_t)first, (uint8_t)second};
            }
        }
        for (;;) {
            if (depth == 0 || reader.fault != FAULT_NONE) return;
            Level& level = levels[depth - 1];
            if (level.first == T_STOP) {
                const Field field = next_field(reader, 0);
                if (field.type != T_STOP) {
                    type = field.type;
                    break;
                }
                depth--;
            } else if (level.left != 0) {
                level.left--;
                type = level.first;
                level.first = level.second;
                level.second = (uint8_t)type;
                break;
            } else {
                depth--;
            }
        }
    }
}

// The structs of a page header, and of each the integer fields 1 to n, the enum Encoding among them, a boolean field,
// and those that must be there, as bits by field id.
enum : unsigned { S_PAGE, S_V1, S_INDEX, S_DICTIONARY, S_V2, STRUCTS };
static constexpr unsigned SLOTS = 8;

// parquet.thrift Encoding without the retired 1; 10 is ALP.
DEVICE bool is_encoding(int32_t value) { return value >= 0 && value <= 10 && value != 1; }

struct Fields {
    int32_t value[STRUCTS][SLOTS]; // by field id
    uint32_t seen[STRUCTS];        // structs and their fields, as bits; 0: the struct is not there
};

// Reads one PageHeader.
DEVICE void read_header(Reader& reader, Fields& fields) {
    for (unsigned i = 0; i < STRUCTS; i++) fields.seen[i] = 0;
    unsigned inside = S_PAGE;
    int last = 0;
    for (;;) {
        const Field field = next_field(reader, last);
        if (reader.fault != FAULT_NONE) return;
        unsigned integers = 0, encodings = 0, boolean = 0, required = 0;
        switch (inside) {
        case S_PAGE: integers = 4; required = 0x0e; break;
        case S_V1: integers = 4; encodings = 0x1c; required = 0x1e; break;
        case S_DICTIONARY: integers = 2; encodings = 0x04; boolean = 3; required = 0x06; break;
        case S_V2: integers = 6; encodings = 0x10; boolean = 7; required = 0x7e; break;
        default: break;
        }
        if (field.type == T_STOP) {
            if ((fields.seen[inside] & required) != required) return fail(reader, FAULT_HEADER_MALFORMED);
            if (inside == S_PAGE) return;
            last = (int)inside + 4; // the struct's own field id
            inside = S_PAGE;
            continue;
        }
        last = field.id;
        if (field.id >= 1 && field.id <= (int)integers) {
            const int32_t value = (int32_t)zigzag(reader);
            fields.value[inside][field.id] = value;
            fields.seen[inside] |= 1u << field.id;
            if ((encodings >> field.id & 1) && !is_encoding(value)) return fail(reader, FAULT_HEADER_MALFORMED);
            if (inside == S_PAGE && field.id == 1 && (uint32_t)value > PAGE_DATA_V2) {
                return fail(reader, FAULT_HEADER_MALFORMED);
            }
        } else if (boolean != 0 && field.id == (int)boolean) {
            if (!is_bool(field.type)) return fail(reader, FAULT_HEADER_MALFORMED);
            fields.value[inside][field.id] = field.type == T_TRUE;
            fields.seen[inside] |= 1u << field.id;
        } else if (inside == S_PAGE && field.id >= 5 && field.id <= 8) {
            inside = (unsigned)field.id - 4; // S_V1 to S_V2 in the order of their field ids
            fields.seen[inside] = 1;
            last = 0;
        } else {
            skip(reader, field.type);
        }
    }
}

// The facts of a data or dictionary page. False: the header lies.
DEVICE bool describe(const Fields& fields, PageHeader& header) {
    const int32_t kind = fields.value[S_PAGE][1];
    const unsigned inside = kind == PAGE_DATA_V1 ? S_V1 : kind == PAGE_DICTIONARY ? S_DICTIONARY : S_V2;
    if (fields.seen[inside] == 0) return false;
    const int32_t* value = fields.value[inside];
    if (value[1] < 0) return false;
    const bool has_crc = fields.seen[S_PAGE] >> 4 & 1;
    header.num_values = (uint32_t)value[1];
    header.num_rows = header.num_nulls = header.def_bytes = header.rep_bytes = 0;
    header.crc = has_crc ? (uint32_t)fields.value[S_PAGE][4] : 0;
    header.has_crc = has_crc;
    header.kind = (uint8_t)kind;
    header.is_compressed = 1;
    header._pad[0] = header._pad[1] = 0;
    if (kind == PAGE_DATA_V2) {
        const int32_t nulls = value[2], rows = value[3], def_bytes = value[5], rep_bytes = value[6];
        if (nulls < 0 || rows < 0 || def_bytes < 0 || rep_bytes < 0 || nulls > value[1]) return false;
        if ((uint64_t)def_bytes + (uint64_t)rep_bytes > header.uncompressed_bytes) return false;
        header.num_nulls = (uint32_t)nulls;
        header.num_rows = (uint32_t)rows;
        header.def_bytes = (uint32_t)def_bytes;
        header.rep_bytes = (uint32_t)rep_bytes;
        header.encoding = (uint8_t)value[4];
        header.def_encoding = header.rep_encoding = ENCODING_RLE;
        if (fields.seen[S_V2] >> 7 & 1) header.is_compressed = (uint8_t)value[7];
    } else {
        header.encoding = (uint8_t)value[2];
        header.def_encoding = kind == PAGE_DATA_V1 ? (uint8_t)value[3] : 0;
        header.rep_encoding = kind == PAGE_DATA_V1 ? (uint8_t)value[4] : 0;
    }
    return true;
}

KERNEL(pqgpu_page_headers, PageHeadersArgs, 32) {
    __shared__ uint4 window[WINDOW / 16];
    if (blockIdx.x >= args.count) return;
    const ChunkDesc chunk = at<const ChunkDesc>(args.chunks)[blockIdx.x];
    PageHeader* table = at<PageHeader>(args.headers) + chunk.first_page;
    Reader reader;
    reader.window = (uint8_t*)window;
    reader.begin = reader.at = chunk.address;
    reader.end = chunk.address + chunk.bytes;
    reader.window_begin = reader.at - WINDOW; // holds nothing yet
    reader.fault = FAULT_NONE;
    reader.fault_at = 0;

    uint32_t pages = 0;
    uint64_t values = 0;
    Fields fields;
    // Index pages are passed over. What lies behind the last value is nobody's business, unless it is a page with more
    // values: then a count is wrong, which the host finds out when it adds them up.
    while (reader.at < reader.end && values <= chunk.num_values) {
        const bool behind = values == chunk.num_values;
        PageHeader header;
        const uint64_t start = reader.at;
        header.header_offset = start - reader.begin;
        read_header(reader, fields);
        if (reader.fault != FAULT_NONE) break;
        const uint64_t body = reader.at;
        const int32_t uncompressed = fields.value[S_PAGE][2], compressed = fields.value[S_PAGE][3];
        header.body_offset = body - reader.begin;
        header.uncompressed_bytes = (uint32_t)uncompressed;
        header.compressed_bytes = (uint32_t)compressed;
        const bool index = fields.value[S_PAGE][1] == PAGE_INDEX;
        reader.at = start; // where a fault of this page is reported
        if (uncompressed < 0 || compressed < 0) fail(reader, FAULT_HEADER_MALFORMED);
        else if ((uint64_t)compressed > reader.end - body) fail(reader, FAULT_BODY_TRUNCATED);
        else if (!index && !describe(fields, header)) fail(reader, FAULT_HEADER_MALFORMED);
        if (reader.fault != FAULT_NONE) break;
        reader.at = body + (uint32_t)compressed;
        if (index || (behind && (header.kind == PAGE_DICTIONARY || header.num_values == 0))) continue;
        if (header.kind != PAGE_DICTIONARY) values += header.num_values;
        if (pages < chunk.capacity && lane() == 0) table[pages] = header;
        pages++;
    }
    if (values == chunk.num_values) reader.fault = FAULT_NONE;
    if (lane() == 0) {
        at<ChunkResult>(args.results)[blockIdx.x] = {
            pages, reader.fault, reader.fault != FAULT_NONE ? reader.fault_at - reader.begin : 0};
    }
}
