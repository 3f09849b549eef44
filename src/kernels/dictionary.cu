#include "prelude.cuh"

KERNEL(pqgpu_dictionary_strings, DictionaryStringsArgs, 128) {
    (void)args;
}
