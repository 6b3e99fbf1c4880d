#include "worker/trainer/models/fused_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/trainer/device/device.h"
#include "worker/trainer/kernels/norm_kernels.h"
#include "worker/trainer/models/gpu_norm.h"

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Block {
  int64_t rows, channels;
};

Block BlockOf(const at::Tensor& x) { return {x.size(0) * x.size(2) * x.size(3), x.size(1)}; }

const float* Data(const at::Tensor& tensor) { return tensor.defined() ? tensor.data_ptr<float>() : nullptr; }

// Calls body(first row, rows) on all threads of the rank.
template <typename Body>
void ForRows(const Block& block, const Body& body) {
  at::parallel_for(0, block.rows, std::max<int64_t>(1, 32'768 / block.channels),
                   [&](int64_t first, int64_t last) { body(first, last - first); });
}

// Returns two sums for each channel over all rows. Each thread calls body(first row, rows, sums, other sums),
// which adds its rows to the sums of this thread. The sums of the threads are then added in the order of
// rows, so for a given number of threads the result is always the same.
template <typename Body>
std::vector<double> SumRows(const Block& block, const Body& body) {
  const int64_t parts =
      std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), block.rows * block.channels / 32'768));
  std::vector<double> sums(parts * 2 * block.channels);
  at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      const int64_t begin = block.rows * part / parts, end = block.rows * (part + 1) / parts;
      double* own = sums.data() + part * 2 * block.channels;
      body(begin, end - begin, own, own + block.channels);
    }
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t i = 0; i < 2 * block.channels; ++i) sums[i] += sums[part * 2 * block.channels + i];
  }
  sums.resize(2 * block.channels);
  return sums;
}

// Computes the mean and 1 / sqrt(variance + epsilon) of the batch, and updates the running statistics.
void BatchStatistics(const at::Tensor& x, NormState& state, float* mean, float* inverse) {
  const Block block = BlockOf(x);
  // Subtract one of the values from all of them, so that sums of squares do not lose precision.
  const float* shift = Data(x);
  const std::vector<double> sums =
      SumRows(block, [&](int64_t first, int64_t rows, double* sum, double* squares) {
        NormSums(Data(x) + first * block.channels, rows, block.channels, shift, sum, squares);
      });
  const double count = static_cast<double>(block.rows);
  float* running_mean = state.running_mean.data_ptr<float>();
  float* running_var = state.running_var.data_ptr<float>();
  for (int64_t c = 0; c < block.channels; ++c) {
    const double offset = sums[c] / count;
    const double variance = std::max(0.0, sums[block.channels + c] / count - offset * offset);
    const double exact_mean = shift[c] + offset;
    const double unbiased = count > 1 ? variance * count / (count - 1) : variance;
    mean[c] = static_cast<float>(exact_mean);
    inverse[c] = static_cast<float>(1 / std::sqrt(variance + state.epsilon));
    running_mean[c] += static_cast<float>(state.momentum * (exact_mean - running_mean[c]));
    running_var[c] += static_cast<float>(state.momentum * (unbiased - running_var[c]));
  }
}

struct FusedNormFunction : public torch::autograd::Function<FusedNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::optional<at::Tensor>& residual, const at::Tensor& weight,
                            const at::Tensor& bias, NormState state, bool batch_statistics, bool relu) {
    const Block block = BlockOf(x);
    at::Tensor mean = at::empty({block.channels}, weight.options().requires_grad(false));
    at::Tensor inverse = at::empty_like(mean);
    if (batch_statistics) {
      BatchStatistics(x, state, mean.data_ptr<float>(), inverse.data_ptr<float>());
    } else {
      mean.copy_(state.running_mean);
      inverse.copy_((state.running_var + state.epsilon).rsqrt());
    }
    const at::Tensor scale = weight * inverse;
    at::Tensor y = at::empty_like(x);
    const float* other = residual.has_value() ? Data(*residual) : nullptr;
    // Call detach() before reading the memory of a parameter. detach() is an operation, and native/zero3
    // gathers a parameter when an operation uses it (gathered_parameters.h).
    const float* const shift = Data(bias.detach());
    ForRows(block, [&](int64_t first, int64_t rows) {
      const int64_t at = first * block.channels;
      NormApply(Data(x) + at, other == nullptr ? nullptr : other + at, rows, block.channels, Data(mean),
                Data(scale), shift, relu, y.data_ptr<float>() + at);
    });
    context->save_for_backward({x, relu ? y : at::Tensor(), weight, mean, inverse});
    context->saved_data["batch_statistics"] = batch_statistics;
    context->saved_data["residual"] = residual.has_value();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &y = saved[1], &weight = saved[2], &mean = saved[3], &inverse = saved[4];
    const bool batch_statistics = context->saved_data["batch_statistics"].toBool();
    const at::Tensor dy = gradients[0].contiguous(at::MemoryFormat::ChannelsLast);
    const Block block = BlockOf(x);
    const int64_t channels = block.channels;
    const float* rectified = Data(y);
    const auto part = [](const float* data, int64_t at) { return data == nullptr ? nullptr : data + at; };

    const std::vector<double> sums =
        SumRows(block, [&](int64_t first, int64_t rows, double* dz, double* dz_x) {
          const int64_t at = first * channels;
          NormBackwardSums(Data(x) + at, part(rectified, at), Data(dy) + at, rows, channels, Data(mean), dz,
                           dz_x);
        });
    at::Tensor dweight = at::empty_like(weight), dbias = at::empty_like(weight);
    std::vector<float> a(channels), b(channels), c(channels);
    const float* const factors = Data(weight.detach());
    const double count = static_cast<double>(block.rows);
    for (int64_t i = 0; i < channels; ++i) {
      const double inv = Data(inverse)[i], scale = factors[i] * inv;
      dbias.data_ptr<float>()[i] = static_cast<float>(sums[i]);
      dweight.data_ptr<float>()[i] = static_cast<float>(sums[channels + i] * inv);
      a[i] = static_cast<float>(scale);
      // With batch statistics, b and c are not 0, because every x also changes the mean and the variance that
      // normalize the other values.
      b[i] = batch_statistics ? static_cast<float>(-scale * inv * inv * sums[channels + i] / count) : 0;
      c[i] = batch_statistics ? static_cast<float>(-scale * sums[i] / count) : 0;
    }
    at::Tensor dx = at::empty_like(x);
    at::Tensor dz = context->saved_data["residual"].toBool() ? at::empty_like(x) : at::Tensor();
    ForRows(block, [&](int64_t first, int64_t rows) {
      const int64_t at = first * channels;
      NormBackwardApply(Data(x) + at, part(rectified, at), Data(dy) + at, rows, channels, Data(mean),
                        a.data(), b.data(), c.data(), dx.data_ptr<float>() + at,
                        dz.defined() ? dz.data_ptr<float>() + at : nullptr);
    });
    return {dx, dz, dweight, dbias, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool CanFuseNorm(const at::Tensor& x) {
  if (x.is_cuda()) return GpuNormSupports(x) && ExecutesKernels(x.device());
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.dim() == 4 && x.size(1) % kNormLanes == 0 &&
         x.numel() > 0 && x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

at::Tensor FusedNorm(const at::Tensor& x, const at::Tensor& residual, const NormState& state,
                     bool batch_statistics, bool relu) {
#ifdef SCALELAB_CUDA
  if (x.is_cuda()) {
    static constexpr GpuNormKernels kKernels = {GpuNormForward, GpuNormBackward};
    return GpuNorm(x, residual, state, batch_statistics, relu, kKernels);
  }
#endif
  c10::optional<at::Tensor> other;
  if (residual.defined()) other = residual.contiguous(at::MemoryFormat::ChannelsLast);
  return FusedNormFunction::apply(x, other, state.weight, state.bias, state, batch_statistics, relu);
}

}  // namespace scalelab::trainer
