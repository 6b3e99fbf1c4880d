// Tests of native/zero3, whose parameters are gathered only while they are used, and of what it shares with native/zero2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <ostream>
#include <thread>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/local_strategy.h"
#include "worker/trainer/strategies/zero_strategy.h"

namespace scalelab::trainer {
namespace {

constexpr double kTolerance = 5e-6;  // only the order of additions differs
constexpr int kWidth = 16;

// A model that multiplies by square matrices, in an order that a test may change.
class Chain : public Model {
 public:
  explicit Chain(int layers) {
    for (int i = 0; i < layers; ++i) {
      order.push_back(i);
      matrices.push_back(register_parameter("matrix" + std::to_string(i), 0.3 * at::randn({kWidth, kWidth})));
    }
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = x;
    for (const int i : order) {
      y = y.mm(matrices[i]).tanh();
      if (after) after(i);
    }
    return y;
  }
  std::vector<at::Tensor> matrices;
  std::vector<int> order;
  std::function<void(int)> after;  // a layer's forward
};

std::shared_ptr<Chain> MakeChain(int layers) {
  at::manual_seed(4);
  return std::make_shared<Chain>(layers);
}

// Each parameter has its own bucket.
ZeroOptions Apart() { return {.stage = 3, .bucket_bytes = 16}; }

class CountingCommunicator : public ThreadCommunicator {
 public:
  using ThreadCommunicator::ThreadCommunicator;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override {
    if (gathers++ == fail_at) throw TrainerError("the network is down", ErrorKind::kCommunication);
    return ThreadCommunicator::StartAllGather(output, input);
  }
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override {
    auto work = ThreadCommunicator::StartReduceScatter(output, input, op);
    if (!slow) return work;
    return std::make_unique<Slow>();
  }
  int gathers = 0, fail_at = -1;
  bool slow = false;  // whether a reduction takes 50 ms

 private:
  class Slow : public Work {
    void Wait() override { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }
    bool Done() override { return false; }
  };
};

void OnTwoRanks(const std::function<void(CountingCommunicator&)>& body) {
  auto group = std::make_shared<ThreadCommunicator::Group>(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CountingCommunicator communicator(group, r);
      body(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

at::Tensor Inputs(int step, int rank) {
  return Images(step * 2 + rank, 1).flatten().narrow(0, 0, 4 * kWidth).view({4, kWidth});
}

// Runs a step on the parts of a batch.
void StepOn(Strategy& strategy, Sgd& optimizer, Model& model, const std::vector<at::Tensor>& parts) {
  std::vector<LossOfPart> losses;
  for (const at::Tensor& part : parts)
    losses.emplace_back([&model, part] { return model.forward(part).pow(2).mean(); });
  LossTask task(std::move(losses), optimizer, 0.05);
  strategy.Step(task);
}

TEST(Zero3, GathersTheNextLayerWhileOneIsUsedAndFreesThoseBefore) {
  constexpr int kLayers = 6;
  std::vector<std::shared_ptr<Chain>> models = {MakeChain(kLayers), MakeChain(kLayers)};
  OnTwoRanks([&](CountingCommunicator& c) {
    Chain& model = *models[c.rank()];
    ZeroStrategy strategy(model, c, Apart());
    Sgd optimizer(strategy.Trained(), 0.9, 0, true);
    for (const at::Tensor& matrix : model.matrices) EXPECT_EQ(matrix.storage().nbytes(), 0);
    std::vector<int> started, present;
    model.after = [&](int) {
      started.push_back(c.gathers);
      present.push_back(static_cast<int>(std::ranges::count_if(
          model.matrices, [](const at::Tensor& m) { return m.storage().nbytes() > 0; })));
    };
    StepOn(strategy, optimizer, model, {Inputs(0, c.rank())});
    EXPECT_THAT(started, testing::ElementsAre(1, 2, 3, 4, 5, 6)) << "the first step has no plan yet";
    EXPECT_THAT(present, testing::ElementsAre(1, 2, 2, 2, 2, 2));
    for (const at::Tensor& matrix : model.matrices) EXPECT_EQ(matrix.storage().nbytes(), 0);
    started.clear();
    present.clear();
    c.gathers = 0;
    StepOn(strategy, optimizer, model, {Inputs(1, c.rank())});
    EXPECT_THAT(started, testing::ElementsAre(2, 3, 4, 5, 6, 6));
    EXPECT_THAT(present, testing::ElementsAre(2, 3, 3, 3, 3, 2));
    // Backward begins with the two layers that forward used last, and does not use the first layer's matrix.
    EXPECT_EQ(c.gathers, kLayers + kLayers - 3);
    constexpr double kMatrix = 4.0 * kWidth * kWidth;
    const ModelMemory memory = strategy.Memory({});
    EXPECT_EQ(memory.parameters, kLayers * kMatrix / 2);
    EXPECT_EQ(memory.gradients, kLayers * kMatrix / 2);
    std::vector<Metric> metrics;
    strategy.AppendMetrics(metrics);
    ASSERT_EQ(metrics.size(), 1u);
    EXPECT_EQ(metrics[0].first, "memory/buckets_bytes");
    EXPECT_LE(metrics[0].second, 3 * kMatrix + 3 * kMatrix);
    strategy.EndEpoch();
    c.Barrier();
    for (int i = 0; i < kLayers; ++i) EXPECT_TRUE(model.matrices[i].equal(models[0]->matrices[i]));
    c.Barrier();
    model.after = nullptr;
    StepOn(strategy, optimizer, model, {Inputs(2, c.rank())});
    for (const at::Tensor& matrix : model.matrices) EXPECT_EQ(matrix.storage().nbytes(), 0);
  });
}

TEST(ZeroStrategy, CountsTheReductionsOfEachPartAsCommunication) {
  for (const int stage : {2, 3}) {
    std::vector<std::shared_ptr<Chain>> models = {MakeChain(1), MakeChain(1)};
    OnTwoRanks([&](CountingCommunicator& c) {
      c.slow = true;
      Chain& model = *models[c.rank()];
      ZeroStrategy strategy(model, c, {.stage = stage});
      Sgd optimizer(strategy.Trained(), 0.9, 0, true);
      const auto loss = [&] { return model.forward(Inputs(0, c.rank())).pow(2).mean(); };
      LossTask task(std::vector<LossOfPart>(3, loss), optimizer, 0.05);
      strategy.Step(task);
      StepTimes times;
      task.marks().AddTo(times);
      EXPECT_GE(times.comm_exposed, 3 * 0.05) << "stage " << stage;
    });
  }
}

double Deviation(Model& found, Model& expected) {
  double largest = 0;
  for (const auto& named : expected.named_parameters()) {
    const at::Tensor other = found.named_parameters()[named.key()];
    const double size = named.value().abs().max().clamp_min(1e-3).item<double>();
    largest = std::max(largest, (other - named.value()).abs().max().item<double>() / size);
  }
  return largest;
}

struct Case {
  int ranks;
  int64_t bucket_bytes, parts;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.ranks << " ranks"; }

class Zero3Gpt : public testing::TestWithParam<Case> {};

std::shared_ptr<Model> MakeGpt() {
  at::manual_seed(3);
  return MakeModel("gpt-nano", 64, {});
}

// The token embeddings are used by the first and by the last operation.
TEST_P(Zero3Gpt, TrainsLikeOneRank) {
  constexpr int kSteps = 20, kBatch = 8, kLength = 16;
  const auto tokens = [](int step) {
    return at::arange(kBatch * (kLength + 1), at::kLong)
        .mul(7 + step)
        .remainder(61)
        .view({kBatch, kLength + 1});
  };
  const auto train = [&](Strategy& strategy, Model& model, int rank, int ranks) {
    Sgd optimizer(strategy.Trained(), 0.9, 1e-3, true);
    const int64_t slice = kBatch / ranks, parts = std::min<int64_t>(slice, GetParam().parts);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<LossOfPart> losses;
      for (const at::Tensor& part : at::tensor_split(tokens(step).narrow(0, slice * rank, slice), parts)) {
        losses.emplace_back([&model, part, slice] {
          const at::Tensor logits = model.forward(part.narrow(1, 0, kLength));
          return at::cross_entropy_loss(logits, part.narrow(1, 1, kLength).flatten()) *
                 (static_cast<double>(part.size(0)) / static_cast<double>(slice));
        });
      }
      LossTask task(std::move(losses), optimizer, 0.02);
      strategy.Step(task);
    }
    strategy.EndEpoch();
  };
  const auto alone = MakeGpt();
  SoloCommunicator solo;
  LocalStrategy local(*alone, solo);
  train(local, *alone, 0, 1);
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < GetParam().ranks; ++r) models.push_back(MakeGpt());
  double most = 0;
  OnRanks(GetParam().ranks, [&](ThreadCommunicator& c) {
    ZeroStrategy strategy(*models[c.rank()], c, {.stage = 3, .bucket_bytes = GetParam().bucket_bytes});
    train(strategy, *models[c.rank()], c.rank(), c.size());
    std::vector<Metric> metrics;
    strategy.AppendMetrics(metrics);
    if (c.rank() == 0)
      most = std::map<std::string, double>(metrics.begin(), metrics.end())["memory/buckets_bytes"];
  });
  const double deviation = Deviation(*models[0], *alone);
  std::printf(
      "gpt-nano, %d ranks, %lld parts, buckets of %lld bytes: largest deviation %.1e, buckets in memory "
      "%.0f\n",
      GetParam().ranks, static_cast<long long>(GetParam().parts),
      static_cast<long long>(GetParam().bucket_bytes), deviation, most);
  EXPECT_LT(deviation, kTolerance);
  if (GetParam().bucket_bytes < 1 << 20) {
    EXPECT_LT(most, 0.75 * 4 * static_cast<double>(CountParameters(*alone)));
  }
  for (const auto& model : models) EXPECT_EQ(Deviation(*model, *models[0]), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Zero3Gpt,
                         testing::Values(Case{2, 16, 1}, Case{2, 30'000, 1}, Case{2, 30'000, 3},
                                         Case{4, 30'000, 1}, Case{4, 30'000, 2}, Case{4, 25 << 20, 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + "_ranks_" +
                                  std::to_string(info.param.bucket_bytes) + "_bytes_" +
                                  std::to_string(info.param.parts) + "_parts";
                         });

// A parameter with a bucket of its own that some ranks use in some steps only.
TEST(Zero3, FollowsOnePlanIfRanksUseDifferentParameters) {
  for (const int first_user : {0, 1}) {
    const auto uses = [&](int rank, int step) {
      return step == 0 ? rank == first_user : (step + rank) % 3 == 0;
    };
    const auto models = EqualModels(3);
    const auto loss = [&](SmallModel& model, int rank, int step) {
      model.with_bias = uses(rank, step);
      return LossOf(model, Images(step * 8 + rank * 4, 4));
    };
    constexpr int kSteps = 9;
    OnRanks(2, [&](ThreadCommunicator& c) {
      SmallModel& model = *models[c.rank()];
      ZeroStrategy strategy(model, c, Apart());
      Sgd optimizer(strategy.Trained(), 0.9, 0, true);
      for (int step = 0; step < kSteps; ++step) {
        LossTask task({LossOfPart([&] { return loss(model, c.rank(), step); })}, optimizer, 0.02);
        strategy.Step(task);
      }
      strategy.EndEpoch();
    });
    SoloCommunicator solo;
    LocalStrategy local(*models[2], solo);
    Sgd optimizer(local.Trained(), 0.9, 0, true);
    for (int step = 0; step < kSteps; ++step) {
      LossTask task({LossOfPart([&] { return (loss(*models[2], 0, step) + loss(*models[2], 1, step)) / 2; })},
                    optimizer, 0.02);
      local.Step(task);
    }
    EXPECT_LT(Deviation(*models[0], *models[2]), kTolerance) << first_user;
    EXPECT_EQ(Deviation(*models[1], *models[0]), 0);
  }
}

TEST(Zero3, ReportsAnOrderOfOperationsThatThePlanDoesNotHave) {
  std::vector<std::shared_ptr<Chain>> models = {MakeChain(6), MakeChain(6)};
  OnTwoRanks([&](CountingCommunicator& c) {
    Chain& model = *models[c.rank()];
    ZeroStrategy strategy(model, c, Apart());
    Sgd optimizer(strategy.Trained(), 0.9, 0, true);
    StepOn(strategy, optimizer, model, {Inputs(0, c.rank())});
    std::ranges::reverse(model.order);
    try {
      StepOn(strategy, optimizer, model, {Inputs(1, c.rank())});
      ADD_FAILURE() << "no error";
    } catch (const TrainerError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("in another order than in the first step"));
    }
  });
}

TEST(Zero3, ReportsAFailureOfTheNetworkInForwardAndInBackward) {
  for (const int fail_at : {2, 8}) {
    std::vector<std::shared_ptr<Chain>> models = {MakeChain(6), MakeChain(6)};
    OnTwoRanks([&](CountingCommunicator& c) {
      Chain& model = *models[c.rank()];
      ZeroStrategy strategy(model, c, Apart());
      Sgd optimizer(strategy.Trained(), 0.9, 0, true);
      StepOn(strategy, optimizer, model, {Inputs(0, c.rank())});
      c.gathers = 0;
      c.fail_at = fail_at;
      try {
        StepOn(strategy, optimizer, model, {Inputs(1, c.rank())});
        ADD_FAILURE() << "no error";
      } catch (const TrainerError& error) {
        EXPECT_STREQ(error.what(), "the network is down");
      }
    });
  }
}

}  // namespace
}  // namespace scalelab::trainer
