// RLE / bit-packed hybrid runs, shared by level and dictionary-index decoding.
#pragma once
#include "prelude.cuh"
