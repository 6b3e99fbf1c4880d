// Trains small models whose parts are on different ranks. Ranks are threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

inline constexpr int64_t kSamples = 31, kGlobalBatch = 12;  // batches of 12, 12 and 7 samples: 21 steps
inline constexpr double kTolerance = 5e-6;                  // relative to a parameter's size

inline bool IsGpt(const std::string& model) { return model.starts_with("gpt"); }

inline std::shared_ptr<Model> NewModel(const std::string& name) {
  at::manual_seed(5);
  return MakeModel(name, IsGpt(name) ? 32 : 10, {});
}

inline Batch Samples(const std::string& model, const std::vector<int64_t>& which) {
  static const auto all = [] {
    at::manual_seed(77);
    return std::pair(at::randn({kSamples, 3, 32, 32}), at::randint(32, {kSamples, 17}, at::kLong));
  }();
  const at::Tensor index = at::tensor(which, at::kLong);
  if (!IsGpt(model)) return {all.first.index_select(0, index), index.remainder(10)};
  const at::Tensor tokens = all.second.index_select(0, index);
  return {tokens.narrow(1, 0, 16).contiguous(), tokens.narrow(1, 1, 16).contiguous()};
}

// Trains and returns the loss of each step that this rank reports. Sets `bytes` to the number of bytes that
// the last step communicated.
template <typename Case>
std::vector<double> Train(const Case& c, TrainingSpec spec, Model& model, Communicator& communicator,
                          std::vector<Metric>* metrics = nullptr, int64_t* bytes = nullptr) {
  spec.global_batch = kGlobalBatch;
  spec.momentum = 0.9;
  spec.weight_decay = 1e-3;
  const auto strategy = MakeStrategy(spec, model, communicator);
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
  const DataSlice slice = strategy->SliceOf(communicator.rank(), communicator.size());
  ShardedSampler sampler(kSamples, kGlobalBatch, slice.index, slice.count, 3,
                         c.keeps_last_batch ? LastBatch::kKeep : LastBatch::kDrop);
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < c.epochs; ++epoch) {
    sampler.StartEpoch(epoch);
    for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      const auto mine = sampler.Slice(s);
      StepRecord record{.global_samples = sampler.GlobalBatch(s), .marks = StepMarks(at::kCPU)};
      Batch batch = Samples(c.model, {mine.begin(), mine.end()});
      if constexpr (requires { c.side; }) {  // smaller images
        if (!IsGpt(c.model))
          batch.images = batch.images.narrow(2, 0, c.side).narrow(3, 0, c.side).contiguous();
      }
      if (batch.images.is_floating_point()) batch.images = batch.images.to(c.type);
      step.Run(batch, 0.02, record);
      losses.push_back(record.numbers[kLoss].item<double>());
      if (bytes != nullptr) *bytes = record.bytes;
    }
    strategy->EndEpoch();
  }
  strategy->SyncBuffers();
  if (metrics != nullptr) {
    step.AppendMemory(*metrics);
    strategy->AppendMetrics(*metrics);
  }
  return losses;
}

// Returns the error of a strategy on rank 0; empty if there is none.
inline std::string Error(const TrainingSpec& spec, int ranks,
                         const std::function<std::shared_ptr<Model>()>& make) {
  std::vector<std::string> errors(ranks);
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < ranks; ++r) models.push_back(make());
  OnRanks(ranks, [&](ThreadCommunicator& rank) {
    try {
      MakeStrategy(spec, *models[rank.rank()], rank);
    } catch (const TrainerError& error) {
      errors[rank.rank()] = error.what();
    }
  });
  return errors[0];
}

}  // namespace scalelab::trainer
