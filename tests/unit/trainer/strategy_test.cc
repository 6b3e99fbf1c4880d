#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catalog/engines.h"
#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/strategies/ddp_strategy.h"
#include "worker/trainer/strategies/local_strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kMiB = 1 << 20;

std::vector<at::Tensor> OfMiB(std::initializer_list<double> sizes) {
  std::vector<at::Tensor> tensors;
  for (double size : sizes) tensors.push_back(at::empty({static_cast<int64_t>(size * kMiB / 4)}));
  return tensors;
}

using Buckets = std::vector<std::vector<int>>;

Buckets Assign(const std::vector<at::Tensor>& parameters) {
  return AssignBuckets(parameters, ReverseOrder(parameters.size()), {});
}

// Options with one bucket per parameter.
DdpOptions Apart() { return {.caps = {.first_bytes = 16, .bytes = 16}}; }

TEST(MakeStrategy, HasTheNativeEnginesOfTheCatalog) {
  std::set<std::string> expected, known;
  for (const Engine& engine : Engines()) {
    if (engine.program == Engine::Program::kTrainer) expected.emplace(engine.name);
  }
  TrainingSpec spec;
  spec.engine = "native/unknown";
  SmallModel model;
  SoloCommunicator communicator;
  std::string message;
  try {
    MakeStrategy(spec, model, communicator);
  } catch (const TrainerError& error) {
    message = error.what();
  }
  const std::string start = "unknown engine \"native/unknown\": this trainer has ", comma = ", ";
  ASSERT_EQ(message.substr(0, start.size()), start);
  for (size_t begin = start.size(); begin < message.size();) {
    const size_t end = std::min(message.find(comma, begin), message.size());
    known.insert(message.substr(begin, end - begin));
    begin = end + comma.size();
  }
  EXPECT_EQ(known, expected);
}

TEST(AssignBuckets, ReversesParametersAndMakesTheFirstBucketSmall) {
  EXPECT_EQ(Assign(OfMiB({10, 10, 20, 0.5, 0.5, 0.25})), (Buckets{{5, 4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(Assign(OfMiB({0.25, 0.25})), (Buckets{{1, 0}}));
}

TEST(AssignBuckets, KeepsTypesApart) {
  std::vector<at::Tensor> parameters = OfMiB({0.1, 0.1, 0.1});
  parameters[1] = parameters[1].to(at::kDouble);
  EXPECT_EQ(Assign(parameters), (Buckets{{2}, {1}, {0}}));
}

TEST(DdpStrategy, StartsAllRanksFromRankZerosParametersAndBuffers) {
  std::vector<std::shared_ptr<SmallModel>> models(3);
  for (int r = 0; r < 3; ++r) at::manual_seed(r), models[r] = std::make_shared<SmallModel>();
  const at::Tensor expected = models[0]->first.detach().clone();
  OnRanks(3, [&](ThreadCommunicator& c) { DdpStrategy strategy(*models[c.rank()], c, {}); });
  for (auto& model : models) {
    EXPECT_TRUE(model->first.equal(expected));
    EXPECT_TRUE(model->buffers()[0].equal(models[0]->buffers()[0]));
  }
}

TEST(DdpStrategy, KeepsGradientsInBucketsWithTheStridesOfTheirParameters) {
  const auto models = EqualModels(3);
  OnRanks(3, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, Apart());
    ASSERT_EQ(strategy.buckets().size(), 4u);
    for (int step = 0; step < 3; ++step) {
      const BackwardCost cost = strategy.Backward(LossOf(model, Images(4 * c.rank(), 4)));
      EXPECT_GE(cost.bytes, (8 * 27 + 100 + 4 * 72 + 4) * 4);
      EXPECT_FALSE(model.unused.grad().defined());
      EXPECT_EQ(model.first.grad().strides(), model.first.strides());
      for (const at::Tensor& gradient : {model.first.grad(), model.second.grad(), model.bias.grad()}) {
        EXPECT_EQ(std::ranges::count_if(strategy.buckets(),
                                        [&](const GradientBucket& bucket) {
                                          return std::ranges::any_of(
                                              bucket.views, [&](const at::Tensor& view) {
                                                return view.data_ptr() == gradient.data_ptr();
                                              });
                                        }),
                  1);
      }
    }
  });
}

std::vector<int> ParametersInBuckets(const DdpStrategy& strategy) {
  std::vector<int> all;
  for (const GradientBucket& bucket : strategy.buckets()) {
    all.insert(all.end(), bucket.parameters.begin(), bucket.parameters.end());
  }
  return all;
}

// Parameters are first 0, unused 1, second 2, bias 3. The bias has no gradient on rank 1.
TEST(DdpStrategy, RebuildsBucketsInTheOrderOfRankZerosGradients) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, {});
    auto step = [&] {
      model.with_bias = c.rank() == 0;
      strategy.Backward(LossOf(model, Images(0, 4)));
      return ParametersInBuckets(strategy);
    };
    EXPECT_EQ(step(), (std::vector<int>{3, 2, 1, 0}));
    const std::vector<int> order = step();
    EXPECT_EQ(order, (std::vector<int>{3, 2, 0, 1}));
    EXPECT_EQ(step(), order);
  });
}

class WatchedCommunicator : public ThreadCommunicator {
 public:
  using ThreadCommunicator::ThreadCommunicator;
  void Broadcast(const at::Tensor& tensor, int root) override {
    if (before_broadcast) before_broadcast();
    ThreadCommunicator::Broadcast(tensor, root);
  }
  std::function<void()> before_broadcast;
};

// Gradients keep the memory of the old buckets, so both kinds of buckets would exist at the same time.
TEST(DdpStrategy, DiscardsGradientsBeforeItRebuildsBuckets) {
  const auto models = EqualModels(2);
  const auto group = std::make_shared<ThreadCommunicator::Group>(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      WatchedCommunicator c(group, r);
      SmallModel& model = *models[r];
      DdpStrategy strategy(model, c, {});
      strategy.Backward(LossOf(model, Images(0, 4)));
      EXPECT_TRUE(model.first.grad().defined());
      bool rebuilt = false;
      c.before_broadcast = [&] {  // of the order of parameters
        rebuilt = true;
        for (const at::Tensor& parameter : model.parameters()) EXPECT_FALSE(parameter.grad().defined());
      };
      strategy.Backward(LossOf(model, Images(0, 4)));
      EXPECT_TRUE(rebuilt);
      EXPECT_TRUE(model.first.grad().defined());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DdpStrategy, LeavesUnusedParametersOfAStaticGraphOutOfTheBuckets) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, {.static_graph = true});
    model.with_bias = c.rank() == 1;  // if any rank uses a parameter, it counts as used
    for (int step = 0; step < 2; ++step) strategy.Backward(LossOf(model, Images(0, 4)));
    EXPECT_EQ(ParametersInBuckets(strategy), (std::vector<int>{2, 0, 3}));
    EXPECT_FALSE(model.unused.grad().defined());
    EXPECT_TRUE(model.bias.grad().defined());
    EXPECT_THROW(strategy.Accumulate(model.unused.sum()), TrainerError);
  });
}

// A host tensor that is copied to a GPU cannot be part of a recorded step.
TEST(DdpStrategy, AStepOfAStaticGraphCopiesNothingFromTheHostToItsBuckets) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, {.static_graph = true});
    strategy.Backward(LossOf(model, Images(0, 4)));
    strategy.Backward(LossOf(model, Images(0, 4)));
    EXPECT_EQ(strategy.WhyNotRecorded(), "");
    // The parameter without a gradient is known from an earlier step. Every rank reports all other parameters
    // as used, without checking.
    EXPECT_TRUE(strategy.buckets().back().tail.equal(at::ones({4})));
  });
}

// If a recording fails, the step is incomplete.
TEST(DdpStrategy, TrainsAsBeforeAfterADiscardedStep) {
  const auto models = EqualModels(4);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel &model = *models[c.rank()], &other = *models[2 + c.rank()];
    DdpStrategy strategy(model, c, {}), reference(other, c, {});
    for (int step = 0; step < 3; ++step) {
      strategy.Accumulate(LossOf(model, Images(8, 4)));  // the step fails after this
      strategy.DiscardStep();
      const BackwardCost cost = strategy.Backward(LossOf(model, Images(0, 4)));
      const BackwardCost expected = reference.Backward(LossOf(other, Images(0, 4)));
      EXPECT_TRUE(model.first.grad().equal(other.first.grad())) << step;
      EXPECT_TRUE(cost.rank_square.equal(expected.rank_square)) << step;
    }
  });
}

TEST(DdpStrategy, SynchronisesOnceAStep) {
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, {});
    c.all_reduces = 0;
    strategy.Accumulate(LossOf(model, Images(0, 4)));
    strategy.Accumulate(LossOf(model, Images(4, 4)));
    EXPECT_EQ(c.all_reduces, 0);
    strategy.Backward(LossOf(model, Images(8, 4)));
    EXPECT_EQ(c.all_reduces, 1);
  });
}

TEST(DdpStrategy, CopyingWholeBucketsGivesTheSameGradients) {
  constexpr int kSteps = 4;
  std::vector<at::Tensor> gradients[2];  // of rank 0
  std::vector<int> reduced[2];
  for (const bool whole : {false, true}) {
    const auto models = EqualModels(2);
    OnRanks(2, [&](ThreadCommunicator& c) {
      SmallModel& model = *models[c.rank()];
      DdpOptions options = Apart();
      options.caps.bytes = 64;  // several parameters in a bucket
      options.copy_whole_buckets = whole;
      DdpStrategy strategy(model, c, options);
      for (int step = 0; step < kSteps; ++step) {
        strategy.Accumulate(LossOf(model, Images(8 * c.rank(), 4)));
        strategy.Backward(LossOf(model, Images(8 * c.rank() + 4, 4)));
        if (c.rank() != 0) continue;
        for (const at::Tensor& parameter : model.parameters())
          gradients[whole].push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
        reduced[whole].push_back(c.all_reduces);
      }
    });
  }
  EXPECT_EQ(reduced[0], reduced[1]);
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    ASSERT_EQ(gradients[0][i].defined(), gradients[1][i].defined()) << i;
    if (gradients[0][i].defined()) {
      EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
      EXPECT_EQ(gradients[0][i].strides(), gradients[1][i].strides()) << i;
    }
  }
}

int StartedBeforeFirstLayer(const DdpOptions& options, int steps) {
  std::vector<int> started(2, -1);
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, options);
    for (int step = 0; step < steps; ++step) {
      const at::Tensor loss = LossOf(model, Images(0, 4));
      // Autograd reaches this tensor after the gradients of the second convolution and before those
      // of the first.
      int before = 0;
      model.between.register_hook([&](const at::Tensor&) { started[c.rank()] = c.all_reduces - before; });
      before = c.all_reduces;
      strategy.Backward(loss);
    }
  });
  EXPECT_EQ(started[0], started[1]);
  return started[0];
}

TEST(DdpStrategy, OverlapsUpToTheFirstUnusedParameter) {
  DdpOptions options = Apart();
  // In the first step the buckets are bias, second, unused, first.
  EXPECT_EQ(StartedBeforeFirstLayer(options, 1), 2);
  options.find_unused = true;
  EXPECT_EQ(StartedBeforeFirstLayer(options, 1), 3)
      << "the bucket of the unused parameter does not wait for the end";
  options.find_unused = false;
  options.overlap = false;
  EXPECT_EQ(StartedBeforeFirstLayer(options, 2), 0) << "native/serial";
}

std::map<std::string, double> BucketMetrics(DdpOptions options, int steps) {
  std::map<std::string, double> metrics;
  const auto models = EqualModels(2);
  OnRanks(2, [&](ThreadCommunicator& c) {
    DdpStrategy strategy(*models[c.rank()], c, options);
    for (int step = 0; step < steps; ++step) strategy.Backward(LossOf(*models[c.rank()], Images(0, 4)));
    std::vector<Metric> of_rank;
    strategy.AppendMetrics(of_rank);
    if (c.rank() == 0) metrics = {of_rank.begin(), of_rank.end()};
  });
  return metrics;
}

TEST(DdpStrategy, RecordsWhenItsBucketsAreReady) {
  DdpOptions options = Apart();
  EXPECT_TRUE(BucketMetrics(options, 3).empty());
  options.record_buckets = true;
  EXPECT_TRUE(BucketMetrics(options, 0).empty());
  auto metrics = BucketMetrics(options, 3);
  ASSERT_TRUE(metrics.contains("bucket/3/ready_s"));
  EXPECT_FALSE(metrics.contains("bucket/4/ready_s"));
  double before = 0, bytes = 0;
  for (const std::string bucket : {"bucket/0", "bucket/1", "bucket/2", "bucket/3"}) {
    EXPECT_GE(metrics[bucket + "/ready_s"], before) << bucket;
    before = metrics[bucket + "/ready_s"];
    bytes += metrics[bucket + "/bytes"];
  }
  EXPECT_GT(bytes, 0);
  EXPECT_LT(metrics["bucket/0/ready_s"], metrics["bucket/backward_s"]) << "it is ready while backward runs";

  options.overlap = false;
  metrics = BucketMetrics(options, 3);
  EXPECT_GE(metrics["bucket/0/ready_s"], metrics["bucket/backward_s"]) << "native/serial";
}

TEST(DdpStrategy, BroadcastsTheBuffersOfRankZero) {
  OnRanks(3, [&](ThreadCommunicator& c) {
    SmallModel model;
    DdpStrategy strategy(model, c, {});
    model.buffers()[0].fill_(c.rank() + 5);
    strategy.SyncBuffers();
    EXPECT_TRUE(model.buffers()[0].equal(at::full({3}, 5.0f)));
  });
}

TEST(MakeStrategy, UsesNoBucketsForASingleRank) {
  SoloCommunicator solo;
  SmallModel model;
  const auto made = MakeStrategy({}, model, solo);
  auto* const strategy = dynamic_cast<LocalStrategy*>(made.get());
  ASSERT_NE(strategy, nullptr);
  strategy->Backward(LossOf(model, Images(0, 4)));
  const at::Tensor once = model.first.grad().clone();
  strategy->Backward(LossOf(model, Images(0, 4)));
  EXPECT_TRUE(model.first.grad().equal(once)) << "gradients of the previous step must be discarded";
  EXPECT_FALSE(model.unused.grad().defined());
}

TEST(MakeStrategy, RefusesAnUnknownEngine) {
  SoloCommunicator solo;
  SmallModel model;
  TrainingSpec spec;
  spec.engine = "native/gossip";
  EXPECT_THROW(MakeStrategy(spec, model, solo), TrainerError);
}

}  // namespace
}  // namespace scalelab::trainer
