// Tests of compressed gradients.
#include "worker/trainer/strategies/gradient_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/compressors.h"
#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/zero_strategy.h"

namespace scalelab::trainer {
namespace {

using Form = CompressionOptions::Form;

struct Case {
  const char* name;
  CompressionOptions options;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kForms[] = {{"powersgd", {.form = Form::kPowerSgd, .rank = 2}},
                       {"top_k", {.form = Form::kTopK, .ratio = 0.1}},
                       {"onebit", {.form = Form::kOneBit}}};

// Returns the gradients of a rank: a matrix, a tensor of four dimensions with channels last, and a bias. Each
// call returns the same values.
std::vector<at::Tensor> GradientsOf(int rank) {
  const auto wave = [&](int64_t count, double phase) {
    return (at::arange(count, at::kDouble) * (0.37 + 0.11 * rank) + phase).sin().to(at::kFloat);
  };
  return {wave(48 * 40, 1).view({48, 40}),
          wave(32 * 16 * 9, 2).view({32, 16, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast), wave(48, 3)};
}

at::Tensor MeanOver(int ranks, size_t k) {
  at::Tensor sum = GradientsOf(0)[k];
  for (int r = 1; r < ranks; ++r) sum = sum + GradientsOf(r)[k];
  return sum / ranks;
}

GradientBucket BucketLike(const std::vector<at::Tensor>& tensors) {
  return MakeBucket(tensors, {0, 1, 2}, 3);
}

double Norm(const at::Tensor& t) { return t.norm().item<double>(); }

class Compression : public testing::TestWithParam<std::tuple<Case, int>> {
 protected:
  enum class Engine { kExactDdp, kDdp, kZero1 };  // the last two compress gradients

  // Trains SmallModel. Returns the models of all ranks.
  std::vector<std::shared_ptr<SmallModel>> Train(Engine engine, int steps) {
    const auto models = EqualModels(ranks());
    OnRanks(ranks(), [&](ThreadCommunicator& c) {
      SmallModel& model = *models[c.rank()];
      const auto strategy = Make(engine, model, c);
      Sgd optimizer(strategy->Trained(), 0.9, 0, true);
      for (int step = 0; step < steps; ++step) {
        LossTask task({LossOf(model, Images((4 * step + c.rank()) % 60 * 4, 4))}, optimizer, 0.02);
        strategy->Step(task);
        EXPECT_EQ(task.cost.mean_square.defined(), engine == Engine::kExactDdp);
      }
      std::vector<Metric> metrics;
      strategy->AppendMetrics(metrics);
      const std::map<std::string_view, double> found(metrics.begin(), metrics.end());
      EXPECT_EQ(found.contains("compression/error"), engine != Engine::kExactDdp);
    });
    for (int r = 1; r < ranks(); ++r) EXPECT_TRUE(models[r]->first.equal(models[0]->first));
    return models;
  }

  const CompressionOptions& options() const { return std::get<0>(GetParam()).options; }
  int ranks() const { return std::get<1>(GetParam()); }

 private:
  std::unique_ptr<Strategy> Make(Engine engine, Model& model, Communicator& communicator) const {
    if (engine == Engine::kExactDdp)
      return std::make_unique<DdpStrategy>(model, communicator, DdpOptions{}, nullptr);
    auto reducer = MakeCompressingReducer(communicator, options());
    if (engine == Engine::kDdp)
      return std::make_unique<DdpStrategy>(model, communicator, DdpOptions{}, std::move(reducer));
    // With three buckets, the first one is complete before the last one starts.
    return std::make_unique<ZeroStrategy>(model, communicator, ZeroOptions{.bucket_bytes = 100},
                                          std::move(reducer));
  }
};

// The sum of the results approaches the sum of the gradients, because error feedback loses nothing. The
// results of all ranks are bitwise equal.
TEST_P(Compression, AddsWhatItLeavesOutToLaterSteps) {
  constexpr int kSteps = 60;
  std::vector<std::vector<at::Tensor>> results(ranks());
  OnRanks(ranks(), [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> gradients = GradientsOf(c.rank());
    const GradientBucket bucket = BucketLike(gradients);
    const auto reducer = MakeCompressingReducer(c, options());
    std::vector<at::Tensor> sums(gradients.size());
    double first_error = 0;
    for (int step = 0; step < kSteps; ++step) {
      for (size_t k = 0; k < gradients.size(); ++k) bucket.views[k].copy_(gradients[k]);
      bucket.tail.zero_();
      bucket.tail[1] = c.rank() == 1 ? 1 : 0;
      reducer->BeginStep();
      reducer->Start(bucket)->Wait();
      EXPECT_LT(reducer->bytes(), static_cast<int64_t>(bucket.flat.nbytes()) / 2);
      EXPECT_GT(bucket.tail[1].item<float>(), 0);
      EXPECT_EQ(bucket.tail[0].item<float>(), 0);
      for (size_t k = 0; k < gradients.size(); ++k) {
        sums[k] = step == 0 ? bucket.views[k].clone() : sums[k] + bucket.views[k];
      }
      if (step == 0) first_error = Norm(bucket.views[0] - MeanOver(c.size(), 0));
    }
    EXPECT_TRUE(at::allclose(bucket.views[2], MeanOver(c.size(), 2))) << "a bias is averaged exactly";
    for (size_t k = 0; k < 2; ++k) {
      const at::Tensor mean = MeanOver(c.size(), k);
      EXPECT_LT(Norm(sums[k] / kSteps - mean), 0.2 * Norm(mean)) << "tensor " << k;
    }
    EXPECT_GT(first_error, 1e-3 * Norm(MeanOver(c.size(), 0)))
        << "something must be left out, or this shows nothing";
    std::vector<Metric> metrics;
    reducer->AppendMetrics(metrics);
    std::map<std::string_view, double> found(metrics.begin(), metrics.end());
    EXPECT_GT(found.at("compression/error"), 0);
    EXPECT_LT(found.at("compression/error"), 1);
    EXPECT_GT(found.at("compression/ratio"), 2);
    results[c.rank()] = sums;
  });
  for (int r = 1; r < ranks(); ++r) {
    for (size_t k = 0; k < results[0].size(); ++k) EXPECT_TRUE(results[r][k].equal(results[0][k]));
  }
}

TEST_P(Compression, IsExactInTheFirstSteps) {
  CompressionOptions later = options();
  later.start_step = 2;
  OnRanks(ranks(), [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const GradientBucket bucket = BucketLike(GradientsOf(c.rank()));
    const auto reducer = MakeCompressingReducer(c, later);
    for (int step = 0; step < 3; ++step) {
      for (size_t k = 0; k < 3; ++k) bucket.views[k].copy_(GradientsOf(c.rank())[k]);
      reducer->BeginStep();
      reducer->Start(bucket)->Wait();
      const bool exact = at::allclose(bucket.views[0], MeanOver(c.size(), 0), 1e-6, 1e-6);
      EXPECT_EQ(exact, step < 2) << "step " << step;
    }
  });
}

// Training with error feedback stays close to exact training.
TEST_P(Compression, TrainsLikeDdpUpToAMargin) {
  const auto loss = [](SmallModel& model) { return LossOf(model, Images(0, 240)).item<double>(); };
  const auto train = [&](Engine engine) { return loss(*Train(engine, 200)[0]); };
  const double before = loss(*EqualModels(1)[0]), exact = train(Engine::kExactDdp);
  EXPECT_LT(exact, 0.5 * before);
  for (const Engine engine : {Engine::kDdp, Engine::kZero1}) {
    const double compressed = train(engine);
    std::printf("loss %.4f before, %.4f with exact gradients, %.4f compressed\n", before, exact, compressed);
    EXPECT_LT(compressed, exact + 0.1 * before);
  }
}

// The optimizer's state is divided, which does not change the result.
TEST_P(Compression, OfZero1TakesTheStepsOfDdp) {
  constexpr int kSteps = 5;
  constexpr double kTolerance = 5e-6;  // as with exact gradients
  const auto exact = Train(Engine::kExactDdp, kSteps), ddp = Train(Engine::kDdp, kSteps),
             zero1 = Train(Engine::kZero1, kSteps);
  double left_out = 0;
  for (const auto& named : ddp[0]->named_parameters()) {
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    const auto deviation = [&](const SmallModel& other) {
      return (other.named_parameters()[named.key()] - named.value()).abs().max().item<double>() / size;
    };
    EXPECT_LT(deviation(*zero1[0]), kTolerance) << named.key();
    left_out = std::max(left_out, deviation(*exact[0]));
  }
  EXPECT_GT(left_out, 10 * kTolerance) << "something must be left out, or this shows nothing";
}

TEST(ErrorFeedback, IsRefusedByEnginesThatDivideGradients) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    TrainingSpec spec;
    spec.gradient_compression = "powersgd";
    for (const char* engine : {"native/zero2", "native/zero3"}) {
      spec.engine = engine;
      EXPECT_THROW(MakeStrategy(spec, *models[c.rank()], c), TrainerError) << engine;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Forms, Compression,
                         testing::Combine(testing::ValuesIn(kForms), testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  std::to_string(std::get<1>(info.param)) + "_ranks";
                         });

TEST(PowerSgd, IsExactForAMatrixOfItsRank) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const at::Tensor column = at::arange(30, at::kFloat).view({30, 1}) * (c.rank() + 1),
                     row = at::ones({1, 20});
    const at::Tensor matrix = column.mm(row), error = at::zeros({30, 20});
    MakePowerSgd(c, 3)->Start({{0, matrix, error}})->Finish();
    EXPECT_TRUE(at::allclose(matrix, at::arange(30, at::kFloat).view({30, 1}).mm(row) * 1.5, 1e-4, 1e-4));
  });
}

// A parameter without a gradient in one step gets one later.
TEST(PowerSgd, RecoversFromAMatrixOfZeros) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const auto compressor = MakePowerSgd(c, 2);
    const at::Tensor expected = at::ones({20, 30}), error = at::zeros({20, 30}), matrix = at::zeros({20, 30});
    compressor->Start({{0, matrix, error}})->Finish();
    EXPECT_EQ(matrix.abs().max().item<float>(), 0);
    matrix.copy_(expected);
    compressor->Start({{0, matrix, error}})->Finish();
    EXPECT_TRUE(at::allclose(matrix, expected, 1e-4, 1e-4)) << matrix;
  });
}

TEST(TopK, SendsTheLargestElementsOfEachRank) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const at::Tensor matrix = at::ones({2, 5}), error = at::zeros({2, 5});
    matrix[c.rank()][3] = -8;
    MakeTopK(c, 0.1)->Start({{0, matrix, error}})->Finish();
    at::Tensor expected = at::zeros({2, 5});
    expected[0][3] = expected[1][3] = -4;
    EXPECT_TRUE(matrix.equal(expected)) << matrix;
    EXPECT_EQ(error[c.rank()][3].item<float>(), 0);
    EXPECT_EQ(error.sum().item<float>(), 9);
  });
}

TEST(OneBit, SendsSignsAndTheirMeans) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    const at::NoGradGuard no_grad;
    const at::Tensor matrix =
                         at::tensor({1.f, 3.f, -2.f, -4.f, 5.f, 5.f, 5.f, 5.f, 9.f, 1.f, 1.f}).view({1, 11}),
                     error = at::zeros({1, 11}), before = matrix.clone();
    MakeOneBit(c)->Start({{0, matrix, error}})->Finish();
    const float mean = 35.f / 9;
    at::Tensor expected = at::full({1, 11}, mean);
    expected[0][2] = expected[0][3] = -3;
    EXPECT_TRUE(at::allclose(matrix, expected)) << matrix;
    EXPECT_TRUE(at::allclose(error, before - expected));
  });
}

}  // namespace
}  // namespace scalelab::trainer
