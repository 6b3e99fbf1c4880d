#include "tests/fakes/host_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <functional>
#include <vector>

#include "worker/trainer/kernels/gpu_norm_math.h"

namespace scalelab::trainer {
namespace {

template <typename Body>
void WithNumber(GpuNumber type, const Body& body) {
  switch (type) {
    case GpuNumber::kFloat:
      return body(float{});
    case GpuNumber::kHalf:
      return body(c10::Half{});
    case GpuNumber::kBFloat16:
      return body(c10::BFloat16{});
  }
}

// Merges element i with element i + half for every i below half. Repeats this with the first half until one
// element is left.
template <typename Merge>
GpuNormSums MergeAll(std::vector<GpuNormSums> sums) {
  for (size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] = Merge()(sums[i], sums[i + half]);
  }
  return sums[0];
}

// Returns the sums of a channel over all rows. of_line(first, last, lines) returns those of every `lines`-th row.
template <typename Merge>
GpuNormSums SumRows(int64_t rows, int64_t channels,
                    const std::function<GpuNormSums(int64_t, int64_t, int)>& of_line) {
  const GpuNormGrid grid = MakeGpuNormGrid(rows, channels);
  std::vector<GpuNormSums> all(32);
  for (int part = 0; part < grid.parts; ++part) {
    const int64_t first = grid.FirstRow(rows, part), last = grid.FirstRow(rows, part + 1);
    std::vector<GpuNormSums> lines;
    for (int line = 0; line < grid.lines; ++line) lines.push_back(of_line(first + line, last, grid.lines));
    GpuNormSums sums = MergeAll<Merge>(std::move(lines));
    sums.count = static_cast<float>(last - first);
    all[part % 32] = Merge()(all[part % 32], sums);
  }
  return MergeAll<Merge>(std::move(all));
}

template <typename T>
void Forward(const GpuNormForwardArrays& arrays) {
  const auto* x = static_cast<const T*>(arrays.x);
  const auto* residual = static_cast<const T*>(arrays.residual);
  const int64_t channels = arrays.channels;
  for (int64_t c = 0; c < channels; ++c) {
    const auto of_line = [&](int64_t first, int64_t last, int lines) {
      GpuNormShiftedSums sums;
      float count = 0;
      if (first < last) sums.shift = x[first * channels + c];
      for (int64_t row = first; row < last; row += lines, ++count) sums.Add(x[row * channels + c]);
      return sums.Moments(count);
    };
    float &mean = arrays.running_mean[c], &variance = arrays.running_var[c];
    if (arrays.batch_statistics) {
      const GpuNormSums all = SumRows<GpuNormMergeMoments>(arrays.rows, channels, of_line);
      arrays.inverse[c] = GpuNormFinishMoments(all, arrays.momentum, arrays.epsilon, mean, variance);
      arrays.mean[c] = all.first;
    } else {
      arrays.inverse[c] = GpuNormInverse(variance, arrays.epsilon);
      arrays.mean[c] = mean;
    }
  }
  for (int64_t i = 0; i < arrays.rows * channels; ++i) {
    const int64_t c = i % channels;
    const float z = GpuNormApply(x[i], arrays.mean[c], arrays.weight[c] * arrays.inverse[c], arrays.bias[c],
                                 residual == nullptr ? 0 : static_cast<float>(residual[i]));
    static_cast<T*>(arrays.y)[i] = static_cast<T>(arrays.relu ? GpuNormRectify(z) : z);
    if (arrays.positive == nullptr) continue;
    uint8_t& byte = arrays.positive[i / 8];
    if (i % 8 == 0) byte = 0;
    byte = static_cast<uint8_t>(byte | (GpuNormIsPositive(z) ? 1 : 0) << i % 8);
  }
}

template <typename T>
void Backward(const GpuNormBackwardArrays& arrays) {
  const auto* x = static_cast<const T*>(arrays.x);
  const auto* dy = static_cast<const T*>(arrays.dy);
  const int64_t channels = arrays.channels;
  const auto dz = [&](int64_t i) {
    const bool passes = arrays.positive == nullptr || (arrays.positive[i / 8] >> i % 8 & 1) != 0;
    return passes ? static_cast<float>(dy[i]) : 0;
  };
  for (int64_t c = 0; c < channels; ++c) {
    const float mean = arrays.mean[c], inverse = arrays.inverse[c];
    const auto of_line = [&](int64_t first, int64_t last, int lines) {
      GpuNormSums sums;
      for (int64_t row = first; row < last; row += lines) {
        GpuNormAddGradient(sums, dz(row * channels + c), x[row * channels + c], mean);
      }
      return sums;
    };
    const GpuNormSums all = SumRows<GpuNormAddSums>(arrays.rows, channels, of_line);
    arrays.dbias[c] = all.first;
    arrays.dweight[c] = all.second * inverse;
    const GpuNormSlopes slopes =
        GpuNormFinishGradient(all, arrays.rows, arrays.weight[c], inverse, arrays.batch_statistics);
    for (int64_t i = c; i < arrays.rows * channels; i += channels) {
      static_cast<T*>(arrays.dx)[i] = static_cast<T>(GpuNormInputGradient(slopes, dz(i), x[i], mean));
      if (arrays.dz != nullptr) static_cast<T*>(arrays.dz)[i] = static_cast<T>(dz(i));
    }
  }
}

}  // namespace

void HostNormForward(const GpuNormForwardArrays& arrays, GpuStream) {
  WithNumber(arrays.type, [&](auto zero) { Forward<decltype(zero)>(arrays); });
}

void HostNormBackward(const GpuNormBackwardArrays& arrays, GpuStream) {
  WithNumber(arrays.type, [&](auto zero) { Backward<decltype(zero)>(arrays); });
}

void HostSgd(const GpuSgdTensor* tensors, int64_t count, const GpuSgdOptions& options, GpuStream) {
  if (options.left_out != nullptr && *options.left_out == 1) return;
  for (int64_t t = 0; t < count; ++t) {
    const GpuSgdTensor& tensor = tensors[t];
    for (int64_t i = 0; i < tensor.n; ++i) {
      float unused = 0;
      float& v = options.momentum == 0 ? unused : tensor.v[i];
      GpuSgdElement(tensor.p[i], v, tensor.g[i], options.momentum, tensor.decay, *options.rate);
      if (tensor.copy == nullptr) continue;
      WithNumber(options.copies, [&](auto zero) {
        using T = decltype(zero);
        static_cast<T*>(tensor.copy)[i] = static_cast<T>(tensor.p[i]);
      });
    }
  }
}

void HostImages(const GpuImageArrays& arrays, GpuStream) {
  const int side = arrays.side;
  const int64_t plane = int64_t{side} * side;
  for (int64_t i = 0; i < arrays.count * plane * 3; ++i) {
    const int64_t image = i / (plane * 3), c = i / plane % 3, pixel = i % plane;
    const GpuCrop crop = arrays.crops == nullptr ? GpuCrop{} : arrays.crops[image];
    const int64_t source =
        GpuSourcePixel(crop, side, static_cast<int>(pixel / side), static_cast<int>(pixel % side));
    const uint8_t* const bytes = arrays.bytes + image * plane * 3;
    const float value =
        source < 0 ? 0
                   : GpuNormalizedByte(bytes[arrays.interleaved ? source * 3 + c : c * plane + source],
                                       arrays.mean[c], arrays.deviation[c]);
    const int64_t to = image * plane * 3 + (arrays.channels_last ? pixel * 3 + c : c * plane + pixel);
    WithNumber(arrays.type, [&](auto zero) {
      using T = decltype(zero);
      static_cast<T*>(arrays.out)[to] = static_cast<T>(value);
    });
  }
}

}  // namespace scalelab::trainer
