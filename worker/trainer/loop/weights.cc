#include "worker/trainer/loop/weights.h"

#include <algorithm>
#include <string>

#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

using Stored = Strategy::Stored;

constexpr std::string_view kVelocity = "optimizer/velocity/", kScaler = "scaler/", kStrides = "strides/";

// A parameter that is trained, with the names of its tensors.
struct Trained {
  std::string name, velocity;  // without prefix; with prefix
  at::Tensor value;
  std::string parameter() const { return "parameter/" + name; }
};

std::vector<Trained> TrainedOf(const Model& model) {
  std::vector<Trained> trained;
  for (const auto& named : model.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    trained.push_back(
        {named.key(), std::string(kVelocity) + std::to_string(trained.size()), named.value().detach()});
  }
  return trained;
}

at::Tensor LongsOf(at::IntArrayRef from) {
  const at::Tensor numbers = at::empty({std::ssize(from)}, at::kLong);
  std::ranges::copy(from, static_cast<int64_t*>(numbers.data_ptr()));
  return numbers;
}

at::IntArrayRef NumbersIn(const at::Tensor& numbers) {
  return {static_cast<const int64_t*>(numbers.data_ptr()), static_cast<size_t>(numbers.numel())};
}

std::string ShardName(const std::string& whole, int64_t first) { return whole + "@" + std::to_string(first); }

// Returns the tensor `name` of the shards of all ranks. `strides` are those with which they were divided.
at::Tensor Join(const std::vector<NamedTensors>& of_ranks, const std::string& name, at::IntArrayRef sizes,
                at::IntArrayRef strides) {
  const std::string prefix = name + "@";
  at::Tensor flat;
  int64_t found = 0;
  for (const NamedTensors& of_rank : of_ranks) {
    for (const auto& [first, shard] : Below(of_rank, prefix)) {
      if (!flat.defined()) flat = at::empty({c10::multiply_integers(sizes)}, shard.options());
      if (std::stoll(first) + shard.numel() > flat.numel()) continue;
      flat.narrow(0, std::stoll(first), shard.numel()).copy_(shard.view(-1));
      found += shard.numel();
    }
  }
  if (!flat.defined() || found != flat.numel() || strides.size() != sizes.size()) {
    throw TrainerError("the shards of tensor \"" + name +
                       "\" of the checkpoint do not fit the model of this run: remove the checkpoints of "
                       "the run");
  }
  return flat.as_strided(sizes, strides);
}

// Returns the mean of parameters and optimizer over the ranks, and the scale of rank 0.
NamedTensors MeanOf(const std::vector<NamedTensors>& of_ranks) {
  NamedTensors mean;
  for (const auto& [name, tensor] : of_ranks.at(0)) {
    if (name.starts_with(kScaler)) mean.emplace_back(name, tensor);
    if (!name.starts_with("parameter/") && !name.starts_with(kVelocity)) continue;
    at::Tensor sum = tensor.clone();
    for (size_t rank = 1; rank < of_ranks.size(); ++rank) sum.add_(Find(of_ranks[rank], name));
    mean.emplace_back(name, sum.div_(static_cast<double>(of_ranks.size())));
  }
  return mean;
}

}  // namespace

NamedTensors Weights::All() const {
  NamedTensors tensors;
  for (const auto& named : model_.named_parameters())
    tensors.emplace_back("parameter/" + named.key(), named.value());
  AppendBelow(tensors, "", step_.State());
  return tensors;
}

NamedTensors Weights::OfShards() const {
  const std::vector<Trained> trained = TrainedOf(model_);
  const std::vector<Shard> shards = strategy_.Shards();
  const NamedTensors velocities = Below(step_.State(), kVelocity);
  NamedTensors tensors;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Trained& whole = trained[shards[i].parameter];
    tensors.emplace_back(ShardName(whole.parameter(), shards[i].first), shards[i].value.detach().view(-1));
    tensors.emplace_back(ShardName(whole.velocity, shards[i].first),
                         Find(velocities, std::to_string(i)).view(-1));
  }
  return tensors;
}

NamedTensors Weights::Shared() const {
  NamedTensors tensors = {{"stored", at::full({1}, static_cast<int64_t>(strategy_.stored()), at::kLong)}};
  if (strategy_.stored() == Stored::kOnce) AppendBelow(tensors, "", All());
  if (!InShards()) return tensors;
  for (const Trained& whole : TrainedOf(model_))
    tensors.emplace_back(std::string(kStrides) + whole.name, LongsOf(whole.value.strides()));
  AppendBelow(tensors, kScaler, Below(step_.State(), kScaler));
  return tensors;
}

NamedTensors Weights::Mine() const {
  if (InShards()) return OfShards();
  return strategy_.stored() == Stored::kOnce ? NamedTensors() : All();
}

// Returns the weights of a checkpoint of another number of ranks, with the names of All.
NamedTensors Weights::PutTogether(const Checkpoint& checkpoint) const {
  const auto stored = static_cast<Stored>(Find(checkpoint.shared, "stored").item<int64_t>());
  if (stored == Stored::kPerRank || strategy_.stored() == Stored::kPerRank) {
    throw TrainerError(
        "the checkpoint of " + std::to_string(checkpoint.ranks) +
        " ranks with parameters of their own cannot be continued on another number of ranks: use " +
        std::to_string(checkpoint.ranks) + " ranks");
  }
  if (stored == Stored::kOnce) return checkpoint.shared;
  if (stored == Stored::kAveraged) return MeanOf(checkpoint.of_ranks);
  NamedTensors whole;
  for (const Trained& trained : TrainedOf(model_)) {
    const at::Tensor strides = Find(checkpoint.shared, std::string(kStrides) + trained.name);
    for (const std::string& name : {trained.parameter(), trained.velocity}) {
      whole.emplace_back(name, Join(checkpoint.of_ranks, name, trained.value.sizes(), NumbersIn(strides)));
    }
  }
  AppendBelow(whole, kScaler, Below(checkpoint.shared, kScaler));
  return whole;
}

// Sets the shards of this rank.
void Weights::Divide(const NamedTensors& whole) const {
  const at::NoGradGuard no_grad;
  const std::vector<Trained> trained = TrainedOf(model_);
  NamedTensors parts;
  for (const auto& [name, shard] : OfShards()) {
    const std::string of = name.substr(0, name.rfind('@'));
    const auto parameter = std::ranges::find_if(
        trained, [&](const Trained& t) { return t.parameter() == of || t.velocity == of; });
    const at::Tensor& saved = Find(whole, of);
    if (saved.sizes() != parameter->value.sizes()) {
      throw TrainerError("tensor \"" + of + "\" of the checkpoint has another shape than that of this run");
    }
    const at::Tensor ordered =
        at::empty_strided(saved.sizes(), parameter->value.strides(), saved.options()).copy_(saved);
    const int64_t first = std::stoll(name.substr(of.size() + 1));
    parts.emplace_back(name, ordered.as_strided({shard.numel()}, {1}, first));
  }
  Assign(parts, OfShards());
}

void Weights::AssignScale(const NamedTensors& from) const {
  Assign(Below(from, kScaler), Below(step_.State(), kScaler));
}

void Weights::Restore(const Checkpoint& checkpoint, bool same) const {
  if (!same) {
    const NamedTensors whole = PutTogether(checkpoint);
    if (!InShards()) return Assign(whole, All());
    Divide(whole);
    return AssignScale(whole);
  }
  const NamedTensors& mine = checkpoint.of_ranks.at(0);
  if (!InShards()) {
    Assign(strategy_.stored() == Stored::kOnce ? checkpoint.shared : mine, All());
    return;
  }
  for (const Trained& trained : TrainedOf(model_)) {
    if (NumbersIn(Find(checkpoint.shared, std::string(kStrides) + trained.name)) == trained.value.strides())
      continue;
    throw TrainerError(
        "parameter \"" + trained.name +
        "\" had another order in memory when the checkpoint was written: restore memory_format");
  }
  Assign(mine, OfShards());
  AssignScale(checkpoint.shared);
}

}  // namespace scalelab::trainer
