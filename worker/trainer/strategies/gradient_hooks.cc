#include "worker/trainer/strategies/gradient_hooks.h"

#include <memory>
#include <unordered_set>

namespace scalelab::trainer {

class GradientHooks::Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(const std::function<void(int)>& ready, int index) : ready_(ready), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ready_(index_);
    return outputs;
  }

 private:
  const std::function<void(int)>& ready_;
  int index_;
};

GradientHooks::~GradientHooks() {
  for (size_t i = 0; i < keys_.size(); ++i) accumulators_[i]->del_post_hook(keys_[i]);
}

void GradientHooks::Attach(const std::vector<at::Tensor>& parameters, std::function<void(int)> ready) {
  ready_ = std::move(ready);
  for (const at::Tensor& parameter : parameters) {
    const int index = static_cast<int>(accumulators_.size());
    accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
    keys_.push_back(accumulators_.back()->add_post_hook(std::make_unique<Hook>(ready_, index)));
  }
}

std::vector<int> GradientHooks::Unreached(const at::Tensor& loss) const {
  std::unordered_set<const torch::autograd::Node*> reached;
  std::vector<const torch::autograd::Node*> open;
  auto visit = [&](const torch::autograd::Node* node) {
    if (node != nullptr && reached.insert(node).second) open.push_back(node);
  };
  visit(loss.grad_fn().get());
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<int> unreached;
  for (size_t i = 0; i < accumulators_.size(); ++i) {
    if (!reached.contains(accumulators_[i].get())) unreached.push_back(static_cast<int>(i));
  }
  return unreached;
}

}  // namespace scalelab::trainer
