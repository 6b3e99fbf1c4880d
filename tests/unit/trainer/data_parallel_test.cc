// Tests of data parallelism within one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/checkpoint/saved_run.h"
#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/models/dropout.h"
#include "worker/trainer/strategies/data_parallel_strategy.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

// An epoch has three steps of 12, 12 and 7 samples. There are 21 steps in total.
constexpr int64_t kSamples = 31, kGlobalBatch = 12, kEpochs = 7;
constexpr double kTolerance = 5e-6;  // only the order of additions differs

// A model with batch normalisation and a second classifier.
class NormalisedModel : public SmallModel {
 public:
  NormalisedModel() {
    other = register_parameter("other", at::full({4}, 0.5));
    mean = register_buffer("mean", at::zeros({8}));
    variance = register_buffer("variance", at::ones({8}));
  }
  at::Tensor forward(const at::Tensor& images) override {
    if (fails) throw TrainerError("this replica fails");
    between = at::batch_norm(at::conv2d(images, first), {}, {}, mean, variance, /*training=*/normalises, 0.1,
                             1e-5, false);
    return at::conv2d(between.relu(), second).mean({2, 3}) + bias;
  }
  TrainingLogits ForwardTraining(const at::Tensor& images) override {
    const at::Tensor logits = forward(images);
    return {logits, logits * other};
  }
  at::Tensor other, mean, variance;
  bool normalises = false, fails = false;
};

std::shared_ptr<NormalisedModel> MakeNormalised() {
  at::manual_seed(5);
  return std::make_shared<NormalisedModel>();
}

TrainingSpec Spec(const char* engine, int replicas, int64_t parts = 1) {
  TrainingSpec spec;
  spec.engine = engine;
  spec.replicas = replicas;
  spec.accumulation_steps = parts;
  spec.global_batch = kGlobalBatch;
  spec.weight_decay = 1e-2;  // would change a parameter without a gradient
  return spec;
}

// Returns the loss of each step.
std::vector<double> Train(const TrainingSpec& spec, NormalisedModel& model) {
  SoloCommunicator solo;
  // Replicas with other weights, which are overwritten.
  const auto strategy = MakeStrategy(spec, model, solo, [&] {
    auto replica = std::make_shared<NormalisedModel>();
    replica->normalises = model.normalises;
    return replica;
  });
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, solo);
  ShardedSampler sampler(kSamples, kGlobalBatch, 0, 1, 3, LastBatch::kKeep);
  std::vector<double> losses;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.StartEpoch(epoch);
    for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      const std::vector<int64_t> slice(sampler.Slice(s).begin(), sampler.Slice(s).end());
      const at::Tensor index = at::tensor(slice, at::kLong);
      StepRecord record{.global_samples = sampler.GlobalBatch(s), .marks = StepMarks(at::kCPU)};
      step.Run({Images(0, kSamples).index_select(0, index), index.remainder(4)}, 0.1, record);
      losses.push_back(record.numbers[kLoss].item<double>());
    }
  }
  return losses;
}

class DataParallel : public testing::TestWithParam<std::tuple<int, int64_t>> {};

TEST_P(DataParallel, TrainsLikeOneReplica) {
  const auto [replicas, parts] = GetParam();
  const auto start = MakeNormalised(), alone = MakeNormalised(), model = MakeNormalised();
  const std::vector<double> expected = Train(Spec("native/ddp", 1), *alone);
  EXPECT_LT(expected[expected.size() - 3], expected[0]) << "it should learn, or the comparison says little";
  const std::vector<double> losses = Train(Spec("native/data-parallel", replicas, parts), *model);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step], expected[step], 1e-4 * expected[step]) << "step " << step;
  for (const auto& named : alone->named_parameters()) {
    const at::Tensor found = model->named_parameters()[named.key()];
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    EXPECT_LT((found - named.value()).abs().max().item<double>() / size, kTolerance) << named.key();
  }
  EXPECT_TRUE(model->unused.equal(start->unused)) << "it has no gradient";
  EXPECT_GT((model->other - 0.5).abs().max().item<double>(), 0) << "the second classifier learns";
}

// With 8 replicas, the last batch of 7 samples leaves one replica idle. If it is divided into 3 parts, most
// replicas are idle.
INSTANTIATE_TEST_SUITE_P(Replicas, DataParallel,
                         testing::Combine(testing::Values(1, 2, 3, 8), testing::Values<int64_t>(1, 3)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_replicas_" +
                                  std::to_string(std::get<1>(info.param)) + "_parts";
                         });

TEST(DataParallelism, OnlyReplicaZeroUpdatesTheRunningStatistics) {
  const auto model = MakeNormalised(), first_half = MakeNormalised();
  model->normalises = first_half->normalises = true;
  SoloCommunicator solo;
  const TrainingSpec spec = Spec("native/data-parallel", 2);
  const auto strategy = MakeStrategy(spec, *model, solo, [] {
    auto replica = std::make_shared<NormalisedModel>();
    replica->normalises = true;
    return replica;
  });
  first_half->forward(Images(0, 6));
  const TrainingLogits out = strategy->Forward(*model, Images(0, 12));
  EXPECT_EQ(out.logits.sizes(), at::IntArrayRef({12, 4}));
  EXPECT_TRUE(model->mean.equal(first_half->mean));
  EXPECT_TRUE(model->variance.equal(first_half->variance));
}

TEST(DataParallelism, AReplicaThatFailsIsReportedAndTheOthersCanGoOn) {
  const auto model = MakeNormalised();
  SoloCommunicator solo;
  std::vector<std::shared_ptr<NormalisedModel>> replicas;
  const auto strategy = MakeStrategy(Spec("native/data-parallel", 3), *model, solo, [&] {
    replicas.push_back(std::make_shared<NormalisedModel>());
    return replicas.back();
  });
  replicas[1]->fails = true;
  EXPECT_THROW(strategy->Forward(*model, Images(0, 12)), TrainerError);
  replicas[1]->fails = false;
  EXPECT_EQ(strategy->Forward(*model, Images(0, 12)).logits.size(0), 12);
}

// A model with dropout.
class DroppingModel : public SmallModel {
 public:
  at::Tensor forward(const at::Tensor& images) override {
    between = ApplyDropout(at::conv2d(images, first).relu(), 0.5, is_training());
    return at::conv2d(between, second).mean({2, 3}) + bias;
  }
};

// Tests that replicas continue their random numbers after a checkpoint.
class ReplicasWithDropout : public testing::Test {
 protected:
  static constexpr int kBefore = 3, kSteps = 6;

  static std::shared_ptr<DroppingModel> MakeDropping() {
    Images(0, 1);  // its first call seeds Torch's generator
    at::manual_seed(5);
    return std::make_shared<DroppingModel>();
  }
  static Batch Rows(const at::Tensor& samples) {
    return {Images(0, 256).index_select(0, samples), samples.remainder(4)};
  }

  // Trains `model` from step `first` to step `last`. Continues from the state `from` if it is not null. Returns
  // the state at the end.
  Saved Train(int replicas, DroppingModel& model, int first, int last, const Saved* from = nullptr) {
    SavedRank rank(Spec("native/data-parallel", replicas), model, solo_, Rows, from, MakeDropping);
    rank.Train(first, last);
    Saved saved;
    rank.Save(saved, last);
    return saved;
  }
  static const at::Tensor& GeneratorOf(int replica, const Saved& saved) {
    return Find(saved.of_ranks[0], "strategy/random/cpu/" + std::to_string(replica));
  }
  static void ExpectEqual(const DroppingModel& found, const DroppingModel& expected) {
    for (const auto& named : expected.named_parameters())
      EXPECT_TRUE(found.named_parameters()[named.key()].equal(named.value())) << named.key();
  }

  SoloCommunicator solo_;
};

TEST_F(ReplicasWithDropout, ContinueBitForBit) {
  for (const int replicas : {2, 3, 4}) {
    const auto whole = MakeDropping(), again = MakeDropping(), begun = MakeDropping(),
               resumed = MakeDropping();
    const Saved end = Train(replicas, *whole, 0, kSteps);
    Train(replicas, *again, 0, kSteps);
    ExpectEqual(*again, *whole);
    const Saved saved = Train(replicas, *begun, 0, kBefore);
    const Saved end_of_resumed = Train(replicas, *resumed, kBefore, kSteps, &saved);
    ExpectEqual(*resumed, *whole);
    for (int replica = 1; replica < replicas; ++replica) {
      EXPECT_FALSE(GeneratorOf(replica, saved).equal(GeneratorOf(replica, end))) << "it draws numbers";
      EXPECT_TRUE(GeneratorOf(replica, end_of_resumed).equal(GeneratorOf(replica, end))) << replica;
      EXPECT_FALSE(GeneratorOf(replica, end).equal(Find(end.of_ranks[0], "random/cpu"))) << "and its own";
    }
  }
}

TEST_F(ReplicasWithDropout, WithoutASavedGeneratorGetNewOnes) {
  const auto begun = MakeDropping(), resumed = MakeDropping();
  const Saved start = Train(2, *MakeDropping(), 0, 0);
  Saved saved = Train(2, *begun, 0, kBefore);
  // With more replicas, those of the checkpoint continue.
  const Saved three = Train(3, *resumed, kBefore, kBefore, &saved);
  EXPECT_TRUE(GeneratorOf(1, three).equal(GeneratorOf(1, saved)));
  EXPECT_FALSE(GeneratorOf(2, three).equal(GeneratorOf(1, start)));
  // A checkpoint of an earlier version has the state of replica 0 only.
  EXPECT_EQ(std::erase_if(saved.of_ranks[0],
                          [](const auto& named) { return named.first.starts_with("strategy/random/"); }),
            1u);
  const Saved old = Train(2, *resumed, kBefore, kBefore, &saved);
  EXPECT_TRUE(GeneratorOf(1, old).equal(GeneratorOf(1, start)));
  EXPECT_TRUE(Find(old.of_ranks[0], "random/cpu").equal(Find(saved.of_ranks[0], "random/cpu")));
}

TEST(DataParallelism, RefusesWhatItCannotDo) {
  const auto model = MakeNormalised();
  const auto error_of = [&](const TrainingSpec& spec, Communicator& communicator) -> std::string {
    try {
      MakeStrategy(spec, *model, communicator, [] { return std::make_shared<NormalisedModel>(); });
    } catch (const TrainerError& error) {
      return error.what();
    }
    return "no error";
  };
  ThreadCommunicator two(std::make_shared<ThreadCommunicator::Group>(2), 0);
  EXPECT_THAT(error_of(Spec("native/data-parallel", 2), two), HasSubstr("set ranks to 1"));
  TrainingSpec spec = Spec("native/data-parallel", 2);
  spec.batch_norm = "sync";
  SoloCommunicator solo;
  EXPECT_THAT(error_of(spec, solo), HasSubstr("batch_norm"));
}

}  // namespace
}  // namespace scalelab::trainer
