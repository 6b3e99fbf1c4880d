// Tests of local SGD, which averages parameters instead of gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/fakes/thread_communicator.h"
#include "tests/unit/trainer/small_model.h"
#include "tests/unit/trainer/step_task.h"
#include "worker/trainer/strategies/local_sgd_strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kSlice = 4;

at::Tensor LossOfRank(SmallModel& model, int rank, int step) {
  return LossOf(model, Images((4 * step + rank) % 60 * kSlice, kSlice));
}

void Train(Strategy& strategy, SmallModel& model, int rank, int steps) {
  Sgd optimizer(strategy.Trained(), 0.9, 1e-2, true);
  for (int step = 0; step < steps; ++step) {
    LossTask task({LossOfRank(model, rank, step)}, optimizer, 0.02);
    strategy.Step(task);
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

class LocalSgd : public testing::TestWithParam<int> {
 protected:
  // Trains models of ranks with both strategies, and returns the largest deviation of a parameter on any rank.
  double FromDdp(const LocalSgdOptions& options, int steps) {
    const auto local = EqualModels(GetParam()), ddp = EqualModels(GetParam());
    std::vector<double> deviations(GetParam());
    OnRanks(GetParam(), [&](ThreadCommunicator& c) {
      LocalSgdStrategy strategy(*local[c.rank()], c, options);
      Train(strategy, *local[c.rank()], c.rank(), steps);
      strategy.EndEpoch();
      DdpStrategy reference(*ddp[c.rank()], c, {});
      Train(reference, *ddp[c.rank()], c.rank(), steps);
      deviations[c.rank()] = Deviation(*local[c.rank()], *ddp[c.rank()]);
    });
    return *std::ranges::max_element(deviations);
  }
};

// SGD with momentum is linear in the gradients. Therefore averaging the parameters after a step equals a step
// with the average gradient.
TEST_P(LocalSgd, WithAnAverageAfterEveryStepIsLikeDdp) { EXPECT_LT(FromDdp({.steps = 1}, 20), 5e-6); }

TEST_P(LocalSgd, DiffersFromDdpBetweenAverages) {
  const double deviation = FromDdp({.steps = 8}, 16);
  EXPECT_GT(deviation, 1e-5);
  EXPECT_LT(deviation, 0.2);
}

TEST_P(LocalSgd, AveragesGradientsInTheFirstSteps) {
  EXPECT_EQ(FromDdp({.steps = 8, .start_step = 12}, 12), 0);
  EXPECT_GT(FromDdp({.steps = 8, .start_step = 12}, 16), 0);
}

TEST_P(LocalSgd, RanksAreEqualAfterAnAverageOnly) {
  const auto models = EqualModels(GetParam());
  OnRanks(GetParam(), [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    LocalSgdStrategy strategy(model, c, {.steps = 3});
    Sgd optimizer(strategy.Trained(), 0.9, 0, true);
    const auto equal = [&] {
      c.Barrier();
      const bool same = model.first.equal(models[0]->first);
      c.Barrier();
      return same || c.rank() == 0;
    };
    for (int step = 0; step < 7; ++step) {
      LossTask task({LossOfRank(model, c.rank(), step)}, optimizer, 0.02);
      strategy.Step(task);
      EXPECT_EQ(equal(), step % 3 == 2 || c.rank() == 0) << "step " << step;
      EXPECT_EQ(task.cost.bytes > 0, step % 3 == 2);
    }
    strategy.EndEpoch();
    EXPECT_TRUE(equal());
    c.all_reduces = 0;
    strategy.EndEpoch();
    EXPECT_EQ(c.all_reduces, 0) << "nothing has changed since the last average";
  });
}

// With a constant gradient g and without other momentum, the slow momentum follows u = b u + g, like the
// momentum of SGD.
TEST_P(LocalSgd, SlowMomentumIsMomentumOfTheAverages) {
  const auto models = EqualModels(GetParam());
  constexpr double kRate = 0.1, kSlow = 0.5;
  OnRanks(GetParam(), [&](ThreadCommunicator& c) {
    SmallModel& model = *models[c.rank()];
    const at::Tensor before = model.bias.detach().clone();
    LocalSgdStrategy strategy(model, c, {.steps = 2, .slow_momentum = kSlow});
    Sgd optimizer(strategy.Trained(), 0, 0, true);
    for (int step = 0; step < 6; ++step) {
      LossTask task({model.bias.sum() * (c.rank() + 1)}, optimizer, kRate);
      strategy.Step(task);
    }
    const double gradient = 2 * (c.size() + 1) / 2.0;  // gradient of the two steps between two averages
    double slow = 0, moved = 0;
    for (int average = 0; average < 3; ++average) {
      slow = kSlow * slow + gradient;
      moved += kRate * slow;
    }
    EXPECT_TRUE(at::allclose(model.bias, before - moved, 1e-5, 1e-6)) << model.bias << moved;
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalSgd, testing::Values(2, 4));

}  // namespace
}  // namespace scalelab::trainer
