// A CUDA driver for tests: the calls that the crate makes, on host memory. Work is done when it is queued; kernels do
// nothing, except that pqgpu_scatter on a table in the first page faults the way a GPU does: the launch succeeds, and
// each call that waits, and every later one, returns the fault. What the environment sets:
//   FAKE_CUDA_VERSION   as cuDriverGetVersion counts        FAKE_CUDA_INIT      what cuInit returns
//   FAKE_CUDA_DEVICES   number of devices                   FAKE_CUDA_MISALIGN  cuMemAlloc aligns to 256 bytes only
//   FAKE_CUDA_MIB       device memory                       FAKE_CUDA_REFUSE    what cuModuleLoadDataEx returns
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t Code;
typedef uint64_t Address;
enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700
};

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialised;
static uint64_t reserved, used, allocated; // of the pool, of the pool, by cuMemAlloc
static Code fault;
static __thread void *current;
static char context; // its address is the handle

// Every call that needs a context goes through here.
#define CALL                                    \
    do {                                        \
        if (!initialised) return NOT_INITIALIZED; \
        if (!current) return INVALID_CONTEXT;   \
        if (fault) return fault;                \
    } while (0)

Code cuDriverGetVersion(int *version) { *version = (int)setting("FAKE_CUDA_VERSION", 12000); return OK; }
Code cuInit(uint32_t flags) {
    Code code = flags ? INVALID_VALUE : (Code)setting("FAKE_CUDA_INIT", 0);
    initialised = code == OK;
    return code;
}
Code cuGetErrorName(Code code, const char **text) {
    switch (code) {
    case INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; return OK;
    case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case NO_DEVICE: *text = "CUDA_ERROR_NO_DEVICE"; return OK;
    case INVALID_IMAGE: *text = "CUDA_ERROR_INVALID_IMAGE"; return OK;
    case INVALID_CONTEXT: *text = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
    case ILLEGAL_ADDRESS: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
    default: *text = NULL; return INVALID_VALUE;
    }
}
Code cuGetErrorString(Code code, const char **text) {
    *text = code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : NULL;
    return *text ? OK : INVALID_VALUE;
}

static int devices(void) { return (int)setting("FAKE_CUDA_DEVICES", 1); }
static uint64_t memory(void) { return (uint64_t)setting("FAKE_CUDA_MIB", 256) << 20; }
Code cuDeviceGetCount(int *count) { *count = devices(); return initialised ? OK : NOT_INITIALIZED; }
Code cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices() ? OK : INVALID_DEVICE;
}
Code cuDeviceGetName(char *name, int bytes, int device) {
    snprintf(name, (size_t)bytes, "Fake GPU");
    return device < devices() ? OK : INVALID_DEVICE;
}
Code cuDeviceGetUuid_v2(unsigned char *uuid, int device) { memset(uuid, 0x10 + device, 16); return OK; }
Code cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = memory(); return OK; }
Code cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) { // cuda.h: multiprocessors, compute capability, memory pools
    case 16: *value = 4; return OK;
    case 75: *value = 9; return OK;
    case 76: *value = 0; return OK;
    case 115: *value = 1; return OK;
    default: return INVALID_VALUE;
    }
}

Code cuDevicePrimaryCtxRetain(void **handle, int device) { (void)device; *handle = &context; return OK; }
Code cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
Code cuCtxGetCurrent(void **handle) { *handle = current; return initialised ? OK : NOT_INITIALIZED; }
Code cuCtxSetCurrent(void *handle) {
    if (handle && handle != &context) return INVALID_CONTEXT;
    current = handle;
    return OK;
}
Code cuCtxSynchronize(void) { CALL; return OK; }

// An allocation's size lies before it; its start is found again from its alignment.
typedef struct { void *start; uint64_t bytes; } Head;
static Address take(uint64_t bytes, uint64_t alignment, uint64_t offset) {
    char *start = aligned_alloc(alignment, (bytes + 3 * alignment - 1) / alignment * alignment);
    if (!start) return 0;
    char *address = start + alignment + offset;
    ((Head *)address)[-1] = (Head){start, bytes};
    memset(address, 0xa5, bytes); // recycled memory is not zero
    return (Address)address;
}
static uint64_t give(Address address) {
    Head head = ((Head *)address)[-1];
    memset((void *)address, 0x5a, head.bytes);
    free(head.start);
    return head.bytes;
}

Code cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CALL;
    pthread_mutex_lock(&mutex);
    *total = memory();
    *free_bytes = memory() - reserved - allocated;
    pthread_mutex_unlock(&mutex);
    return OK;
}
Code cuMemPoolCreate(void **pool, const void *properties) {
    CALL;
    const uint32_t *words = properties; // type, handle types, location type, location id
    if (words[0] != 1 || words[1] != 0 || words[2] != 1) return INVALID_VALUE;
    *pool = &reserved;
    return OK;
}
Code cuMemPoolDestroy(void *pool) { (void)pool; return OK; }
Code cuMemPoolSetAttribute(void *pool, int attribute, const uint64_t *value) {
    CALL;
    return pool == &reserved && attribute == 4 && *value == UINT64_MAX ? OK : INVALID_VALUE;
}
Code cuMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) {
    CALL;
    if (pool != &reserved || (attribute != 5 && attribute != 7)) return INVALID_VALUE;
    *value = attribute == 5 ? reserved : used;
    return OK;
}
Code cuMemPoolTrimTo(void *pool, size_t keep) {
    CALL;
    if (pool != &reserved) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    reserved = used > keep ? used : keep < reserved ? keep : reserved;
    pthread_mutex_unlock(&mutex);
    return OK;
}
Code cuMemAllocFromPoolAsync(Address *address, size_t bytes, void *pool, void *stream) {
    CALL;
    if (pool != &reserved || !stream || !bytes) return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    uint64_t grown = used + bytes > reserved ? used + bytes : reserved;
    int fits = grown + allocated <= memory();
    if (fits) reserved = grown, used += bytes;
    pthread_mutex_unlock(&mutex);
    if (!fits) return OUT_OF_MEMORY;
    *address = take(bytes, 256, 0);
    return OK;
}
Code cuMemFreeAsync(Address address, void *stream) {
    CALL;
    if (!stream) return INVALID_VALUE;
    uint64_t bytes = give(address);
    pthread_mutex_lock(&mutex);
    used -= bytes;
    pthread_mutex_unlock(&mutex);
    return OK;
}
Code cuMemAlloc_v2(Address *address, size_t bytes) {
    CALL;
    pthread_mutex_lock(&mutex);
    int fits = bytes && allocated + reserved + bytes <= memory();
    if (fits) allocated += bytes;
    pthread_mutex_unlock(&mutex);
    if (!fits) return OUT_OF_MEMORY;
    *address = take(bytes, 4096, setting("FAKE_CUDA_MISALIGN", 0) ? 256 : 0);
    return OK;
}
Code cuMemFree_v2(Address address) {
    CALL;
    uint64_t bytes = give(address);
    pthread_mutex_lock(&mutex);
    allocated -= bytes;
    pthread_mutex_unlock(&mutex);
    return OK;
}
Code cuMemHostAlloc(void **address, size_t bytes, uint32_t flags) {
    CALL;
    if (flags & 4) return INVALID_VALUE; // write-combined
    *address = (void *)take(bytes, 4096, 0);
    return OK;
}
Code cuMemFreeHost(void *address) { CALL; give((Address)address); return OK; }

// Streams and events are small allocations, so that a use after their end shows under a memory checker.
Code cuStreamCreate(void **stream, uint32_t flags) { CALL; *stream = malloc(8); return flags == 1 ? OK : INVALID_VALUE; }
Code cuStreamDestroy_v2(void *stream) { CALL; free(stream); return OK; }
Code cuStreamSynchronize(void *stream) { CALL; return stream ? OK : INVALID_HANDLE; }
Code cuStreamWaitEvent(void *stream, void *event, uint32_t flags) {
    CALL;
    return stream && event && !flags ? OK : INVALID_HANDLE;
}
Code cuEventCreate(void **event, uint32_t flags) { CALL; *event = malloc(8); return flags == 3 ? OK : INVALID_VALUE; }
Code cuEventDestroy_v2(void *event) { CALL; free(event); return OK; }
Code cuEventRecord(void *event, void *stream) { CALL; return event && stream ? OK : INVALID_HANDLE; }
Code cuEventSynchronize(void *event) { CALL; return event ? OK : INVALID_HANDLE; }

Code cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
    CALL;
    memcpy((void *)to, from, bytes);
    return stream ? OK : INVALID_HANDLE;
}
Code cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
    CALL;
    memcpy(to, (void *)from, bytes);
    return stream ? OK : INVALID_HANDLE;
}
Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
    CALL;
    memcpy((void *)to, (void *)from, bytes);
    return stream ? OK : INVALID_HANDLE;
}
Code cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *stream) {
    CALL;
    memset((void *)to, value, bytes);
    return stream ? OK : INVALID_HANDLE;
}

Code cuModuleLoadDataEx(void **module, const void *image, uint32_t count, const int *options, void **values) {
    CALL;
    Code refusal = (Code)setting("FAKE_CUDA_REFUSE", 0);
    if (refusal) {
        for (uint32_t i = 0; i < count; i++)
            if (options[i] == 5) strcpy(values[i], "refused by the fake"); // CU_JIT_ERROR_LOG_BUFFER
        return refusal;
    }
    if (memcmp(image, "\177ELF", 4) != 0) return INVALID_IMAGE;
    *module = malloc(8);
    return OK;
}
Code cuModuleUnload(void *module) { CALL; free(module); return OK; }
Code cuModuleGetFunction(void **function, void *module, const char *name) {
    CALL;
    *function = strdup(name);
    return module ? OK : INVALID_HANDLE;
}
Code cuLaunchKernel(const char *function, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t threads_y,
                    uint32_t threads_z, uint32_t shared, void *stream, void **parameters, void **extra) {
    CALL;
    if (!function || !x || y != 1 || z != 1 || !threads || threads_y != 1 || threads_z != 1 || shared || !stream || extra)
        return INVALID_VALUE;
    Address first;
    memcpy(&first, parameters[0], sizeof first);
    if (strcmp(function, "pqgpu_scatter") == 0 && first <= 4096) fault = ILLEGAL_ADDRESS;
    return OK;
}
