// Where a data page keeps its levels and its values.
#pragma once
#include "rle.cuh"

struct Sections {
    uint64_t rep;          // address of the repetition levels' runs
    uint64_t def;          // address of the definition levels' runs
    uint64_t value_offset; // of the values, from the page's first byte
    uint32_t rep_bytes;
    uint32_t def_bytes;
    bool fits; // whether the levels end inside the page
};

// Bits of a level, for levels up to `max`.
DEVICE uint32_t level_width(uint32_t max) { return 32 - __clz(max); }

// The section of a V1 page that starts `offset` bytes into it. Returns its end; `fits` becomes false when it runs past
// the page.
DEVICE uint64_t v1_section(const Page& page, uint64_t offset, uint32_t max, uint32_t encoding, uint64_t& address,
                           uint32_t& bytes, bool& fits) {
    address = page.body + offset;
    bytes = 0;
    if (max == 0 || !fits) return offset;
    uint64_t length;
    if (encoding == ENCODING_BIT_PACKED) {
        length = ((uint64_t)page.num_values * level_width(max) + 7) / 8;
    } else {
        fits = page.body_bytes - offset >= 4;
        if (!fits) return offset;
        length = load_by_bytes(address, 4);
        address += 4;
        offset += 4;
    }
    fits = length <= page.body_bytes - offset;
    if (!fits) return offset;
    bytes = (uint32_t)length;
    return offset + length;
}

DEVICE Sections sections(const Page& page, const Column& column) {
    Sections found;
    found.fits = true;
    if (page.kind == PAGE_DATA_V2) {
        found.rep = page.body;
        found.rep_bytes = page.rep_bytes;
        found.def = page.body + page.rep_bytes;
        found.def_bytes = page.def_bytes;
        found.value_offset = (uint64_t)page.rep_bytes + page.def_bytes;
        found.fits = found.value_offset <= page.body_bytes;
        return found;
    }
    uint64_t end = v1_section(page, 0, column.max_rep, page.rep_encoding, found.rep, found.rep_bytes, found.fits);
    end = v1_section(page, end, column.max_def, page.def_encoding, found.def, found.def_bytes, found.fits);
    found.value_offset = end;
    return found;
}
