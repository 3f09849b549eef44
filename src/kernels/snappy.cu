#include "prelude.cuh"

KERNEL(pqgpu_snappy, SnappyArgs, 64) {
    (void)args;
}
