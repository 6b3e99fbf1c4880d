#include "worker/trainer/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/compat.h"
#include "worker/trainer/optim/sgd.h"

namespace scalelab::trainer {
namespace {

// Uses the same operations as on a GPU. LibTorch supports them on the CPU since 2.4.
class LossScaling : public testing::Test {
 protected:
  void SetUp() override {
    if (!SCALELAB_TORCH_AT_LEAST(2, 4)) GTEST_SKIP() << "LibTorch before 2.4 scales on a GPU only";
  }
  static std::vector<at::Tensor> OneParameter() { return {at::ones({3}).set_requires_grad(true)}; }
};

TEST(LossScaler, PassesEverythingOnWhenNotActive) {
  LossScaler scaler(false, at::kCPU);
  const at::Tensor loss = at::ones({});
  EXPECT_TRUE(scaler.Scale(loss).is_same(loss));
  EXPECT_FALSE(scaler.Unscale({}, nullptr).defined());
}

TEST_F(LossScaling, TakesItsScaleOutOfTheGradients) {
  LossScaler scaler(true, at::kCPU);
  const std::vector<at::Tensor> parameters = OneParameter();
  const at::Tensor loss = (parameters[0] * 3).sum();
  scaler.Scale(loss).backward();
  EXPECT_EQ(parameters[0].grad()[0].item<float>(), 3 * 65536.0f);
  EXPECT_EQ(scaler.Unscale(parameters, nullptr).item<float>(), 0);
  EXPECT_TRUE(parameters[0].grad().equal(at::full({3}, 3.0f)));
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
}

TEST_F(LossScaling, LeavesOutAStepWithAnInfiniteGradientAndHalvesTheScale) {
  LossScaler scaler(true, at::kCPU);
  std::vector<at::Tensor> parameters = OneParameter();
  Sgd sgd(parameters, 0.9, 0.1, true, /*fused=*/true);
  parameters[0].mutable_grad() = at::tensor({1.0f, INFINITY, 1.0f});
  sgd.SetRate(0.1);
  sgd.Apply(scaler.Unscale(parameters, nullptr));
  EXPECT_TRUE(parameters[0].detach().equal(at::ones({3})));
  EXPECT_EQ(scaler.scale().item<float>(), 32768.0f);
  parameters[0].mutable_grad() = at::full({3}, 32768.0f);
  sgd.Apply(scaler.Unscale(parameters, nullptr));
  EXPECT_TRUE(at::allclose(parameters[0].detach(), at::full({3}, 1 - 0.1 * 1.1)));
}

TEST_F(LossScaling, AllRanksLeaveOutWhatOneCannotDo) {
  OnRanks(3, [](ThreadCommunicator& c) {
    LossScaler scaler(true, at::kCPU);
    std::vector<at::Tensor> parameters = OneParameter();
    parameters[0].mutable_grad() = at::full({3}, c.rank() == 1 ? NAN : 1.0f);
    EXPECT_EQ(scaler.Unscale(parameters, &c).item<float>(), 1);
    EXPECT_EQ(scaler.scale().item<float>(), 32768.0f);
  });
}

TEST_F(LossScaling, DoublesTheScaleAfter2000GoodSteps) {
  LossScaler scaler(true, at::kCPU);
  const std::vector<at::Tensor> parameters = OneParameter();
  parameters[0].mutable_grad() = at::zeros({3});
  for (int i = 0; i < 1999; ++i) scaler.Unscale(parameters, nullptr);
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  scaler.Unscale(parameters, nullptr);
  EXPECT_EQ(scaler.scale().item<float>(), 131072.0f);
}

TEST_F(LossScaling, AFusedOptimizerStepIsTheSameStep) {
  auto make = [] {
    at::manual_seed(1);
    return std::vector<at::Tensor>{
        at::randn({4, 3}).set_requires_grad(true), at::randn({4}).set_requires_grad(true),
        at::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true)};
  };
  std::vector<at::Tensor> fused = make(), plain = make();
  Sgd one_kernel(fused, 0.9, 0.01, false, /*fused=*/true), many(plain, 0.9, 0.01, false);
  for (int step = 0; step < 5; ++step) {
    for (size_t i = 0; i < fused.size(); ++i) {
      fused[i].mutable_grad() = at::randn_like(fused[i]).detach();
      plain[i].mutable_grad() = fused[i].grad().clone();
    }
    one_kernel.Step(0.1), many.Step(0.1);
    for (size_t i = 0; i < fused.size(); ++i) EXPECT_TRUE(at::allclose(fused[i], plain[i], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace scalelab::trainer
