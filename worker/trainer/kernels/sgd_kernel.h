// A step of SGD in one pass over memory. Torch's operators make five passes, and memory limits their speed
// on a CPU.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

// Computes v = momentum * v + (g + decay * p); p = p - rate * v for n elements. Each operation is rounded
// separately, so that ranks on different processors get the same bits.
void SgdStep(float* p, float* v, const float* g, int64_t n, float momentum, float decay, float rate);

}  // namespace scalelab::trainer
