#include "worker/trainer/models/gpu_norm.h"

#include "worker/trainer/device/device.h"

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

GpuNumber NumberOf(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf       ? GpuNumber::kHalf
         : x.scalar_type() == at::kBFloat16 ? GpuNumber::kBFloat16
                                            : GpuNumber::kFloat;
}

// Converts the address back to a reference. Forward passes the kernels to backward as a number, because
// autograd cannot store pointers.
const GpuNormKernels& KernelsAt(int64_t address) {
  return *reinterpret_cast<const GpuNormKernels*>(address);  // NOLINT(performance-no-int-to-ptr)
}

bool IsAligned(const at::Tensor& x) { return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0; }

// Returns the tensor, or a copy if its layout does not suit the kernels.
at::Tensor ForKernel(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  return IsAligned(dense) ? dense : dense.clone();
}

struct GpuNormFunction : public torch::autograd::Function<GpuNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::optional<at::Tensor>& residual, const at::Tensor& weight,
                            const at::Tensor& bias, NormState state, bool batch_statistics, bool relu,
                            bool has_gradient, int64_t kernels) {
    const int64_t channels = x.size(1), rows = x.numel() / channels;
    const at::TensorOptions floats = weight.options().requires_grad(false);
    const at::Tensor y = at::empty_like(x);
    const at::Tensor factors = at::empty({2, channels}, floats);  // mean and inverse deviation
    const at::Tensor workspace = at::empty({GpuNormWorkspace(rows, channels)}, floats);
    at::Tensor positive;
    if (relu && has_gradient) positive = at::empty({x.numel() / kGpuNormGroup}, floats.dtype(at::kByte));
    // detach() announces the use of a parameter, as every operation does (gathered_parameters.h).
    const GpuNormForwardArrays arrays{
        .type = NumberOf(x),
        .rows = rows,
        .channels = channels,
        .x = x.data_ptr(),
        .residual = residual.has_value() ? residual->data_ptr() : nullptr,
        .weight = weight.detach().data_ptr<float>(),
        .bias = bias.detach().data_ptr<float>(),
        .running_mean = state.running_mean.data_ptr<float>(),
        .running_var = state.running_var.data_ptr<float>(),
        .batch_statistics = batch_statistics,
        .relu = relu,
        .momentum = static_cast<float>(state.momentum),
        .epsilon = static_cast<float>(state.epsilon),
        .workspace = workspace.data_ptr<float>(),
        .y = y.data_ptr(),
        .mean = factors.data_ptr<float>(),
        .inverse = factors.data_ptr<float>() + channels,
        .positive = positive.defined() ? positive.data_ptr<uint8_t>() : nullptr,
    };
    KernelsAt(kernels).forward(arrays, CurrentStream(x.device()));
    context->save_for_backward({x, positive, weight, factors});
    context->saved_data["batch_statistics"] = batch_statistics;
    context->saved_data["residual"] = residual.has_value();
    context->saved_data["kernels"] = kernels;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &positive = saved[1], &weight = saved[2], &factors = saved[3];
    const int64_t channels = x.size(1), rows = x.numel() / channels;
    const at::Tensor dy = ForKernel(gradients[0]);
    const at::Tensor workspace = at::empty({GpuNormWorkspace(rows, channels)}, factors.options());
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor dweight = at::empty({channels}, factors.options()), dbias = at::empty_like(dweight);
    // Without rectification, the gradient of the residual is that of the output.
    const bool residual = context->saved_data["residual"].toBool();
    at::Tensor dz;
    if (residual) dz = positive.defined() ? at::empty_like(x) : dy;
    const GpuNormBackwardArrays arrays{
        .type = NumberOf(x),
        .rows = rows,
        .channels = channels,
        .x = x.data_ptr(),
        .dy = dy.data_ptr(),
        .positive = positive.defined() ? positive.data_ptr<uint8_t>() : nullptr,
        .weight = weight.detach().data_ptr<float>(),
        .mean = factors.data_ptr<float>(),
        .inverse = factors.data_ptr<float>() + channels,
        .batch_statistics = context->saved_data["batch_statistics"].toBool(),
        .workspace = workspace.data_ptr<float>(),
        .dx = dx.data_ptr(),
        .dz = residual && positive.defined() ? dz.data_ptr() : nullptr,
        .dweight = dweight.data_ptr<float>(),
        .dbias = dbias.data_ptr<float>(),
    };
    KernelsAt(context->saved_data["kernels"].toInt()).backward(arrays, CurrentStream(x.device()));
    const at::Tensor none;
    return {dx, dz, dweight, dbias, none, none, none, none, none};
  }
};

}  // namespace

bool GpuNormSupports(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && x.dim() == 4 &&
         x.size(1) % kGpuNormGroup == 0 && x.numel() > 0 && x.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         IsAligned(x);
}

at::Tensor GpuNorm(const at::Tensor& x, const at::Tensor& residual, const NormState& state,
                   bool batch_statistics, bool relu, const GpuNormKernels& kernels) {
  TORCH_CHECK(state.weight.scalar_type() == at::kFloat && state.running_mean.scalar_type() == at::kFloat,
              "the parameters and statistics of a normalization must be float32");
  c10::optional<at::Tensor> other;
  if (residual.defined()) {
    TORCH_CHECK(residual.sizes() == x.sizes(), "the residual has another shape than the normalized tensor");
    other = ForKernel(residual.to(x.scalar_type()));
  }
  return GpuNormFunction::apply(x, other, state.weight, state.bias, state, batch_statistics, relu,
                                at::GradMode::is_enabled(), reinterpret_cast<int64_t>(&kernels));
}

}  // namespace scalelab::trainer
