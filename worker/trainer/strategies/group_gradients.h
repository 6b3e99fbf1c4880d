// Averages the gradients of ranks that have the same part of a model in different groups.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/gradient_squares.h"

namespace scalelab::trainer {

// The gradients of each element type are in one block of memory. With several groups, the block also has a
// number for each parameter, which is 1 if the parameter has a gradient. The average of these numbers shows
// which parameters have no gradient in any group.
class GroupGradients {
 public:
  // `groups` connects the ranks that have the same parameters. It is null if there is one group, and must
  // outlive this object.
  GroupGradients(std::vector<at::Tensor> parameters, Communicator* groups);

  // Discards the gradients of the previous step.
  void BeginStep();
  // Returns the gradient of parameter i after the last backward. If there is none, returns zeros, which then
  // count as a gradient.
  at::Tensor Gradient(size_t i);
  // Averages the gradients over the groups. A parameter without a gradient in any group has no grad()
  // afterwards. Returns the number of bytes that were communicated. Collective.
  int64_t Average();

  // Excludes parameter i from Squares, because another rank of the group has the same gradient and counts it.
  void CountElsewhere(size_t i) { counted_[i] = false; }
  // Returns two numbers in double precision on `device`: the squared norm of a group's gradient, mean over
  // the groups, and the squared norm of the mean over the groups. They are those of the last Average, for
  // the whole model, and equal on all ranks. Returns an undefined tensor if there is one group. `all`
  // connects the ranks of all groups. Collective.
  at::Tensor Squares(Communicator& all, at::Device device);

  int64_t bytes() const;

 private:
  void Ready(int parameter);  // called by autograd
  void AddTo(GradientSquares& squares, const GradientBucket& bucket) const;
  at::Tensor& ViewOf(size_t i) { return buckets_[place_of_[i].first].views[place_of_[i].second]; }

  std::vector<at::Tensor> parameters_;
  Communicator* const groups_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_of_;  // by parameter: bucket, and position in it
  std::vector<bool> used_;                           // by parameter: whether it has a gradient in this step
  std::vector<bool> counted_;                        // by parameter: whether it is part of the squared norms
  GradientSquares group_squares_, mean_squares_;
  GradientHooks hooks_;  // the last member, because the hooks use all others
};

}  // namespace scalelab::trainer
