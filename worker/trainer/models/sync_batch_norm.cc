#include <vector>

#include "worker/trainer/models/batch_norm.h"

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the sums over all dimensions but channels, in double precision.
at::Tensor ChannelSum(const at::Tensor& x) { return x.sum({0, 2, 3}, /*keepdim=*/false, at::kDouble); }

at::Tensor PerChannel(const at::Tensor& v) { return v.view({1, -1, 1, 1}); }

struct SyncFunction : public torch::autograd::Function<SyncFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, at::Tensor running_mean, at::Tensor running_var,
                            double momentum, double epsilon, int64_t communicator_address) {
    auto& communicator = *reinterpret_cast<Communicator*>(communicator_address);
    const at::Tensor x = input.to(at::kFloat);
    const int64_t channels = x.size(1);
    const double own = static_cast<double>(x.numel() / channels);
    const at::Tensor x64 = x.to(at::kDouble);
    at::Tensor sums = at::cat({ChannelSum(x64), ChannelSum(x64 * x64), at::full({1}, own, x64.options())});
    communicator.AllReduce(sums, ReduceOp::kSum);
    const at::Tensor count = sums[2 * channels];  // a tensor, because reading the number would wait for a GPU
    const at::Tensor mean = sums.narrow(0, 0, channels) / count;
    const at::Tensor variance = (sums.narrow(0, channels, channels) / count - mean * mean).clamp_min(0);
    const at::Tensor inverse = (variance + epsilon).rsqrt();

    running_mean.mul_(1 - momentum).add_(mean.to(at::kFloat), momentum);
    const at::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
    running_var.mul_(1 - momentum).add_(unbiased.to(at::kFloat), momentum);

    const at::Tensor mean32 = mean.to(at::kFloat), inverse32 = inverse.to(at::kFloat);
    context->save_for_backward({x, weight, mean32, inverse32, count});
    context->saved_data["communicator"] = communicator_address;
    const at::Tensor scale = inverse32 * weight;
    return x.sub(PerChannel(mean32)).mul_(PerChannel(scale)).add_(PerChannel(bias));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& communicator = *reinterpret_cast<Communicator*>(context->saved_data["communicator"].toInt());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3],
                     &count = saved[4];
    const int64_t channels = x.size(1);
    const at::Tensor dy = gradients[0].to(at::kFloat);
    const at::Tensor normal = x.sub(PerChannel(mean)).mul_(PerChannel(inverse));
    // The rank's own sums are the gradients of bias and weight; the strategy averages them over ranks like
    // all gradients. The sums over all ranks correct the input's gradient, because every sample contributes
    // to the statistics.
    const at::Tensor own = at::cat({ChannelSum(dy), ChannelSum(dy * normal)});
    at::Tensor all = own.clone();
    communicator.AllReduce(all, ReduceOp::kSum);
    const at::Tensor mean_dy = (all.narrow(0, 0, channels) / count).to(at::kFloat);
    const at::Tensor mean_dy_normal = (all.narrow(0, channels, channels) / count).to(at::kFloat);
    const at::Tensor dx = dy.sub(PerChannel(mean_dy))
                              .sub_(normal * PerChannel(mean_dy_normal))
                              .mul_(PerChannel(inverse * weight));
    const at::Tensor none;
    return {dx,
            own.narrow(0, channels, channels).to(at::kFloat),
            own.narrow(0, 0, channels).to(at::kFloat),
            none,
            none,
            none,
            none,
            none};
  }
};

// The same on a GPU, with the operations of torch.nn.SyncBatchNorm: they compute in single precision, from the means and
// deviations of the ranks instead of sums of squares, and keep the type and layout of the input.
struct SyncOnGpuFunction : public torch::autograd::Function<SyncOnGpuFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, at::Tensor running_mean, at::Tensor running_var,
                            double momentum, double epsilon, int64_t communicator_address) {
    auto& communicator = *reinterpret_cast<Communicator*>(communicator_address);
    const at::Tensor x = input.contiguous(input.suggest_memory_format());
    const int64_t channels = x.size(1);
    const auto [own_mean, own_inverse] = at::batch_norm_stats(x, epsilon);
    const double own_count = static_cast<double>(x.numel() / channels);
    const at::Tensor own = at::cat({own_mean, own_inverse, at::full({1}, own_count, own_mean.options())});
    const at::Tensor all = at::empty({communicator.size(), own.numel()}, own.options());
    communicator.AllGatherInto(all, own);
    const at::Tensor counts = all.select(1, 2 * channels).contiguous();
    const bool single = communicator.size() == 1 && own_count == 1;  // as in BatchNorm::Apply
    const auto [mean, inverse] = at::batch_norm_gather_stats_with_counts(
        x, all.narrow(1, 0, channels).contiguous(), all.narrow(1, channels, channels).contiguous(),
        running_mean, single ? running_var.clone() : running_var, momentum, epsilon, counts);
    if (single) running_var.mul_(1 - momentum);
    context->save_for_backward({x, weight, mean, inverse, counts.to(at::kInt)});
    context->saved_data["communicator"] = communicator_address;
    return at::batch_norm_elemt(x, weight, bias, mean, inverse, epsilon);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& communicator = *reinterpret_cast<Communicator*>(context->saved_data["communicator"].toInt());
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3],
                     &counts = saved[4];
    const at::Tensor dy = gradients[0].contiguous(x.suggest_memory_format());
    // As on a CPU, the sums over all ranks correct the input's gradient only.
    const auto [sum_dy, sum_dy_x, dweight, dbias] =
        at::batch_norm_backward_reduce(dy, x, mean, inverse, weight, true, true, true);
    const at::Tensor sums = at::stack({sum_dy, sum_dy_x});
    communicator.AllReduce(sums, ReduceOp::kSum);
    const at::Tensor dx =
        at::batch_norm_backward_elemt(dy, x, mean, inverse, weight, sums[0], sums[1], counts);
    const at::Tensor none;
    return {dx, dweight, dbias, none, none, none, none, none};
  }
};

}  // namespace

at::Tensor SyncBatchNorm(const at::Tensor& x, const NormState& state, Communicator& communicator) {
  const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(&communicator));
  if (x.is_cuda()) {
    return SyncOnGpuFunction::apply(x, state.weight, state.bias, state.running_mean, state.running_var,
                                    state.momentum, state.epsilon, address);
  }
  return SyncFunction::apply(x, state.weight, state.bias, state.running_mean, state.running_var,
                             state.momentum, state.epsilon, address);
}

}  // namespace scalelab::trainer
