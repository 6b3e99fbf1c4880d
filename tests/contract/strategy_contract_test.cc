// The contract of Strategy: for every native engine, training on several ranks gives the parameters of
// training on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <ostream>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int kSteps = 20, kGlobalBatch = 12;

// In float32 results differ only by the order of additions. float16 gradients have 11 bits of precision, bfloat16 8.
double ToleranceOf(const TrainingSpec& spec) {
  if (spec.gradient_compression == "bf16") return 4e-2;
  return spec.gradient_compression == "fp16" ? 5e-3 : 5e-6;
}

// One rank's part of a step: losses whose sum, averaged over the ranks, is the mean loss of the batch.
using Parts = std::vector<LossOfPart>;
using StepParts = std::function<Parts(SmallModel& model, int rank, int ranks, int step)>;

at::Tensor Slice(int step, int64_t first, int64_t count) {
  return Images(step % 20 * kGlobalBatch + first, count);
}

Parts EqualSlices(SmallModel& model, int rank, int ranks, int step) {
  const int64_t slice = kGlobalBatch / ranks;
  return {[=, &model] { return LossOf(model, Slice(step, rank * slice, slice)); }};
}

void Train(Strategy& strategy, SmallModel& model, int rank, int ranks, const StepParts& parts_of) {
  Sgd optimizer(strategy.Trained(), 0.9, 1e-2,
                true);  // weight decay would change a parameter without a gradient
  for (int step = 0; step < kSteps; ++step) {
    Parts parts = parts_of(model, rank, ranks, step);
    if (parts.empty()) {
      strategy.Join();
      return;
    }
    LossTask task(std::move(parts), optimizer, 0.02);
    strategy.Step(task);
  }
  strategy.EndEpoch();
}

struct Engine {
  const char* name;
  TrainingSpec spec;
};

// Without this function GoogleTest prints the struct's bytes.
void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

std::vector<Engine> Engines() {
  auto with = [](const char* engine, const std::function<void(TrainingSpec&)>& change) {
    TrainingSpec spec;
    spec.engine = engine;
    change(spec);
    return spec;
  };
  return {
      {"ddp", with("native/ddp", [](TrainingSpec&) {})},
      {"ddp_find_unused", with("native/ddp", [](TrainingSpec& s) { s.find_unused_parameters = true; })},
      {"ddp_static_graph", with("native/ddp", [](TrainingSpec& s) { s.static_graph = true; })},
      {"serial", with("native/serial", [](TrainingSpec&) {})},
      {"horovod", with("native/horovod", [](TrainingSpec&) {})},
      {"horovod_without_cache", with("native/horovod", [](TrainingSpec& s) { s.cache_capacity = 0; })},
      {"horovod_cache_too_small", with("native/horovod", [](TrainingSpec& s) { s.cache_capacity = 2; })},
      {"horovod_without_fusion", with("native/horovod", [](TrainingSpec& s) { s.fusion_threshold_mib = 0; })},
      {"horovod_no_pause", with("native/horovod", [](TrainingSpec& s) { s.cycle_time_ms = 0; })},
      {"horovod_autotune", with("native/horovod", [](TrainingSpec& s) { s.autotune = true; })},
      {"horovod_ring", with("native/horovod", [](TrainingSpec& s) { s.all_reduce = "ring"; })},
      {"horovod_hierarchical",
       with("native/horovod", [](TrainingSpec& s) { s.all_reduce = "hierarchical"; })},
      {"ddp_fp16", with("native/ddp", [](TrainingSpec& s) { s.gradient_compression = "fp16"; })},
      {"ddp_bf16", with("native/ddp", [](TrainingSpec& s) { s.gradient_compression = "bf16"; })},
      {"zero1", with("native/zero1", [](TrainingSpec&) {})},
      {"zero1_find_unused", with("native/zero1", [](TrainingSpec& s) { s.find_unused_parameters = true; })},
      {"zero1_static_graph", with("native/zero1", [](TrainingSpec& s) { s.static_graph = true; })},
      {"zero1_bf16", with("native/zero1", [](TrainingSpec& s) { s.gradient_compression = "bf16"; })},
      {"zero2", with("native/zero2", [](TrainingSpec&) {})},
      {"zero2_find_unused", with("native/zero2", [](TrainingSpec& s) { s.find_unused_parameters = true; })},
      {"zero2_static_graph", with("native/zero2", [](TrainingSpec& s) { s.static_graph = true; })},
      {"zero2_fp16", with("native/zero2", [](TrainingSpec& s) { s.gradient_compression = "fp16"; })},
      {"zero3", with("native/zero3", [](TrainingSpec&) {})},
      {"zero3_find_unused", with("native/zero3", [](TrainingSpec& s) { s.find_unused_parameters = true; })},
      {"zero3_static_graph", with("native/zero3", [](TrainingSpec& s) { s.static_graph = true; })},
      {"zero3_bf16", with("native/zero3", [](TrainingSpec& s) { s.gradient_compression = "bf16"; })},
      {"horovod_fp16", with("native/horovod", [](TrainingSpec& s) { s.gradient_compression = "fp16"; })}};
}

class StrategyContract : public testing::TestWithParam<std::tuple<Engine, int>> {
 protected:
  // Trains on all ranks, and with the parts of `reference` on a single rank, and compares the parameters of
  // the first `trained` ranks. A rank that has joined stops earlier than the others.
  void Check(const StepParts& parts_of, const StepParts& reference, int trained) {
    const auto models = EqualModels(ranks() + 1);
    const SmallModel& alone = *models[ranks()];
    SoloCommunicator solo;
    Train(*MakeStrategy(engine().spec, *models[ranks()], solo), *models[ranks()], 0, 1, reference);
    OnRanks(ranks(), [&](ThreadCommunicator& c) {
      const auto strategy = MakeStrategy(engine().spec, *models[c.rank()], c);
      Train(*strategy, *models[c.rank()], c.rank(), ranks(), parts_of);
      if (trained < ranks() && c.rank() < trained) strategy->Join();
    });
    EXPECT_FALSE(alone.first.equal(EqualModels(1)[0]->first)) << "training must change the parameters";
    double largest = 0;
    for (const auto& named : alone.named_parameters()) {
      const at::Tensor found = models[0]->named_parameters()[named.key()];
      const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
      const double deviation = (found - named.value()).abs().max().item<double>() / size;
      EXPECT_LT(deviation, ToleranceOf(engine().spec)) << named.key();
      largest = std::max(largest, deviation);
      for (int r = 1; r < trained; ++r) {
        EXPECT_TRUE(models[r]->named_parameters()[named.key()].equal(found))
            << named.key() << " on rank " << r;
      }
    }
    std::printf("%s, %d ranks: largest deviation %.1e of a parameter's size\n", engine().name, ranks(),
                largest);
  }
  void Check(const StepParts& parts_of) { Check(parts_of, EqualSlices, ranks()); }

  const Engine& engine() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

// Returns the squared norm of the gradient of a rank, and averages it over the ranks.
double SquareAndAverage(SmallModel& model, Communicator& communicator, double* mean) {
  double sum = 0;
  *mean = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
    communicator.AllReduce(parameter.grad(), ReduceOp::kAverage);
    *mean += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

TEST_P(StrategyContract, MeasuresTheSquaresOfARanksGradientAndOfTheMean) {
  if (ranks() == 1) GTEST_SKIP() << "nothing is averaged";
  const std::string& compression = engine().spec.gradient_compression;
  const bool only_rounds = compression == "none" || compression == "fp16" || compression == "bf16";
  const double tolerance = compression == "bf16" ? 2e-2 : compression == "fp16" ? 5e-3 : 1e-5;
  const auto models = EqualModels(ranks()), alone = EqualModels(ranks());
  OnRanks(ranks(), [&](ThreadCommunicator& c) {
    const auto strategy = MakeStrategy(engine().spec, *models[c.rank()], c);
    Sgd optimizer(strategy->Trained(), 0.9, 0, true);
    for (int step = 0; step < 3; ++step) {  // buckets are rebuilt after the first step
      SmallModel& model = *alone[c.rank()];
      for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
      EqualSlices(model, c.rank(), ranks(), step)[0]().backward();
      LossTask task(EqualSlices(*models[c.rank()], c.rank(), ranks(), step), optimizer, 0);
      strategy->Step(task);
      const BackwardCost& cost = task.cost;
      double mean = 0;
      const double rank = SquareAndAverage(model, c, &mean);
      if (!only_rounds) {
        EXPECT_FALSE(cost.mean_square.defined()) << "the mean is biased";
        continue;
      }
      ASSERT_TRUE(cost.rank_square.defined() && cost.mean_square.defined());
      EXPECT_EQ(cost.rank_square.scalar_type(), at::kDouble);
      EXPECT_NEAR(cost.rank_square.item<double>(), rank, rank * tolerance) << "step " << step;
      EXPECT_NEAR(cost.mean_square.item<double>(), mean, mean * tolerance) << "step " << step;
      const at::Tensor average = cost.rank_square.clone();
      c.AllReduce(average, ReduceOp::kAverage);
      EXPECT_GT(average.item<double>(), mean) << "averaging removes noise";
    }
  });
}

TEST_P(StrategyContract, WithAParameterThatGetsNoGradient) { Check(EqualSlices); }

// Uses the bias on the last rank only, in the steps for which `used` returns true.
StepParts BiasOnLastRank(const std::function<bool(int step)>& used) {
  return [used](SmallModel& model, int rank, int ranks, int step) {
    return Parts{[=, &model] {
      model.with_bias = rank + 1 == ranks && used(step);
      return EqualSlices(model, rank, ranks, step)[0]();
    }};
  };
}

// The same training on one rank, whose loss is the mean of the losses of `ranks` ranks.
StepParts MeanOver(int ranks, const StepParts& parts) {
  return [ranks, parts](SmallModel& model, int, int, int step) {
    return Parts{[=, &model] {
      at::Tensor loss = parts(model, 0, ranks, step)[0]();
      for (int r = 1; r < ranks; ++r) loss = loss + parts(model, r, ranks, step)[0]();
      return loss / ranks;
    }};
  };
}

TEST_P(StrategyContract, WithAParameterThatGetsAGradientOnOneRankOnly) {
  const StepParts parts = BiasOnLastRank([](int) { return true; });
  Check(parts, MeanOver(ranks(), parts), ranks());
}

TEST_P(StrategyContract, WithAParameterThatGetsAGradientInSomeStepsOnly) {
  const StepParts parts = BiasOnLastRank([](int step) { return step % 3 == 1; });
  if (engine().spec.static_graph) GTEST_SKIP() << "a static graph is the same in every step";
  Check(parts, MeanOver(ranks(), parts), ranks());
}

TEST_P(StrategyContract, WithGradientAccumulation) {
  Check([](SmallModel& model, int rank, int ranks, int step) {
    const int64_t slice = kGlobalBatch / ranks;
    Parts parts;
    for (int64_t i = 0; i < slice; ++i) {
      parts.push_back([=, &model] {
        return LossOf(model, Slice(step, rank * slice + i, 1)) / static_cast<double>(slice);
      });
    }
    return parts;
  });
}

// Rank 0 has more samples than the others; each rank weights its mean by its share.
TEST_P(StrategyContract, WithUnequalBatches) {
  Check([](SmallModel& model, int rank, int ranks, int step) {
    const int64_t others = kGlobalBatch / ranks - 1, first = kGlobalBatch - others * (ranks - 1);
    const int64_t count = rank == 0 ? first : others, begin = rank == 0 ? 0 : first + (rank - 1) * others;
    return Parts{[=, &model] {
      return LossOf(model, Slice(step, begin, count)) * (static_cast<double>(count * ranks) / kGlobalBatch);
    }};
  });
}

// The last rank runs out of data three steps early. The others take its samples.
TEST_P(StrategyContract, WithARankThatEndsEarlier) {
  const StepParts parts = [](SmallModel& model, int rank, int ranks, int step) {
    if (step < kSteps - 3) return EqualSlices(model, rank, ranks, step);
    if (rank + 1 == ranks) return Parts{};
    const int64_t slice = kGlobalBatch / (ranks - 1);
    const double share = static_cast<double>(ranks) / (ranks - 1);
    return Parts{[=, &model] { return LossOf(model, Slice(step, rank * slice, slice)) * share; }};
  };
  if (engine().spec.engine == "native/horovod") {
    Check(parts, EqualSlices, ranks() - 1);
  } else {
    OnRanks(ranks(), [&](ThreadCommunicator& c) {
      SmallModel model;
      EXPECT_THROW(MakeStrategy(engine().spec, model, c)->Join(), TrainerError);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, StrategyContract,
                         testing::Combine(testing::ValuesIn(Engines()), testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param)) + "_ranks";
                         });

TEST(NoSynchronisation, StartsFromRankZerosParametersAndDiverges) {
  const auto models = EqualModels(2);
  {
    const at::NoGradGuard no_grad;
    models[1]->second.zero_();
  }
  TrainingSpec spec;
  spec.engine = "native/none";
  OnRanks(2, [&](ThreadCommunicator& c) {
    const auto strategy = MakeStrategy(spec, *models[c.rank()], c);
    EXPECT_TRUE(models[c.rank()]->second.equal(models[0]->second));
    EXPECT_FALSE(strategy->keeps_ranks_equal());
    c.Barrier();
    c.all_reduces = 0;
    Train(*strategy, *models[c.rank()], c.rank(), 2, EqualSlices);
    EXPECT_EQ(c.all_reduces, 0);
  });
  EXPECT_FALSE(models[1]->second.equal(models[0]->second));
}

}  // namespace
}  // namespace scalelab::trainer
