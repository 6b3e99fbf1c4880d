// One pass over memory for a step of SGD: Torch's operators make five, and on a CPU memory is what they wait
// for.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

// v = momentum * v + (g + decay * p); p = p - rate * v, for n elements. Each operation is rounded, so that
// ranks on different processors keep the same bits.
void SgdStep(float* p, float* v, const float* g, int64_t n, float momentum, float decay, float rate);

}  // namespace scalelab::trainer
