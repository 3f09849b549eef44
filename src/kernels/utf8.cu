#include "prelude.cuh"

KERNEL(pqgpu_utf8, Utf8Args, 256) {
    (void)args;
}
