// Replaces CUDA's header of this name in tests; see cuda_runtime.h.
#pragma once

#include <c10/util/Half.h>

#include "tests/fakes/cuda/cuda_runtime.h"

using __half = c10::Half;
struct __half2 {
  __half x, y;
};
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
inline __half2 __floats2half2_rn(float a, float b) { return {a, b}; }
inline __half __float2half_rn(float value) { return value; }
