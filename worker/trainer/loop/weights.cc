#include "worker/trainer/loop/weights.h"

#include <algorithm>
#include <string>

#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

using Stored = Strategy::Stored;

constexpr std::string_view kVelocity = "optimizer/velocity/", kScaler = "scaler/", kStrides = "strides/",
                           kPlace = "place/";

// A parameter that is trained, with the names of its tensors.
struct Trained {
  // name: that of the parameter, without "parameter/". velocity: that of the velocity, with "optimizer/velocity/".
  std::string name, velocity;
  at::Tensor whole;  // has the shape and strides of the parameter
  std::string parameter() const { return "parameter/" + name; }
};

std::vector<Trained> TrainedOf(const Model& model, const Strategy& strategy) {
  std::vector<Trained> trained;
  for (const auto& named : model.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    trained.push_back({named.key(), std::string(kVelocity) + std::to_string(trained.size()),
                       strategy.Whole(named.value())});
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
std::string PlaceName(const std::string& name, int64_t first) {
  return ShardName(std::string(kPlace) + name, first);
}

// The strides of a shard that is a contiguous range of the parameter's memory.
constexpr int64_t kRange[] = {1};
bool IsRange(at::IntArrayRef strides) { return strides == at::IntArrayRef(kRange); }

// Returns a view of `flat`, the memory of the whole tensor, at the elements of a shard. Returns an undefined
// tensor if the shard does not fit into it.
at::Tensor ViewIn(const at::Tensor& flat, int64_t first, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes.size() != strides.size()) return {};
  int64_t last = first;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return last < flat.numel() ? flat.as_strided(sizes, strides, first) : at::Tensor();
}

// Returns the tensor `whole`, which is the parameter `of` or its velocity, assembled from the shards of all
// ranks. `strides` are those of the whole tensor when it was divided.
at::Tensor Join(const std::vector<NamedTensors>& of_ranks, const Trained& of, const std::string& whole,
                at::IntArrayRef strides) {
  const at::IntArrayRef sizes = of.whole.sizes();
  at::Tensor flat;
  int64_t found = 0;
  for (const NamedTensors& of_rank : of_ranks) {
    for (const auto& [place, shard] : Below(of_rank, whole + "@")) {
      if (!flat.defined()) flat = at::empty({c10::multiply_integers(sizes)}, shard.options());
      const int64_t first = std::stoll(place);
      const auto stored =
          std::ranges::find(of_rank, PlaceName(of.name, first), &NamedTensors::value_type::first);
      const at::Tensor into =
          ViewIn(flat, first, shard.sizes(),
                 stored == of_rank.end() ? at::IntArrayRef(kRange) : NumbersIn(stored->second));
      if (!into.defined()) continue;
      into.copy_(shard);
      found += shard.numel();
    }
  }
  if (!flat.defined() || found != flat.numel() || strides.size() != sizes.size()) {
    throw TrainerError("the shards of tensor \"" + whole +
                       "\" of the checkpoint do not fit the model of this run: remove the checkpoints of "
                       "the run");
  }
  return flat.as_strided(sizes, strides);
}

// Returns the parameters and velocities, averaged over the ranks, and the loss scale of rank 0.
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

std::vector<Weights::Part> Weights::PartsOfShards() const {
  const std::vector<Shard> shards = strategy_.Shards();
  const std::vector<Trained> trained = TrainedOf(model_, strategy_);
  const NamedTensors velocities = Below(step_.State(), kVelocity);
  std::vector<Part> parts;
  for (const Shard& shard : shards) {
    const Trained& of = trained[shard.parameter];
    parts.push_back({of.name, of.parameter(), shard, shard.value});
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    const Trained& of = trained[shards[i].parameter];
    const at::Tensor& velocity = Find(velocities, std::to_string(i));
    const at::Tensor& like = shards[i].value;
    parts.push_back({of.name, of.velocity, shards[i],
                     velocity.as_strided(like.sizes(), like.strides(), velocity.storage_offset())});
  }
  return parts;
}

NamedTensors Weights::Shared() const {
  NamedTensors tensors = {{"stored", at::full({1}, static_cast<int64_t>(strategy_.stored()), at::kLong)}};
  if (strategy_.stored() == Stored::kOnce) AppendBelow(tensors, "", All());
  if (!InShards()) return tensors;
  for (const Trained& trained : TrainedOf(model_, strategy_))
    tensors.emplace_back(std::string(kStrides) + trained.name, LongsOf(trained.whole.strides()));
  AppendBelow(tensors, kScaler, Below(step_.State(), kScaler));
  return tensors;
}

NamedTensors Weights::Mine() const {
  if (!InShards()) return strategy_.stored() == Stored::kOnce ? NamedTensors() : All();
  NamedTensors tensors;
  for (const auto& [name, whole, shard, tensor] : PartsOfShards()) {
    if (!shard.stored) continue;
    tensors.emplace_back(ShardName(whole, shard.first), tensor);
    if (whole.starts_with(kVelocity) || IsRange(shard.strides)) continue;
    tensors.emplace_back(PlaceName(name, shard.first), LongsOf(shard.strides));
  }
  return tensors;
}

// Returns the whole tensors of a checkpoint that another number of ranks wrote, with the names that All uses.
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
  for (const Trained& trained : TrainedOf(model_, strategy_)) {
    const at::Tensor strides = Find(checkpoint.shared, std::string(kStrides) + trained.name);
    for (const std::string& name : {trained.parameter(), trained.velocity})
      whole.emplace_back(name, Join(checkpoint.of_ranks, trained, name, NumbersIn(strides)));
  }
  AppendBelow(whole, kScaler, Below(checkpoint.shared, kScaler));
  return whole;
}

// Copies the elements of the whole tensors that belong to this rank's shards.
void Weights::Divide(const NamedTensors& whole) const {
  const at::NoGradGuard no_grad;
  const std::vector<Part> parts = PartsOfShards();
  const std::vector<Trained> trained = TrainedOf(model_, strategy_);
  for (const Part& part : parts) {
    const at::Tensor& saved = Find(whole, part.whole);
    const at::Tensor& like = trained[part.shard.parameter].whole;
    if (saved.sizes() != like.sizes()) {
      throw TrainerError("tensor \"" + part.whole +
                         "\" of the checkpoint has another shape than that of this run");
    }
    const at::Tensor ordered = at::empty_strided(saved.sizes(), like.strides(), saved.options()).copy_(saved);
    part.tensor.copy_(ordered.as_strided(part.tensor.sizes(), part.shard.strides, part.shard.first));
  }
}

void Weights::AssignScale(const NamedTensors& from) const {
  Assign(Below(from, kScaler), Below(step_.State(), kScaler));
}

void Weights::RestoreShards(const Checkpoint& checkpoint) const {
  const NamedTensors& mine = checkpoint.of_ranks.at(0);
  const std::vector<Part> parts = PartsOfShards();
  for (const Trained& trained : TrainedOf(model_, strategy_)) {
    if (NumbersIn(Find(checkpoint.shared, std::string(kStrides) + trained.name)) == trained.whole.strides())
      continue;
    throw TrainerError(
        "parameter \"" + trained.name +
        "\" had another order in memory when the checkpoint was written: restore memory_format");
  }
  NamedTensors stored;
  std::vector<at::Tensor> values, velocities;
  for (const Part& part : parts) {
    (part.whole.starts_with(kVelocity) ? velocities : values).push_back(part.tensor);
    if (!part.shard.stored) continue;
    const std::string name = ShardName(part.whole, part.shard.first);
    const auto saved = std::ranges::find(mine, name, &NamedTensors::value_type::first);
    if (saved == mine.end() || saved->second.sizes() != part.tensor.sizes()) {
      throw TrainerError(
          "the ranks that wrote the checkpoint had other parts of the model: restore pipeline_stages, "
          "tensor_ranks or server_ranks, or remove the checkpoints of the run");
    }
    stored.emplace_back(name, part.tensor);
  }
  Assign(mine, stored);
  strategy_.ShareShards(values);
  strategy_.ShareShards(velocities);
}

void Weights::Restore(const Checkpoint& checkpoint, bool same) const {
  if (!same) {
    const NamedTensors whole = PutTogether(checkpoint);
    if (!InShards()) return Assign(whole, All());
    Divide(whole);
    return AssignScale(whole);
  }
  if (!InShards()) {
    const bool once = strategy_.stored() == Stored::kOnce;
    return Assign(once ? checkpoint.shared : checkpoint.of_ranks.at(0), All());
  }
  RestoreShards(checkpoint);
  AssignScale(checkpoint.shared);
}

}  // namespace scalelab::trainer
