// Replaces CUDA's header of this name in tests; see cuda_runtime.h.
#pragma once

#include <c10/util/BFloat16.h>

#include "tests/fakes/cuda/cuda_runtime.h"

using __nv_bfloat16 = c10::BFloat16;
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {pair.x, pair.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {a, b}; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
