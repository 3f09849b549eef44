#pragma once
#include "prelude.cuh"
