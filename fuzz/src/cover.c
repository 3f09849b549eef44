// Edges of the kernels as counters that libFuzzer looks at beside its own.
#include <stddef.h>
#include <stdint.h>

// A power of two, so that a mask finds the slot; larger ones cost time after every run.
#define COUNTERS 8192

__attribute__((section("__libfuzzer_extra_counters"), used)) static uint8_t counters[COUNTERS];

void __wrap___sanitizer_cov_trace_pc(void) {
    // From a fixed place in the program, since where it is loaded changes from run to run.
    const uintptr_t from = (uintptr_t)__builtin_return_address(0) - (uintptr_t)&__wrap___sanitizer_cov_trace_pc;
    uint8_t* counter = &counters[(from ^ from >> 13) & (COUNTERS - 1)];
    if (*counter < 255) ++*counter;
}
