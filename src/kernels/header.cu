#include "prelude.cuh"

KERNEL(pqgpu_page_headers, PageHeadersArgs, 32) {
    (void)args;
}
