// The arithmetic of gpu_norm.h for one element or one channel. The kernels and the reference on a CPU call these functions.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// Sums over some rows of one channel. In the forward pass, `count` is the number of rows, `first` their mean,
// and `second` the sum of the squared distances from the mean. In the backward pass, `count` is unused,
// `first` is the sum of dz, and `second` the sum of dz * (x - mean).
struct GpuNormSums {
  float count = 0, first = 0, second = 0;
};

// Sums of the differences from `shift`. If the shift is one of the `count` values that are added, the sum of the squares is at most
// `count` times the sum of the squared distances from the mean. So for few values hardly any precision is lost.
struct GpuNormShiftedSums {
  float shift = 0, sum = 0, squares = 0;

  SCALELAB_HOST_DEVICE void Add(float x) {
    const float difference = x - shift;
    sum += difference;
    squares += difference * difference;
  }
  SCALELAB_HOST_DEVICE GpuNormSums Moments(float count) const {
    const float offset = count > 0 ? sum / count : 0;
    const float second = squares - sum * offset;
    return {count, shift + offset, second < 0 ? 0 : second};  // this order of operands keeps NaN
  }
};

// Returns the moments (count, mean, squared distances) of the rows of `a` and `b` together.
struct GpuNormMergeMoments {
  SCALELAB_HOST_DEVICE GpuNormSums operator()(const GpuNormSums& a, const GpuNormSums& b) const {
    const float count = a.count + b.count, share = count > 0 ? b.count / count : 0,
                difference = b.first - a.first;
    return {count, a.first + difference * share,
            a.second + b.second + difference * difference * a.count * share};
  }
};

// Returns the sums of the backward pass over the rows of `a` and `b` together.
struct GpuNormAddSums {
  SCALELAB_HOST_DEVICE GpuNormSums operator()(const GpuNormSums& a, const GpuNormSums& b) const {
    return {0, a.first + b.first, a.second + b.second};
  }
};

SCALELAB_HOST_DEVICE inline float GpuNormInverse(float variance, float epsilon) {
  return 1.0f / sqrtf(variance + epsilon);
}

// Returns the inverse standard deviation of all rows. Updates the running mean and variance with the mean and
// the unbiased variance of these rows.
SCALELAB_HOST_DEVICE inline float GpuNormFinishMoments(const GpuNormSums& all, float momentum, float epsilon,
                                                       float& running_mean, float& running_var) {
  const float variance = all.second / all.count;
  const float unbiased = all.count > 1 ? all.second / (all.count - 1) : variance;
  running_mean += momentum * (all.first - running_mean);
  running_var += momentum * (unbiased - running_var);
  return GpuNormInverse(variance, epsilon);
}

// Returns the output before rectification.
SCALELAB_HOST_DEVICE inline float GpuNormApply(float x, float mean, float scale, float bias, float residual) {
  return (x - mean) * scale + bias + residual;
}

// Both functions treat NaN as torch.relu and its gradient do: NaN stays NaN and counts as positive.
SCALELAB_HOST_DEVICE inline float GpuNormRectify(float z) { return z < 0 ? 0 : z; }
SCALELAB_HOST_DEVICE inline bool GpuNormIsPositive(float z) { return !(z <= 0); }

SCALELAB_HOST_DEVICE inline void GpuNormAddGradient(GpuNormSums& sums, float dz, float x, float mean) {
  sums.first += dz;
  sums.second += dz * (x - mean);
}

// dx = a * dz + b * (x - mean) + c
struct GpuNormSlopes {
  float a = 0, b = 0, c = 0;
};

// With `batch_statistics`, b and c are not 0, because every x also changes the mean and the variance that
// normalize the other values.
SCALELAB_HOST_DEVICE inline GpuNormSlopes GpuNormFinishGradient(const GpuNormSums& all, int64_t rows,
                                                                float weight, float inverse,
                                                                bool batch_statistics) {
  const float scale = weight * inverse;
  if (!batch_statistics) return {scale, 0, 0};
  const float count = static_cast<float>(rows);
  return {scale, -scale * inverse * inverse * (all.second / count), -scale * (all.first / count)};
}

SCALELAB_HOST_DEVICE inline float GpuNormInputGradient(const GpuNormSlopes& slopes, float dz, float x,
                                                       float mean) {
  return slopes.a * dz + slopes.b * (x - mean) + slopes.c;
}

}  // namespace scalelab::trainer
