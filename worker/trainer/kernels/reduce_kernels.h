// Arithmetic on arrays of numbers for reductions between ranks. The functions are plain loops on the
// calling thread. They are not Torch's operators, which would start another team of OpenMP threads on
// a communication thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>

namespace scalelab::trainer {

// Stores a[i] op b[i] in result[i] for `count` elements. `result` may be `a` or `b`.
using ReduceFunction = void (*)(void* result, const void* a, const void* b, size_t count);

// Both return the function for elements of `type`: float, float16, bfloat16, double or int64. The function
// computes 16-bit types in float.
ReduceFunction SumFunction(c10::ScalarType type);
ReduceFunction MaxFunction(c10::ScalarType type);
// Returns the function that computes the bitwise AND of int64 elements.
ReduceFunction BitAndFunction();

// Divides `count` elements of a floating-point `type` by `divisor`.
void DivideArray(void* data, size_t count, c10::ScalarType type, double divisor);

}  // namespace scalelab::trainer
