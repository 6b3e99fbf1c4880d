#include "worker/trainer/optim/sgd.h"

#include <ATen/Parallel.h>

#include "worker/trainer/compat.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/kernels/sgd_kernel.h"

namespace scalelab::trainer {
namespace {

// Returns whether the three tensors are dense, float, on one device and have the same strides.
bool AreAlike(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& velocity) {
  const auto fits = [&](const at::Tensor& t) {
    return t.device() == parameter.device() && t.scalar_type() == at::kFloat &&
           t.strides() == parameter.strides();
  };
  return parameter.is_non_overlapping_and_dense() && fits(parameter) && fits(gradient) && fits(velocity);
}

Sgd::Kernel KernelOf(at::Device device) {
#ifdef SCALELAB_CUDA
  if (ExecutesKernels(device)) return GpuSgd;
#endif
  (void)device;
  return nullptr;
}

}  // namespace

bool Sgd::HasFused() { return SCALELAB_TORCH_AT_LEAST(2, 4); }

Sgd::Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay, bool decay_norm,
         bool fused, Kernel kernel)
    : momentum_(momentum), fused_(fused && !parameters.empty()), groups_(2) {
  TORCH_CHECK(!fused || kernel != nullptr || HasFused(),
              "a fused optimizer step needs LibTorch 2.4 or later");
  if (fused_) {
    device_rate_ = at::zeros({}, parameters.front().options().requires_grad(false).dtype(at::kFloat));
    kernel_ = kernel != nullptr ? kernel : KernelOf(device_rate_.device());
  }
  groups_[0].weight_decay = weight_decay;
  int position = 0;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    Group& group = groups_[parameter.dim() < 2 && !decay_norm ? 1 : 0];
    group.parameters.push_back(parameter);
    group.velocities.push_back(at::zeros_like(parameter));
    group.copies.emplace_back();
    group.positions.push_back(position++);
  }
}

void Sgd::SetRate(double rate) {
  rate_ = rate;
  if (fused_) device_rate_.fill_(rate);
}

void Sgd::WriteCopies(const std::function<at::Tensor(const at::Tensor&)>& copy_of) {
  TORCH_CHECK(fused_, "only a fused optimizer step writes copies");
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor copy = group.copies[i] = copy_of(group.parameters[i]);
      if (!copy.defined()) continue;
      TORCH_CHECK(copy.strides() == group.parameters[i].strides(),
                  "a copy has other strides than its parameter");
      copies_ = copy.scalar_type() == at::kHalf ? GpuNumber::kHalf : GpuNumber::kBFloat16;
    }
  }
}

NamedTensors Sgd::State() const {
  NamedTensors state;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.velocities.size(); ++i)
      state.emplace_back("velocity/" + std::to_string(group.positions[i]), group.velocities[i]);
  }
  return state;
}

void Sgd::StepOne(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& velocity,
                  double weight_decay) const {
  constexpr int64_t kLeast = 32'768;  // with fewer elements, starting a thread takes longer than their update
  float* const p = parameter.data_ptr<float>();
  float* const v = velocity.data_ptr<float>();
  const float* const g = gradient.data_ptr<float>();
  at::parallel_for(0, parameter.numel(), kLeast, [&](int64_t first, int64_t last) {
    SgdStep(p + first, v + first, g + first, last - first, static_cast<float>(momentum_),
            static_cast<float>(weight_decay), static_cast<float>(rate_));
  });
}

bool Sgd::KernelSupports(const at::Tensor& parameter, const at::Tensor& velocity) const {
  return kernel_ != nullptr && parameter.device() == device_rate_.device() &&
         AreAlike(parameter, parameter.grad(), velocity);
}

void Sgd::StepByKernel(const at::Tensor& left_out) const {
  std::vector<GpuSgdTensor> tensors;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor &parameter = group.parameters[i], &velocity = group.velocities[i];
      if (!parameter.grad().defined() || !KernelSupports(parameter, velocity)) continue;
      tensors.push_back({.p = parameter.data_ptr<float>(),
                         .v = velocity.data_ptr<float>(),
                         .g = parameter.grad().data_ptr<float>(),
                         .copy = group.copies[i].defined() ? group.copies[i].data_ptr() : nullptr,
                         .n = parameter.numel(),
                         .decay = static_cast<float>(group.weight_decay)});
    }
  }
  const GpuSgdOptions options{.momentum = static_cast<float>(momentum_),
                              .rate = device_rate_.data_ptr<float>(),
                              .left_out = left_out.defined() ? left_out.data_ptr<float>() : nullptr,
                              .copies = copies_};
  kernel_(tensors.data(), std::ssize(tensors), options, CurrentStream(device_rate_.device()));
}

void Sgd::Apply(const at::Tensor& left_out) {
  TORCH_CHECK(fused_ || !left_out.defined(), "only a fused optimizer step can be skipped on the device");
  const at::NoGradGuard no_grad;
  if (kernel_ != nullptr) StepByKernel(left_out);
  for (const Group& group : groups_) {
    std::vector<at::Tensor> parameters, gradients, velocities, copies;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor& gradient = group.parameters[i].grad();
      if (!gradient.defined()) continue;
      if (KernelSupports(group.parameters[i], group.velocities[i])) continue;
      if (!fused_ && gradient.is_cpu() && AreAlike(group.parameters[i], gradient, group.velocities[i])) {
        StepOne(group.parameters[i], gradient, group.velocities[i], group.weight_decay);
        continue;
      }
      parameters.push_back(group.parameters[i]);
      velocities.push_back(group.velocities[i]);
      gradients.push_back(gradient);
      copies.push_back(group.copies[i]);
    }
    if (parameters.empty()) continue;
#if SCALELAB_TORCH_AT_LEAST(2, 4)
    if (fused_) {
      std::optional<at::Tensor> found;
      if (left_out.defined()) found = left_out;
      // If velocities are passed, _fused_sgd_ requires a momentum above 0.
      if (momentum_ == 0) velocities.clear();
      at::_fused_sgd_(parameters, gradients, velocities, group.weight_decay, momentum_, device_rate_,
                      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false,
                      /*grad_scale=*/{}, found);
      for (size_t i = 0; i < copies.size(); ++i) {
        if (copies[i].defined()) copies[i].copy_(parameters[i]);
      }
      continue;
    }
#endif
    TORCH_CHECK(!fused_, "this LibTorch has no fused step for a parameter that the kernel does not support");
    if (group.weight_decay != 0) at::_foreach_add_(gradients, parameters, group.weight_decay);
    at::_foreach_mul_(velocities, momentum_);
    at::_foreach_add_(velocities, gradients, 1);
    at::_foreach_add_(parameters, velocities, -rate_);
  }
}

}  // namespace scalelab::trainer
