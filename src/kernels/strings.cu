#include "prelude.cuh"

KERNEL(pqgpu_string_refs, StringRefsArgs, 128) {
    (void)args;
}

KERNEL(pqgpu_string_gather, StringGatherArgs, 128) {
    (void)args;
}
