// Tests that ranks with unequal parts of a batch train like one rank with the whole batch.
#include "worker/trainer/loop/train_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/compat.h"
#include "worker/trainer/data/sampler.h"

namespace scalelab::trainer {
namespace {

// Three steps in an epoch, of 12, 12 and 7 samples. In the last one, four ranks have 1, 2, 2 and 2 samples.
constexpr int64_t kSamples = 31, kGlobalBatch = 12, kEpochs = 6;
constexpr double kTolerance = 5e-6;  // only the order of additions differs

// Returns the sum of the losses of this rank's samples for each step.
std::vector<double> Train(const TrainingSpec& spec, SmallModel& model, Communicator& communicator) {
  const auto strategy = MakeStrategy(spec, model, communicator);
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
  ShardedSampler sampler(kSamples, kGlobalBatch, communicator.rank(), communicator.size(), 3,
                         LastBatch::kKeep);
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.StartEpoch(epoch);
    for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      std::vector<int64_t> slice;
      for (int32_t sample : sampler.Slice(s)) slice.push_back(sample);
      const at::Tensor index = at::tensor(slice, at::kLong);
      StepRecord record{.global_samples = sampler.GlobalBatch(s), .marks = StepMarks(at::kCPU)};
      step.Run({Images(0, kSamples).index_select(0, index), index.remainder(4)}, 0.1, record);
      losses.push_back(record.numbers[kLoss].item<double>() * static_cast<double>(slice.size()));
    }
    strategy->EndEpoch();
  }
  return losses;
}

struct Case {
  const char* name;
  const char* engine;
  int ranks;
  int64_t parts;
};

class UnequalParts : public testing::TestWithParam<Case> {};

TEST_P(UnequalParts, TrainLikeOneRank) {
  const Case& c = GetParam();
  const auto models = EqualModels(c.ranks + 1);
  TrainingSpec spec;
  spec.global_batch = kGlobalBatch;
  SoloCommunicator solo;
  const std::vector<double> expected = Train(spec, *models[c.ranks], solo);
  EXPECT_LT(expected[expected.size() - 3], expected[0]) << "it should learn, or the comparison says little";

  spec.engine = c.engine;
  spec.accumulation_steps = c.parts;
  std::vector<std::vector<double>> losses(c.ranks);
  OnRanks(c.ranks,
          [&](ThreadCommunicator& rank) { losses[rank.rank()] = Train(spec, *models[rank.rank()], rank); });
  for (size_t step = 0; step < expected.size(); ++step) {
    double sum = 0;
    for (const auto& of_rank : losses) sum += of_rank.at(step);
    EXPECT_NEAR(sum, expected[step], 1e-4 * expected[step]) << "step " << step;
  }
  double largest = 0;
  for (const auto& named : models[c.ranks]->named_parameters()) {
    const at::Tensor found = models[0]->named_parameters()[named.key()];
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    const double deviation = (found - named.value()).abs().max().item<double>() / size;
    EXPECT_LT(deviation, kTolerance) << named.key();
    largest = std::max(largest, deviation);
    for (int r = 1; r < c.ranks; ++r) {
      EXPECT_TRUE(models[r]->named_parameters()[named.key()].equal(found)) << named.key() << " on rank " << r;
    }
  }
  std::printf("%s: largest deviation %.1e of a parameter's size\n", c.name, largest);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, UnequalParts,
    testing::Values(Case{"ddp_2", "native/ddp", 2, 1}, Case{"ddp_4", "native/ddp", 4, 1},
                    Case{"ddp_4_in_parts", "native/ddp", 4, 3}, Case{"serial_4", "native/serial", 4, 1},
                    Case{"zero1_2", "native/zero1", 2, 1}, Case{"zero1_4", "native/zero1", 4, 1},
                    Case{"zero1_4_in_parts", "native/zero1", 4, 3},
                    Case{"zero2_2_in_parts", "native/zero2", 2, 3}, Case{"zero2_4", "native/zero2", 4, 1},
                    Case{"zero2_4_in_parts", "native/zero2", 4, 3}, Case{"zero3_4", "native/zero3", 4, 1},
                    Case{"zero3_4_in_parts", "native/zero3", 4, 3}, Case{"horovod_2", "native/horovod", 2, 1},
                    Case{"horovod_4", "native/horovod", 4, 1},
                    Case{"horovod_4_in_parts", "native/horovod", 4, 3}),
    [](const auto& info) { return std::string(info.param.name); });

// With amp-fp16, all ranks must skip the steps in which one rank finds a gradient that is not finite.
TEST(LossScaleCommunicator, IsForEnginesWhoseRanksHaveDifferentGradientsOnly) {
  const std::pair<const char*, bool> engines[] = {{"native/ddp", false},     {"native/serial", false},
                                                  {"native/horovod", false}, {"native/none", false},
                                                  {"native/zero1", true},    {"native/zero2", true},
                                                  {"native/zero3", true},    {"native/local-sgd", false}};
  for (const auto& [engine, different] : engines) {
    const auto models = EqualModels(2);
    TrainingSpec spec;
    spec.engine = engine;
    OnRanks(2, [&, engine = engine, different = different](ThreadCommunicator& rank) {
      const auto strategy = MakeStrategy(spec, *models[rank.rank()], rank);
      Communicator* const agreeing = LossScaleCommunicator(*strategy, rank);
      EXPECT_EQ(agreeing, different ? &rank : nullptr) << engine;
      if (!SCALELAB_TORCH_AT_LEAST(2, 4)) return;  // scales on a GPU only
      LossScaler scaler(true, at::kCPU);
      const at::Tensor parameter = at::ones({3}).set_requires_grad(true);
      parameter.mutable_grad() = at::full({3}, different && rank.rank() == 0 ? 1.0 : NAN);
      const int before = rank.all_reduces;
      EXPECT_EQ(scaler.Unscale({parameter}, agreeing).item<float>(), 1) << engine;
      EXPECT_EQ(rank.all_reduces - before, different ? 1 : 0) << engine;
    });
  }
}

// A model with a second classifier on the same features as the first.
class TwoHeaded : public SmallModel {
 public:
  TwoHeaded() { other = register_parameter("other", at::full({4}, 0.5)); }
  TrainingLogits ForwardTraining(const at::Tensor& images) override {
    const at::Tensor logits = forward(images);
    return {logits, logits * other};
  }
  at::Tensor other;
};

TEST(AuxiliaryClassifier, AddsToTheLossByItsWeightAndLearns) {
  at::manual_seed(5);
  TwoHeaded model;
  SoloCommunicator solo;
  TrainingSpec spec;
  const auto strategy = MakeStrategy(spec, model, solo);
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, solo);
  const at::Tensor images = Images(0, 12), labels = at::arange(12, at::kLong).remainder(4);
  const at::Tensor logits = model.forward(images).detach();
  const double expected =
      (at::cross_entropy_loss(logits, labels) + 0.4 * at::cross_entropy_loss(0.5 * logits, labels))
          .item<double>();
  StepRecord record{.global_samples = 12, .marks = StepMarks(at::kCPU)};
  step.Run({images, labels}, 0.1, record);
  EXPECT_NEAR(record.numbers[kLoss].item<double>(), expected, 1e-6);
  EXPECT_EQ(record.numbers[kCorrect].item<double>(), logits.argmax(1).eq(labels).sum().item<double>())
      << "the first classifier answers";
  EXPECT_GT((model.other - 0.5).abs().max().item<double>(), 0);
}

// Without synchronization, each rank uses the mean over its own samples, even if the ranks have different
// numbers of samples.
TEST(UnequalParts, WeighNothingWithoutSynchronisation) {
  const auto models = EqualModels(3);
  TrainingSpec spec;
  spec.engine = "native/none";
  const at::Tensor index = at::tensor({0, 1}, at::kLong);
  const auto run = [&](SmallModel& model, Communicator& communicator, int64_t global) {
    const auto strategy = MakeStrategy(spec, model, communicator);
    TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
    StepRecord record{.global_samples = global, .marks = StepMarks(at::kCPU)};
    step.Run({Images(0, 31).index_select(0, index), index}, 0.1, record);
  };
  SoloCommunicator solo;
  run(*models[2], solo, 2);
  OnRanks(2, [&](ThreadCommunicator& rank) { run(*models[rank.rank()], rank, 7); });
  EXPECT_TRUE(models[0]->first.equal(models[2]->first));
}

}  // namespace
}  // namespace scalelab::trainer
