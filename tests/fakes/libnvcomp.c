// Stands in for libnvcomp on the emulated device, whose memory is the process's own. -DMAJOR=4, 5 or 6 gives it the
// functions of that version as the headers declare them. It decompresses GZIP of stored blocks alone and refuses what else
// there is, so that its users can be seen to deal with both. It checks what its users must see to.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint32_t version, cudart_version; } Properties;
typedef struct { int backend; char rest[60]; } Options;
typedef struct { size_t input, output, temp; } Alignments;

enum { SUCCESS = 0, INVALID = 10, CANNOT = 12, SMALL = 15, ALIGNMENT = 17 };
enum { INPUT = 4, OUTPUT = 32, TEMPORARY = 64 };

int pqgpu_fake_nvcomp;

int nvcompGetProperties(Properties* properties) {
    properties->version = MAJOR * 1000 + 203;
    properties->cudart_version = 12000;
    return SUCCESS;
}

static int gzip(const uint8_t* in, size_t bytes, uint8_t* out, size_t room, size_t* written) {
    size_t at = 10, done = 0;
    if (bytes < 18 || in[0] != 0x1f || in[1] != 0x8b || in[3] != 0) return CANNOT;
    for (;;) {
        if (at + 5 > bytes || (in[at] >> 1 & 3) != 0) return CANNOT;
        const int last = in[at] & 1;
        const size_t length = in[at + 1] | in[at + 2] << 8;
        if (at + 5 + length > bytes) return CANNOT;
        if (length > room - done) return SMALL;
        memcpy(out + done, in + at + 5, length);
        done += length;
        at += 5 + length;
        if (last) break;
    }
    *written = done; // of the first member, whatever follows
    return SUCCESS;
}

static size_t scratch(size_t count, size_t largest) { return count * 16 + largest / 8; }

static int run(int is_gzip, const void* const* in, const size_t* in_bytes, const size_t* room, size_t* written,
               size_t count, void* temp, size_t temp_bytes, void* const* out, int* statuses) {
    size_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = room[i] > largest ? room[i] : largest;
    if (temp_bytes < scratch(count, largest)) return INVALID;
    if (MAJOR > 4 && (uintptr_t)temp % TEMPORARY != 0) return ALIGNMENT;
    memset(temp, 0x55, temp_bytes);
    for (size_t i = 0; i < count; i++) {
        const size_t input = MAJOR > 4 ? INPUT : 8, output = MAJOR > 4 ? OUTPUT : 8;
        if ((uintptr_t)in[i] % input != 0 || (uintptr_t)out[i] % output != 0) return ALIGNMENT;
        if (is_gzip) statuses[i] = gzip(in[i], in_bytes[i], out[i], room[i], &written[i]);
        // ZSTD: says nothing, as a version that gives up does.
    }
    return SUCCESS;
}

#define BATCH const void* const* in, const size_t* in_bytes, const size_t* room, size_t* written, size_t count, \
              void* temp, size_t temp_bytes, void* const* out
#define RUN(is_gzip) return run(is_gzip, in, in_bytes, room, written, count, temp, temp_bytes, out, statuses)

#if MAJOR == 4
#define CODEC(name, is_gzip)                                                                                       \
    int nvcompBatched##name##DecompressGetTempSizeEx(size_t count, size_t largest, size_t* bytes, size_t total) { \
        (void)total;                                                                                               \
        *bytes = scratch(count, largest);                                                                          \
        return SUCCESS;                                                                                            \
    }                                                                                                              \
    int nvcompBatched##name##DecompressAsync(BATCH, int* statuses, void* stream) { (void)stream; RUN(is_gzip); }
#else
static int zero(Options options) {
    for (size_t i = 0; i < sizeof options; i++)
        if (((char*)&options)[i] != 0) return 0;
    return 1;
}
#if MAJOR == 5
#define SIZE(name) nvcompBatched##name##DecompressGetTempSizeAsync(size_t count, size_t largest, Options options, \
                                                                   size_t* bytes, size_t total)
#else
#define SIZE(name) nvcompBatched##name##DecompressGetTempSize(size_t count, size_t largest, Options options, \
                                                              size_t* bytes, size_t total, void* stream)
#endif
#define CODEC(name, is_gzip)                                                                                          \
    int SIZE(name) {                                                                                                  \
        if (!zero(options) || total < largest) return INVALID;                                                       \
        *bytes = scratch(count, largest);                                                                             \
        return SUCCESS;                                                                                               \
    }                                                                                                                 \
    int nvcompBatched##name##DecompressGetRequiredAlignments(Options options, Alignments* found) {                    \
        *found = (Alignments){INPUT, OUTPUT, TEMPORARY};                                                              \
        return zero(options) ? SUCCESS : INVALID;                                                                     \
    }                                                                                                                 \
    int nvcompBatched##name##DecompressAsync(BATCH, Options options, int* statuses, void* stream) {                   \
        (void)stream;                                                                                                 \
        if (!zero(options)) return INVALID;                                                                           \
        RUN(is_gzip);                                                                                                 \
    }
#endif

CODEC(Gzip, 1)
CODEC(Zstd, 0)
