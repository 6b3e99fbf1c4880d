#include <gtest/gtest.h>

#include <algorithm>

#include "tests/fakes/thread_communicator.h"
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

TEST(AssignBuckets, ReversesParametersAndMakesTheFirstBucketSmall) {
  EXPECT_EQ(AssignBuckets(OfMiB({10, 10, 20, 0.5, 0.5, 0.25}), 25 * kMiB), (Buckets{{5, 4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(AssignBuckets(OfMiB({0.25, 0.25}), 25 * kMiB), (Buckets{{1, 0}}));
}

TEST(AssignBuckets, KeepsTypesApart) {
  std::vector<at::Tensor> parameters = OfMiB({0.1, 0.1, 0.1});
  parameters[1] = parameters[1].to(at::kDouble);
  EXPECT_EQ(AssignBuckets(parameters, 25 * kMiB), (Buckets{{2}, {1}, {0}}));
}

// Two convolutions and a parameter that takes no part.
class SmallModel : public Model {
 public:
  SmallModel() {
    first = register_parameter("first", at::randn({8, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
    unused = register_parameter("unused", at::randn({100}));
    second = register_parameter("second", at::randn({4, 8, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast));
    register_buffer("statistics", at::randn({3}));
  }
  at::Tensor forward(const at::Tensor& images) override {
    between = at::conv2d(images, first);
    return at::conv2d(between.relu(), second).mean({2, 3});
  }
  at::Tensor first, unused, second, between;
};

at::Tensor Images(int64_t first, int64_t count) {
  // Made once: ranks are threads here, and they share Torch's random generator.
  static const at::Tensor all = [] {
    torch::manual_seed(77);
    return at::randn({12, 3, 8, 8});
  }();
  return all.narrow(0, first, count);
}

at::Tensor LossOf(SmallModel& model, const at::Tensor& images) { return model.forward(images).pow(2).mean(); }

TEST(DdpStrategy, StartsAllRanksFromRankZerosParametersAndBuffers) {
  std::vector<std::shared_ptr<SmallModel>> models(3);
  for (int r = 0; r < 3; ++r) torch::manual_seed(r), models[r] = std::make_shared<SmallModel>();
  const at::Tensor expected = models[0]->first.detach().clone();
  OnRanks(3, [&](ThreadCommunicator& c) { DdpStrategy strategy(*models[c.rank()], c, 25 * kMiB); });
  for (auto& model : models) {
    EXPECT_TRUE(model->first.equal(expected));
    EXPECT_TRUE(model->buffers()[0].equal(models[0]->buffers()[0]));
  }
}

TEST(DdpStrategy, GivesEveryRankTheGradientOfTheWholeBatchStepAfterStep) {
  torch::manual_seed(5);
  SmallModel whole;
  std::vector<std::shared_ptr<SmallModel>> models(3);
  for (auto& model : models) {
    model = std::make_shared<SmallModel>();
    const at::NoGradGuard no_grad;
    model->first.copy_(whole.first), model->second.copy_(whole.second);
  }
  LossOf(whole, Images(0, 12)).backward();
  OnRanks(3, [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    DdpStrategy strategy(model, c, 64);  // every parameter has a bucket of its own
    ASSERT_EQ(strategy.buckets().size(), 3u);
    for (int step = 0; step < 3; ++step) {
      const BackwardCost cost = strategy.Backward(LossOf(model, Images(4 * c.rank(), 4)));
      EXPECT_GE(cost.bytes, (8 * 27 + 100 + 4 * 72) * 4);
      EXPECT_TRUE(at::allclose(model.first.grad(), whole.first.grad(), 1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(model.second.grad(), whole.second.grad(), 1e-4, 1e-5));
      EXPECT_TRUE(model.unused.grad().equal(at::zeros({100})));
      EXPECT_EQ(model.first.grad().strides(), model.first.strides());
      for (const GradientBucket& bucket : strategy.buckets()) {
        for (const at::Tensor& gradient : {model.first.grad(), model.unused.grad(), model.second.grad()}) {
          const bool inside = std::ranges::any_of(
              bucket.views, [&](const at::Tensor& view) { return view.data_ptr() == gradient.data_ptr(); });
          EXPECT_EQ(inside, gradient.is_alias_of(bucket.flat));
        }
      }
    }
  });
}

TEST(DdpStrategy, StartsFullBucketsWhileBackwardStillRuns) {
  OnRanks(2, [&](ThreadCommunicator& c) {
    torch::manual_seed(5);
    SmallModel model;
    model.unused.set_requires_grad(false);
    DdpStrategy strategy(model, c, 64);
    const at::Tensor loss = LossOf(model, Images(0, 4));
    c.all_reduces = 0;
    int before_first_layer = -1;
    // The engine reaches this tensor after the second convolution's gradients and before the first one's.
    model.between.register_hook([&](const at::Tensor&) { before_first_layer = c.all_reduces; });
    strategy.Backward(loss);
    EXPECT_EQ(before_first_layer, 1);
    EXPECT_EQ(c.all_reduces, 2);
  });
}

TEST(DdpStrategy, BringsBuffersOfRankZeroToAll) {
  OnRanks(3, [&](ThreadCommunicator& c) {
    SmallModel model;
    DdpStrategy strategy(model, c, 25 * kMiB);
    model.buffers()[0].fill_(c.rank() + 5);
    strategy.SyncBuffers();
    EXPECT_TRUE(model.buffers()[0].equal(at::full({3}, 5.0f)));
  });
}

TEST(MakeStrategy, SparesASingleRankTheBuckets) {
  SoloCommunicator solo;
  SmallModel model;
  const auto strategy = MakeStrategy({}, model, solo);
  ASSERT_NE(dynamic_cast<LocalStrategy*>(strategy.get()), nullptr);
  strategy->Backward(LossOf(model, Images(0, 4)));
  const at::Tensor once = model.first.grad().clone();
  strategy->Backward(LossOf(model, Images(0, 4)));
  EXPECT_TRUE(model.first.grad().equal(once)) << "gradients of the step before must be gone";
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
