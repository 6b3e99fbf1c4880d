// The gradients of ranks that have the same part of a model in different groups.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"

namespace scalelab::trainer {

// One block of memory for the gradients of each element type. With several groups, it also has a number for each parameter that is
// set if the parameter got a gradient, so that the average shows which parameters got none in any group.
class GroupGradients {
 public:
  // `groups` are the ranks that have the same parameters; null: there is one group. It must outlive the object.
  GroupGradients(std::vector<at::Tensor> parameters, Communicator* groups);

  // Discards the gradients of the step before.
  void BeginStep();
  // Returns the gradient of parameter i after the last backward; zeros if it got none, which then counts as a gradient.
  at::Tensor Gradient(size_t i);
  // Averages the gradients over the groups. A parameter that got no gradient in any group has no grad() afterwards. Returns the
  // number of bytes that were communicated. Collective.
  int64_t Average();

  int64_t bytes() const;

 private:
  void Ready(int parameter);  // called by autograd
  at::Tensor& ViewOf(size_t i) { return buckets_[place_of_[i].first].views[place_of_[i].second]; }

  std::vector<at::Tensor> parameters_;
  Communicator* const groups_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_of_;  // by parameter: bucket, and position in it
  std::vector<bool> used_;                           // by parameter: it got a gradient in this step
  GradientHooks hooks_;                              // last member: uses all of the above
};

}  // namespace scalelab::trainer
