// Tests of the squared norms of gradients, from which the coordinator computes the noise scale.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/trainer/divided_training.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/strategies/group_gradients.h"

namespace scalelab::trainer {
namespace {

// Squared norms of a rank's gradient (mean over the ranks that train) and of the mean gradient.
struct Squares {
  double of_rank = 0, of_mean = 0;
};

// The squared norm of the true gradient and the trace of the covariance of a sample's gradient.
struct Noise {
  double square = 0, trace = 0;
};

// Computes like the coordinator (analysis/factors/gradient_noise.cc).
Noise NoiseOf(const Squares& squares, int ranks, double global_batch) {
  const double batch = global_batch / ranks;
  return {(global_batch * squares.of_mean - batch * squares.of_rank) / (global_batch - batch),
          (squares.of_rank - squares.of_mean) / (1 / batch - 1 / global_batch)};
}

TrainingSpec With(const char* engine, const std::function<void(TrainingSpec&)>& change = {}) {
  TrainingSpec spec;
  spec.engine = engine;
  if (change) change(spec);
  return spec;
}

TrainingSpec Compressed(const char* engine, const char* form) {
  return With(engine, [=](TrainingSpec& s) { s.gradient_compression = form; });
}

// Trains gpt-nano for two steps. Returns what the ranks report for the second one; NaN if it is not known.
Squares Reported(TrainingSpec spec, int ranks) {
  spec.global_batch = kGlobalBatch;
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < ranks; ++r) models.push_back(NewModel("gpt-nano"));
  std::vector<Squares> reported(ranks);
  std::vector<int> trains(ranks);
  OnRanks(ranks, [&](ThreadCommunicator& rank) {
    const int r = rank.rank();
    const auto strategy = MakeStrategy(spec, *models[r], rank);
    TrainStep step(spec, Precision::kFp32, at::kCPU, *models[r], *strategy, rank);
    const auto [place, count] = strategy->SliceOf(r, ranks);
    Batch batch{at::empty({0}), at::empty({0}, at::kLong)};
    if (place >= 0) {
      std::vector<int64_t> mine;
      for (int64_t i = 0; i < kGlobalBatch / count; ++i) mine.push_back(kGlobalBatch / count * place + i);
      batch = Samples("gpt-nano", mine);
    }
    for (int s = 0; s < 2; ++s) {
      StepRecord record{.global_samples = kGlobalBatch, .marks = StepMarks(at::kCPU)};
      step.Run(batch, 0.01, record);
      if (!record.numbers.defined()) continue;  // a server
      trains[r] = 1;
      reported[r] = {record.numbers[kRankSquare].item<double>(), record.numbers[kMeanSquare].item<double>()};
    }
  });
  double of_rank = 0;
  int training = 0;
  for (int r = 0; r < ranks; ++r) {
    of_rank += reported[r].of_rank;
    training += trains[r];
  }
  return {of_rank / training, reported[0].of_mean};
}

struct Case {
  const char* name;
  TrainingSpec spec;
  int ranks, slices;
  double tolerance;  // relative to the squared norm of a rank's gradient
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

TrainingSpec Servers(int servers, const char* consistency = "sync") {
  return With("native/parameter-server", [=](TrainingSpec& s) {
    s.server_ranks = servers;
    s.consistency = consistency;
  });
}

TrainingSpec Pipeline(int stages, int64_t parts = 1) {
  return With("native/pipeline", [=](TrainingSpec& s) {
    s.pipeline_stages = stages;
    s.accumulation_steps = parts;
  });
}

TrainingSpec InTensors(int ranks) {
  return With("native/tensor", [=](TrainingSpec& s) { s.tensor_ranks = ranks; });
}

constexpr double kExact = 1e-4;  // the order of additions differs

class GradientNoise : public testing::TestWithParam<Case> {};

// The first and the last stage of gpt have the same token embedding, and the ranks of a group of
// native/tensor have the same gradients of parameters that are not divided. They must count once.
TEST_P(GradientNoise, IsThatOfDdpOnTheSameSamples) {
  const Case& c = GetParam();
  const Squares ddp = Reported(With("native/ddp"), c.slices), found = Reported(c.spec, c.ranks);
  ASSERT_GT(ddp.of_rank, 1.01 * ddp.of_mean) << "averaging removes noise";
  EXPECT_NEAR(found.of_mean, ddp.of_mean, c.tolerance * ddp.of_mean);
  if (c.ranks == c.slices) {
    EXPECT_NEAR(found.of_rank, ddp.of_rank, c.tolerance * ddp.of_rank);
  }
  const double batch = static_cast<double>(kGlobalBatch);
  const Noise expected = NoiseOf(ddp, c.slices, batch), noise = NoiseOf(found, c.ranks, batch);
  EXPECT_NEAR(noise.square, expected.square, 3 * c.tolerance * ddp.of_rank);
  EXPECT_NEAR(noise.trace, expected.trace, 3 * c.tolerance * ddp.of_rank * batch);
}

INSTANTIATE_TEST_SUITE_P(Engines, GradientNoise,
                         testing::Values(Case{"fp16", Compressed("native/ddp", "fp16"), 2, 2, 1e-2},
                                         Case{"bf16", Compressed("native/ddp", "bf16"), 4, 4, 1e-2},
                                         Case{"zero1", With("native/zero1"), 2, 2, kExact},
                                         Case{"zero1_bf16", Compressed("native/zero1", "bf16"), 4, 4, 1e-2},
                                         Case{"zero2_fp16", Compressed("native/zero2", "fp16"), 2, 2, 1e-2},
                                         Case{"zero3_bf16", Compressed("native/zero3", "bf16"), 2, 2, 1e-2},
                                         Case{"horovod_fp16", Compressed("native/horovod", "fp16"), 2, 2,
                                              1e-2},
                                         Case{"servers_2_and_1", Servers(1), 3, 2, kExact},
                                         Case{"servers_2_and_2", Servers(2), 4, 2, kExact},
                                         Case{"servers_3_and_1", Servers(1), 4, 3, kExact},
                                         Case{"pipeline_2_groups", Pipeline(2), 4, 2, kExact},
                                         Case{"pipeline_2_groups_in_parts", Pipeline(2, 3), 4, 2, kExact},
                                         Case{"pipeline_3_groups", Pipeline(2), 6, 3, kExact},
                                         Case{"pipeline_of_one_stage", Pipeline(1), 2, 2, kExact},
                                         Case{"tensor_2_groups", InTensors(2), 4, 2, kExact},
                                         Case{"tensor_3_parts", InTensors(3), 6, 2, kExact}),
                         [](const auto& info) { return std::string(info.param.name); });

// Local SGD and asynchronous servers have no mean gradient, error feedback makes it biased, and one group has
// nothing to compare with.
TEST(GradientNoise, IsNotReportedWhereItIsNotKnown) {
  const auto local = [](int64_t start) {
    return With("native/local-sgd", [=](TrainingSpec& s) {
      s.local_steps = 2;
      s.local_start_step = start;
    });
  };
  const auto later = [](const char* form) {
    TrainingSpec spec = Compressed("native/ddp", form);
    spec.compression_start_step = 10;
    return spec;
  };
  const Case cases[] = {{"local SGD", local(0), 2, 2, 0},
                        {"first steps of local SGD", local(10), 2, 2, 0},
                        {"powersgd", Compressed("native/ddp", "powersgd"), 2, 2, 0},
                        {"top-k", Compressed("native/ddp", "top-k"), 2, 2, 0},
                        {"onebit", Compressed("native/ddp", "onebit"), 2, 2, 0},
                        {"first steps of powersgd", later("powersgd"), 2, 2, 0},
                        {"powersgd of zero1", Compressed("native/zero1", "powersgd"), 2, 2, 0},
                        {"asynchronous servers", Servers(1, "async"), 3, 2, 0},
                        {"ssp", Servers(1, "ssp"), 3, 2, 0},
                        {"one rank with a server", Servers(1), 2, 1, 0},
                        {"one pipeline", Pipeline(2), 2, 1, 0},
                        {"one group of native/tensor", InTensors(2), 2, 1, 0},
                        {"no communication", With("native/none"), 2, 2, 0}};
  for (const Case& c : cases) {
    const Squares found = Reported(c.spec, c.ranks);
    EXPECT_TRUE(std::isnan(found.of_rank)) << c.name;
    EXPECT_TRUE(std::isnan(found.of_mean)) << c.name;
  }
}

// Gradients of samples are drawn from a normal distribution with these parameters.
constexpr int kDimensions = 64, kSteps = 300;
constexpr double kSquare = 2, kTrace = 32, kBatchOfSlice = 16;

// Returns mean gradients of kBatchOfSlice samples [kSteps, slices, kDimensions].
at::Tensor Draw(int slices) {
  at::manual_seed(9);
  return std::sqrt(kSquare / kDimensions) +
         std::sqrt(kTrace / kDimensions / kBatchOfSlice) * at::randn({kSteps, slices, kDimensions});
}

void ExpectTheTruth(const Squares& squares, int slices, const char* name) {
  const Noise noise = NoiseOf(squares, slices, kBatchOfSlice * slices);
  EXPECT_NEAR(noise.square, kSquare, 0.1 * kSquare) << name;
  EXPECT_NEAR(noise.trace, kTrace, 0.1 * kTrace) << name;
}

class Weights : public Model {
 public:
  Weights() { weights = register_parameter("weights", at::zeros({kDimensions})); }
  at::Tensor forward(const at::Tensor& gradient) override { return (weights * gradient).sum(); }
  at::Tensor weights;
};

// Returns the means over the steps of what a strategy measures with these gradients.
Squares Measured(const TrainingSpec& spec, int ranks, int slices) {
  const at::Tensor drawn = Draw(slices);
  std::vector<Squares> sums(ranks);
  OnRanks(ranks, [&](ThreadCommunicator& rank) {
    const int r = rank.rank();
    Weights model;
    const auto strategy = MakeStrategy(spec, model, rank);
    const bool trains = strategy->SliceOf(r, ranks).index >= 0;
    Sgd optimizer(strategy->Trained(), 0.9, 0, true);
    for (int s = 0; s < kSteps; ++s) {
      std::vector<at::Tensor> losses;
      if (trains) losses.push_back(model.forward(drawn[s][r]));
      LossTask task(losses, optimizer, 0);
      strategy->Step(task);
      if (!trains) continue;
      sums[r].of_rank += task.cost.rank_square.item<double>() / kSteps;
      sums[r].of_mean += task.cost.mean_square.item<double>() / kSteps;
    }
  });
  Squares mean{0, sums[0].of_mean};
  for (int r = 0; r < slices; ++r) mean.of_rank += sums[r].of_rank / slices;
  return mean;
}

TEST(GradientNoise, IsThatOfGradientsWithAKnownCovariance) {
  for (const int slices : {2, 3}) {
    const Case cases[] = {{"ddp", With("native/ddp"), slices, slices, kExact},
                          {"fp16", Compressed("native/ddp", "fp16"), slices, slices, 1e-2},
                          {"bf16", Compressed("native/ddp", "bf16"), slices, slices, 1e-2},
                          {"zero1 bf16", Compressed("native/zero1", "bf16"), slices, slices, 1e-2},
                          {"servers", Servers(1), slices + 1, slices, kExact}};
    const Squares ddp = Measured(cases[0].spec, slices, slices);
    for (const Case& c : cases) {
      const Squares found = Measured(c.spec, c.ranks, slices);
      ExpectTheTruth(found, slices, c.name);
      EXPECT_NEAR(found.of_rank, ddp.of_rank, c.tolerance * ddp.of_rank) << c.name;
      EXPECT_NEAR(found.of_mean, ddp.of_mean, c.tolerance * ddp.of_mean) << c.name;
    }
  }
}

// Two groups of two ranks. Each rank has two parameters of its own. The ranks of a group share three others.
TEST(GradientNoise, OfGroupsCountsEqualParametersOnce) {
  constexpr int kGroups = 2, kParts = 2;
  const at::Tensor drawn = Draw(kGroups);
  std::vector<Squares> sums(kGroups * kParts);
  OnRanks(kGroups * kParts, [&](ThreadCommunicator& rank) {
    const int r = rank.rank(), group = r / kParts, part = r % kParts;
    const auto equals = rank.Split(part);
    // First element and number of elements of each parameter in the gradient of the whole model.
    const std::vector<std::pair<int64_t, int64_t>> ranges = {
        {0, 3}, {3 + 25 * part, 20}, {53, 5}, {23 + 25 * part, 5}, {58, 6}};
    std::vector<at::Tensor> parameters;
    for (const auto& range : ranges) parameters.push_back(at::zeros({range.second}).requires_grad_(true));
    GroupGradients gradients(parameters, equals.get());
    for (const size_t i : {size_t{0}, size_t{2}, size_t{4}}) {
      if (part > 0) gradients.CountElsewhere(i);
    }
    for (int s = 0; s < kSteps; ++s) {
      gradients.BeginStep();
      const at::Tensor whole = drawn[s][group];
      std::vector<at::Tensor> products;
      for (size_t i = 0; i < ranges.size(); ++i)
        products.push_back((parameters[i] * whole.narrow(0, ranges[i].first, ranges[i].second)).sum());
      at::stack(products).sum().backward();
      gradients.Average();
      const at::Tensor squares = gradients.Squares(rank, at::kCPU);
      const double of_groups = drawn[s].square().sum().item<double>() / kGroups;
      EXPECT_NEAR(squares[0].item<double>(), of_groups, 1e-5 * of_groups) << s;
      const double of_mean = drawn[s].mean(0).square().sum().item<double>();
      EXPECT_NEAR(squares[1].item<double>(), of_mean, 1e-5 * of_mean) << s;
      sums[r].of_rank += squares[0].item<double>() / kSteps;
      sums[r].of_mean += squares[1].item<double>() / kSteps;
    }
  });
  for (const Squares& of_rank : sums) ExpectTheTruth(of_rank, kGroups, "groups");
}

TEST(GradientNoise, OfOneGroupIsNotKnown) {
  OnRanks(2, [](ThreadCommunicator& rank) {
    GroupGradients gradients({at::zeros({3}).requires_grad_(true)}, nullptr);
    EXPECT_FALSE(gradients.Squares(rank, at::kCPU).defined());
    EXPECT_EQ(rank.all_reduces, 0);
  });
}

}  // namespace
}  // namespace scalelab::trainer
