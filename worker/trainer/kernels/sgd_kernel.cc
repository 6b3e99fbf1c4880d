#include "worker/trainer/kernels/sgd_kernel.h"

namespace scalelab::trainer {

void SgdStep(float* __restrict__ p, float* __restrict__ v, const float* __restrict__ g, int64_t n,
             float momentum, float decay, float rate) {
  for (int64_t i = 0; i < n; ++i) {
    v[i] = momentum * v[i] + (g[i] + decay * p[i]);
    p[i] -= rate * v[i];
  }
}

}  // namespace scalelab::trainer
