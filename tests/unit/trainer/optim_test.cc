#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "worker/trainer/optim/sgd.h"

namespace scalelab::trainer {
namespace {

std::vector<at::Tensor> Parameters() {
  at::manual_seed(1);
  return {at::randn({4, 3}).set_requires_grad(true), at::randn({4}).set_requires_grad(true),
          at::randn({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true)};
}

void SetGradients(std::vector<at::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::manual_seed(10 * step + static_cast<int>(i));
    parameters[i].mutable_grad() = at::randn(parameters[i].sizes());
  }
}

TEST(Sgd, MovesParametersAsTorchOptimSgdDoes) {
  std::vector<at::Tensor> ours = Parameters(), theirs = Parameters();
  Sgd sgd(ours, 0.9, 0.01, true);
  torch::optim::SGD reference(theirs, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int step = 0; step < 5; ++step) {
    SetGradients(ours, step), SetGradients(theirs, step);
    sgd.Step(0.1);
    reference.step();
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-6, 1e-7)) << step;
  }
}

TEST(Sgd, HasNoMomentumWithAFusedStepEither) {
  if (!Sgd::HasFused()) GTEST_SKIP() << "LibTorch before 2.4 has no fused step";
  std::vector<at::Tensor> fused = Parameters(), plain = Parameters();
  Sgd one(fused, 0, 0.01, true, /*fused=*/true), other(plain, 0, 0.01, true);
  for (int step = 0; step < 3; ++step) {
    SetGradients(fused, step), SetGradients(plain, step);
    // Gradients have the strides of their parameters, as in training.
    fused[2].mutable_grad() = fused[2].grad().contiguous(at::MemoryFormat::ChannelsLast);
    one.Step(0.1);
    other.Step(0.1);
    for (size_t i = 0; i < fused.size(); ++i)
      EXPECT_TRUE(at::allclose(fused[i], plain[i], 1e-6, 1e-7)) << step;
  }
}

// Compares the kernel with Torch's operators, which other layouts use.
TEST(Sgd, DoesTheSameWhateverTheLayoutOfGradients) {
  std::vector<at::Tensor> alike = Parameters(), other = Parameters();
  Sgd one(alike, 0.9, 0.01, true), many(other, 0.9, 0.01, true);
  for (int step = 0; step < 5; ++step) {
    SetGradients(alike, step), SetGradients(other, step);
    for (at::Tensor& parameter : alike) {
      const at::Tensor gradient = at::empty_like(parameter.detach()).copy_(parameter.grad());
      EXPECT_EQ(gradient.strides(), parameter.strides());
      parameter.mutable_grad() = gradient;
    }
    one.Step(0.1), many.Step(0.1);
    for (size_t i = 0; i < alike.size(); ++i) {
      EXPECT_TRUE(at::allclose(alike[i], other[i], 1e-6, 1e-7)) << step;
    }
  }
}

TEST(Sgd, SparesNormalisationAndBiasesThePenaltyWhenAsked) {
  std::vector<at::Tensor> parameters = Parameters();
  const at::Tensor matrix = parameters[0].detach().clone(), bias = parameters[1].detach().clone();
  for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::zeros_like(parameter);
  Sgd(parameters, 0.9, 0.5, false).Step(1);
  EXPECT_TRUE(at::allclose(parameters[0], matrix * 0.5));
  EXPECT_TRUE(parameters[1].equal(bias));
}

TEST(Sgd, PassesOverParametersWithoutGradient) {
  std::vector<at::Tensor> parameters = Parameters();
  const at::Tensor before = parameters[2].detach().clone();
  parameters[0].mutable_grad() = at::ones_like(parameters[0]);
  Sgd(parameters, 0.9, 0.5, true).Step(1);
  EXPECT_TRUE(parameters[2].equal(before));
}

}  // namespace
}  // namespace scalelab::trainer
