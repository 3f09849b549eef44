#include "prelude.cuh"

KERNEL(pqgpu_scatter, ScatterArgs, 128) {
    (void)args;
}
