// Tests of native/parameter-server, in which some ranks hold the parameters for the ranks that train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/data/sampler.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/strategies/parameter_server_strategy.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

// Three steps in an epoch, of 12, 12 and 7 samples, 21 in all.
constexpr int64_t kSamples = 31, kGlobalBatch = 12, kEpochs = 7;
constexpr double kTolerance = 5e-6;  // only the order of additions differs

TrainingSpec Spec(int servers, const std::string& consistency = "sync") {
  TrainingSpec spec;
  spec.engine = "native/parameter-server";
  spec.server_ranks = servers;
  spec.consistency = consistency;
  spec.global_batch = kGlobalBatch;
  spec.weight_decay = 1e-2;  // would change a parameter without a gradient
  return spec;
}

// Trains the model on this rank's samples, like the training loop.
void Train(const TrainingSpec& spec, SmallModel& model, Communicator& communicator) {
  const auto strategy = MakeStrategy(spec, model, communicator);
  TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, communicator);
  const DataSlice part = strategy->SliceOf(communicator.rank(), communicator.size());
  const bool trains = part.index >= 0;
  ShardedSampler sampler(kSamples, kGlobalBatch, part.index, part.count, 3, LastBatch::kKeep);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.StartEpoch(epoch);
    for (int64_t s = 0; s < sampler.steps_per_epoch(); ++s) {
      std::vector<int64_t> slice;
      if (trains) slice.assign(sampler.Slice(s).begin(), sampler.Slice(s).end());
      const at::Tensor index = at::tensor(slice, at::kLong);
      StepRecord record{.global_samples = sampler.GlobalBatch(s), .marks = StepMarks(at::kCPU)};
      step.Run({Images(0, kSamples).index_select(0, index), index.remainder(4)}, 0.1, record);
      EXPECT_EQ(record.numbers.defined(), trains);
    }
    strategy->EndEpoch();
  }
}

double Deviation(SmallModel& found, SmallModel& expected) {
  double largest = 0;
  for (const auto& named : expected.named_parameters()) {
    const at::Tensor other = found.named_parameters()[named.key()];
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    largest = std::max(largest, (other - named.value()).abs().max().item<double>() / size);
  }
  return largest;
}

struct Case {
  int trainers, servers;
  int64_t parts;
  const char* consistency = "sync";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.trainers << "+" << c.servers << " parts " << c.parts << " " << c.consistency;
}

class ParameterServer : public testing::TestWithParam<Case> {};

TEST_P(ParameterServer, TrainsLikeOneRank) {
  const Case& c = GetParam();
  const int ranks = c.trainers + c.servers;
  const auto models = EqualModels(ranks + 1), start = EqualModels(1);
  SoloCommunicator solo;
  Train(Spec(1), *models[ranks], solo);
  EXPECT_GT(Deviation(*models[ranks], *start[0]), 0.01) << "it should learn, or the comparison says little";
  TrainingSpec spec = Spec(c.servers, c.consistency);
  spec.accumulation_steps = c.parts;
  OnRanks(ranks, [&](ThreadCommunicator& rank) { Train(spec, *models[rank.rank()], rank); });
  EXPECT_LT(Deviation(*models[0], *models[ranks]), kTolerance);
  EXPECT_TRUE(models[0]->unused.equal(start[0]->unused)) << "it has no gradient";
  for (int r = 1; r < ranks; ++r) EXPECT_EQ(Deviation(*models[r], *models[0]), 0) << "rank " << r;
}

// If only one rank trains, all values of `consistency` give the same results.
INSTANTIATE_TEST_SUITE_P(Ranks, ParameterServer,
                         testing::Values(Case{2, 1, 1}, Case{2, 1, 3}, Case{3, 1, 1}, Case{3, 1, 3},
                                         Case{2, 2, 1}, Case{2, 2, 3}, Case{1, 3, 1}, Case{1, 1, 1, "async"},
                                         Case{1, 2, 1, "ssp"}),
                         [](const auto& info) {
                           return std::to_string(info.param.trainers) + "_and_" +
                                  std::to_string(info.param.servers) + "_parts_" +
                                  std::to_string(info.param.parts) + "_" + info.param.consistency;
                         });

// The last rank that trains uses the bias in some steps, the others never do.
TEST(ParameterServers, AParameterMayGetAGradientOnOneRankAndInSomeStepsOnly) {
  constexpr int kTrainers = 2, kRanks = 3, kSteps = 12;
  const auto models = EqualModels(kRanks + 1);
  const auto loss = [](SmallModel& model, int rank, int step) {
    model.with_bias = rank == kTrainers - 1 && step % 3 == 1;
    return LossOf(model, Images(step * 8 + rank * 4, 4));
  };
  Sgd alone(models[kRanks]->parameters(), 0.9, 1e-2, true);
  for (int step = 0; step < kSteps; ++step) {
    for (const at::Tensor& parameter : models[kRanks]->parameters()) parameter.mutable_grad().reset();
    ((loss(*models[kRanks], 0, step) + loss(*models[kRanks], 1, step)) / kTrainers).backward();
    alone.Step(0.02);
  }
  OnRanks(kRanks, [&](ThreadCommunicator& c) {
    const auto strategy = MakeStrategy(Spec(1), *models[c.rank()], c);
    Sgd optimizer(strategy->Trained(), 0.9, 1e-2, true);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> losses;
      if (c.rank() < kTrainers) losses.push_back(loss(*models[c.rank()], c.rank(), step));
      LossTask task(losses, optimizer, 0.02);
      strategy->Step(task);
      EXPECT_EQ(task.cost.bytes > 0, c.rank() < kTrainers);
    }
    strategy->EndEpoch();
  });
  EXPECT_GT(models[0]->bias.abs().max().item<double>(), 0);
  EXPECT_LT(Deviation(*models[0], *models[kRanks]), kTolerance);
}

// Two ranks train, and rank 0 is slow: it begins a step only when `may_begin` returns true. `fast` is the
// number of steps that rank 1 has done. Returns the metrics.
std::vector<Metric> WithASlowRank(const TrainingSpec& spec, int steps,
                                  const std::function<bool(int step, int fast)>& may_begin,
                                  std::vector<int>* ahead) {
  const auto models = EqualModels(3);
  std::atomic<int> fast = 0, slow = 0;
  std::vector<Metric> metrics;
  OnRanks(3, [&](ThreadCommunicator& c) {
    const auto strategy = MakeStrategy(spec, *models[c.rank()], c);
    Sgd optimizer(strategy->Trained(), 0.9, 0, true);
    for (int step = 0; step < steps; ++step) {
      std::vector<at::Tensor> losses;
      if (c.rank() < 2) losses.push_back(LossOf(*models[c.rank()], Images(step * 8 + c.rank() * 4, 4)));
      if (c.rank() == 0) {
        while (!may_begin(step, fast)) sched_yield();
        // Count before the servers get the gradient, so that rank 1 is never further ahead than
        // the counters show.
        ++slow;
      }
      LossTask task(losses, optimizer, strategy->RateOfUpdate(0.02));
      strategy->Step(task);
      if (c.rank() != 1) continue;
      ahead->push_back(step + 1 - slow);
      ++fast;
    }
    strategy->EndEpoch();
    if (c.rank() == 0) strategy->AppendMetrics(metrics);
  });
  EXPECT_EQ(Deviation(*models[0], *models[2]), 0) << "all have the parameters of the server";
  return metrics;
}

double Value(const std::vector<Metric>& metrics, const std::string& key) {
  for (const auto& [name, value] : metrics) {
    if (name == key) return value;
  }
  return -1;
}

TEST(ParameterServers, SspNeverLetsARankGetFurtherAheadThanTheBound) {
  for (const int bound : {0, 1, 3}) {
    constexpr int kSteps = 10;
    TrainingSpec spec = Spec(1, "ssp");
    spec.staleness = bound;
    std::vector<int> ahead;
    // Rank 0 waits until rank 1 has made every step that the bound allows.
    const auto metrics = WithASlowRank(
        spec, kSteps, [&](int step, int fast) { return fast >= std::min(step + bound, kSteps); }, &ahead);
    EXPECT_EQ(*std::ranges::max_element(ahead), bound);
    EXPECT_LE(Value(metrics, "run/staleness_max"), bound + 1) << "a gradient may wait for its answer";
    EXPECT_GE(Value(metrics, "run/staleness_max"), bound);
  }
}

TEST(ParameterServers, AsyncNeverWaitsAndReportsTheStaleness) {
  constexpr int kSteps = 10;
  std::vector<int> ahead;
  // Rank 0 begins when rank 1 has done all its steps.
  const auto metrics = WithASlowRank(
      Spec(1, "async"), kSteps, [](int, int fast) { return fast == kSteps; }, &ahead);
  EXPECT_EQ(*std::ranges::max_element(ahead), kSteps);
  EXPECT_EQ(Value(metrics, "run/staleness_max"), kSteps)
      << "the first gradient of rank 0 missed these updates";
  EXPECT_DOUBLE_EQ(Value(metrics, "run/staleness_mean"), 0.5) << "it is the only one of 20 that missed any";
  EXPECT_EQ(Value(metrics, "run/staleness_p50"), 0);
  EXPECT_EQ(Value(metrics, "run/staleness_p90"), 0);
  EXPECT_EQ(Value(metrics, "run/staleness_p99"), kSteps) << "19 of 20 are fewer than 99%";
}

TEST(ParameterServers, NoGradientMissesUpdatesOfAnEarlierEpoch) {
  constexpr int kOrder[] = {0, 1, 1, 0};  // the ranks that step, in two epochs
  const auto models = EqualModels(3);
  std::atomic<int> turn = 0;
  std::vector<Metric> metrics;
  OnRanks(3, [&](ThreadCommunicator& c) {
    const auto strategy = MakeStrategy(Spec(1, "async"), *models[c.rank()], c);
    Sgd optimizer(strategy->Trained(), 0.9, 0, true);
    for (int epoch = 0; epoch < 2; ++epoch) {
      const bool trains = c.rank() < 2;
      std::vector<at::Tensor> losses;
      if (trains) losses.push_back(LossOf(*models[c.rank()], Images(c.rank() * 4, 4)));
      while (trains && kOrder[turn] != c.rank()) sched_yield();
      LossTask task(losses, optimizer, strategy->RateOfUpdate(0.02));
      strategy->Step(task);
      if (trains) ++turn;
      strategy->EndEpoch();
    }
    if (c.rank() == 0) strategy->AppendMetrics(metrics);
  });
  EXPECT_EQ(Value(metrics, "run/staleness_max"), 1) << "at the end of an epoch all ranks get all updates";
  EXPECT_EQ(Value(metrics, "run/staleness_mean"), 0.5);
}

// The gradients are constant, so the order of the updates does not matter.
TEST(ParameterServers, AllUpdatesOfAStepTogetherHaveTheRateOfTheStep) {
  constexpr int kSteps = 5;
  constexpr double kRate = 0.1;
  for (const char* consistency : {"sync", "async", "ssp"}) {
    const auto models = EqualModels(4);
    const at::Tensor before = models[0]->bias.detach().clone();
    OnRanks(4, [&](ThreadCommunicator& c) {
      const auto strategy = MakeStrategy(Spec(1, consistency), *models[c.rank()], c);
      Sgd optimizer(strategy->Trained(), 0, 0, true);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<at::Tensor> losses;
        if (c.rank() < 3) losses.push_back(models[c.rank()]->bias.sum());
        LossTask task(losses, optimizer, strategy->RateOfUpdate(kRate));
        strategy->Step(task);
      }
      strategy->EndEpoch();
    });
    EXPECT_TRUE(at::allclose(models[0]->bias, before - kRate * kSteps, 1e-5, 1e-6)) << consistency;
  }
}

TEST(ParameterServers, SyncHasNoStaleness) {
  std::vector<int> ahead;
  const auto metrics = WithASlowRank(
      Spec(1), 3, [](int, int) { return true; }, &ahead);
  EXPECT_TRUE(metrics.empty());
}

std::string ErrorOf(const TrainingSpec& spec, Communicator& communicator) {
  const auto models = EqualModels(1);
  try {
    MakeStrategy(spec, *models[0], communicator);
  } catch (const TrainerError& error) {
    return error.what();
  }
  return "no error";
}

class OverNccl : public ThreadCommunicator {
 public:
  OverNccl() : ThreadCommunicator(std::make_shared<Group>(3), 0) {}
  std::string_view name() const override { return "nccl"; }
};

TEST(ParameterServers, RefuseWhatTheyCannotDo) {
  ThreadCommunicator three(std::make_shared<ThreadCommunicator::Group>(3), 0);
  EXPECT_THAT(ErrorOf(Spec(3), three),
              HasSubstr("server_ranks 3 leaves none of the 3 ranks to train: use at most 2"));
  OverNccl nccl;
  EXPECT_THAT(ErrorOf(Spec(1, "async"), nccl), HasSubstr("use backend mpi or gloo, or consistency sync"));
  TrainingSpec spec = Spec(1);
  spec.batch_norm = "sync";
  EXPECT_THAT(ErrorOf(spec, three), HasSubstr("batch_norm"));
  spec = Spec(1);
  spec.precision = "amp-fp16";
  EXPECT_THAT(ErrorOf(spec, three), HasSubstr("amp-bf16"));
}

}  // namespace
}  // namespace scalelab::trainer
