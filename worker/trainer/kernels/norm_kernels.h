// Inner loops of batch normalisation fused with the addition and rectification behind it. Torch's own
// operators go over memory twice as often, and on a CPU memory is what they wait for.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

// All blocks are `rows` x `channels`, channels last, and channels is a multiple of kNormLanes. Arrays without
// a comment have one element a channel.
inline constexpr int64_t kNormLanes = 16;

// Adds sums of (x - shift) and (x - shift)^2 over the rows.
void NormSums(const float* x, int64_t rows, int64_t channels, const float* shift, double* sum,
              double* sum_squares);

// y = (x - mean) * scale + bias (+ residual), and 0 where that is negative if `relu`. `residual` may be null.
void NormApply(const float* x, const float* residual, int64_t rows, int64_t channels, const float* mean,
               const float* scale, const float* bias, bool relu, float* y);

// With dz = dy, or 0 where y is not positive (y null: no rectification): adds sums of dz and dz * (x - mean).
void NormBackwardSums(const float* x, const float* y, const float* dy, int64_t rows, int64_t channels,
                      const float* mean, double* sum_dz, double* sum_dz_x);

// dx = a * dz + b * (x - mean) + c; also stores dz unless `dz` is null.
void NormBackwardApply(const float* x, const float* y, const float* dy, int64_t rows, int64_t channels,
                       const float* mean, const float* a, const float* b, const float* c, float* dx,
                       float* dz);

}  // namespace scalelab::trainer
