#include "worker/trainer/models/weight_copies.h"

#include <utility>

namespace scalelab::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local const WeightCopies* copies_of_thread = nullptr;

struct CopyFunction : public torch::autograd::Function<CopyFunction> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& /*weight*/, const at::Tensor& copy) {
    return copy.variable_data();  // another tensor with the same memory
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0].to(at::kFloat), at::Tensor()};
  }
};

}  // namespace

WeightCopies::WeightCopies(const std::vector<at::Tensor>& parameters, at::ScalarType type) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.dim() != 4 || parameter.scalar_type() != at::kFloat) continue;
    pairs_[parameter.unsafeGetTensorImpl()] = {parameter, at::empty_like(parameter.detach(), type)};
  }
  Refresh();
}

at::Tensor WeightCopies::Of(const at::Tensor& parameter) const {
  const auto found = pairs_.find(parameter.unsafeGetTensorImpl());
  return found == pairs_.end() ? at::Tensor() : found->second.copy;
}

void WeightCopies::Refresh() {
  for (auto& [parameter, pair] : pairs_) pair.copy.copy_(pair.parameter.detach());
}

WeightCopies::Scope::Scope(const WeightCopies* copies) : before_(std::exchange(copies_of_thread, copies)) {}
WeightCopies::Scope::~Scope() { copies_of_thread = before_; }

at::Tensor ComputeWeight(const at::Tensor& weight) {
  const at::Tensor copy = copies_of_thread == nullptr ? at::Tensor() : copies_of_thread->Of(weight);
  return copy.defined() ? CopyFunction::apply(weight, copy) : weight;
}

}  // namespace scalelab::trainer
