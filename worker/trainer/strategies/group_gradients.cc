#include "worker/trainer/strategies/group_gradients.h"

#include <algorithm>
#include <limits>

namespace scalelab::trainer {

GroupGradients::GroupGradients(std::vector<at::Tensor> parameters, Communicator* groups)
    : parameters_(std::move(parameters)),
      groups_(groups),
      place_of_(parameters_.size()),
      counted_(parameters_.size(), true) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  for (const std::vector<int>& indices :
       AssignBuckets(parameters_, ReverseOrder(parameters_.size()), {kNoLimit, kNoLimit})) {
    for (size_t k = 0; k < indices.size(); ++k) place_of_[indices[k]] = {buckets_.size(), k};
    buckets_.push_back(MakeBucket(parameters_, indices, groups == nullptr ? 0 : std::ssize(indices)));
  }
  used_.resize(parameters_.size());
  hooks_.Attach(parameters_, [this](int parameter) { Ready(parameter); });
}

void GroupGradients::BeginStep() {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  used_.assign(parameters_.size(), false);
  group_squares_.Take();
  mean_squares_.Take();
}

void GroupGradients::Ready(int parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  // Copy the first gradient. Autograd adds later gradients in place.
  if (const at::Tensor& view = ViewOf(parameter); gradient.data_ptr() != view.data_ptr()) {
    view.copy_(gradient);
    gradient = view;
  }
  used_[parameter] = true;
}

at::Tensor GroupGradients::Gradient(size_t i) {
  at::Tensor& view = ViewOf(i);
  if (!used_[i]) {
    used_[i] = true;
    parameters_[i].mutable_grad() = view.zero_();
  }
  return view;
}

int64_t GroupGradients::Average() {
  if (groups_ == nullptr) return 0;
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const GradientBucket& bucket : buckets_) {
    std::vector<float> flags;
    for (size_t k = 0; k < bucket.parameters.size(); ++k) {
      flags.push_back(used_[bucket.parameters[k]] ? 1 : 0);
      if (flags.back() == 0) at::Tensor(bucket.views[k]).zero_();
    }
    at::Tensor(bucket.tail).copy_(at::tensor(flags));
    AddTo(group_squares_, bucket);
    groups_->AllReduce(bucket.flat, ReduceOp::kAverage);
    AddTo(mean_squares_, bucket);
    bytes += static_cast<int64_t>(bucket.flat.nbytes());
    // If this rank has used all parameters, no rank drops any. Skipping the bucket avoids waiting
    // for the GPU.
    if (std::ranges::all_of(flags, [](float flag) { return flag > 0; })) continue;
    const at::Tensor shares = bucket.tail.to(at::kCPU, at::kFloat);
    for (size_t k = 0; k < flags.size(); ++k) {
      if (static_cast<const float*>(shares.data_ptr())[k] > 0)
        parameters_[bucket.parameters[k]].mutable_grad() = bucket.views[k];
    }
  }
  return bytes;
}

// Adds neighbouring parameters together, because each addition is an operation on the device. The padding
// between them is zero.
void GroupGradients::AddTo(GradientSquares& squares, const GradientBucket& bucket) const {
  const auto begin_of = [&](size_t k) { return bucket.views[k].storage_offset(); };
  for (size_t first = 0; first < bucket.parameters.size(); ++first) {
    if (!counted_[bucket.parameters[first]]) continue;
    size_t last = first;
    while (last + 1 < bucket.parameters.size() && counted_[bucket.parameters[last + 1]]) ++last;
    const int64_t begin = begin_of(first), end = begin_of(last) + bucket.views[last].numel();
    squares.Add(bucket.flat.narrow(0, begin, end - begin));
    first = last;
  }
}

at::Tensor GroupGradients::Squares(Communicator& all, at::Device device) {
  if (groups_ == nullptr) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor squares = at::zeros({2}, at::TensorOptions(device).dtype(at::kDouble));
  const at::Tensor of_group = group_squares_.Take(), of_mean = mean_squares_.Take();
  if (of_group.defined()) squares[0].copy_(of_group);
  if (of_mean.defined()) squares[1].copy_(of_mean);
  all.AllReduce(squares, ReduceOp::kSum);
  return squares.div_(groups_->size());  // each group has added both numbers
}

int64_t GroupGradients::bytes() const {
  int64_t bytes = 0;
  for (const GradientBucket& bucket : buckets_) bytes += static_cast<int64_t>(bucket.flat.nbytes());
  return bytes;
}

}  // namespace scalelab::trainer
