#include "prelude.cuh"

KERNEL(pqgpu_levels, LevelsArgs, 128) {
    (void)args;
}
