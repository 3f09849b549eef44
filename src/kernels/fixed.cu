#include "prelude.cuh"

KERNEL(pqgpu_fixed, FixedArgs, 128) {
    (void)args;
}
