// Inner loops of batch normalization fused with the addition and rectification that follow it. Torch's
// operators read and write memory twice as often, and memory limits their speed on a CPU.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

// All blocks have `rows` x `channels` elements, channels last; `channels` is a multiple of kNormLanes. The
// other arrays have one element for each channel.
inline constexpr int64_t kNormLanes = 16;

// Adds sums of (x - shift) and (x - shift)^2 over the rows.
void NormSums(const float* x, int64_t rows, int64_t channels, const float* shift, double* sum,
              double* sum_squares);

// Computes y = (x - mean) * scale + bias (+ residual); if `relu`, negative results become 0. `residual`
// may be null.
void NormApply(const float* x, const float* residual, int64_t rows, int64_t channels, const float* mean,
               const float* scale, const float* bias, bool relu, float* y);

// Adds the sums of dz and dz * (x - mean), where dz = dy, or 0 if y is not positive. A null `y`
// means no rectification.
void NormBackwardSums(const float* x, const float* y, const float* dy, int64_t rows, int64_t channels,
                      const float* mean, double* sum_dz, double* sum_dz_x);

// Computes dx = a * dz + b * (x - mean) + c; stores dz too unless `dz` is null.
void NormBackwardApply(const float* x, const float* y, const float* dy, int64_t rows, int64_t channels,
                       const float* mean, const float* a, const float* b, const float* c, float* dx,
                       float* dz);

}  // namespace scalelab::trainer
