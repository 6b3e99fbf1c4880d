#include "worker/trainer/models/model.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/fused_norm.h"

namespace scalelab::trainer {
namespace {

TEST(ResNetCifar, HasThePapersNumbersOfParameters) {
  const std::pair<const char*, int64_t> expected[] = {{"resnet8", 75'290},
                                                      {"resnet20", 269'722},
                                                      {"resnet32", 464'154},
                                                      {"resnet44", 658'586},
                                                      {"resnet56", 853'018}};
  for (const auto& [name, count] : expected)
    EXPECT_EQ(CountParameters(*MakeModel(name, 10, {})), count) << name;
}

TEST(ResNetCifar, IsRefusedByAnotherName) { EXPECT_THROW(MakeModel("resnet19", 10, {}), TrainerError); }

TEST(ResNetCifar, StartsWithWeightsOfVarianceTwoOverFanIn) {
  at::manual_seed(3);
  const auto model = MakeModel("resnet20", 10, {});
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() != 4 || item.value().numel() < 9'000) continue;
    const double expected = 2.0 / (9.0 * static_cast<double>(item.value().size(1)));
    EXPECT_NEAR(item.value().var().item<double>() / expected, 1, 0.1) << item.key();
  }
}

// The network of He et al. 2015, section 4.2, implemented a second time with Torch's functions only.
at::Tensor Reference(Model& model, const at::Tensor& images, bool batch_statistics) {
  const auto parameters = model.named_parameters();
  const auto buffers = model.named_buffers();
  auto norm = [&](const std::string& name, const at::Tensor& x) {
    return at::batch_norm(x, parameters[name + ".weight"], parameters[name + ".bias"],
                          buffers[name + ".running_mean"].clone(), buffers[name + ".running_var"].clone(),
                          batch_statistics, 0.1, 1e-5, false);
  };
  at::Tensor x = at::relu(norm("norm", at::conv2d(images, parameters["conv.weight"], {}, 1, 1)));
  for (int stage = 1; stage <= 3; ++stage) {
    for (int block = 0; block < 3; ++block) {
      const std::string name = "stage" + std::to_string(stage) + "_" + std::to_string(block);
      const bool shrink = stage > 1 && block == 0;
      const at::Tensor y = at::relu(
          norm(name + ".norm1", at::conv2d(x, parameters[name + ".conv1.weight"], {}, shrink ? 2 : 1, 1)));
      const at::Tensor z = norm(name + ".norm2", at::conv2d(y, parameters[name + ".conv2.weight"], {}, 1, 1));
      if (shrink) {
        const at::Tensor half = at::avg_pool2d(x, 1, 2);
        const at::Tensor nothing = at::zeros({half.size(0), half.size(1) / 2, half.size(2), half.size(3)});
        x = at::cat({nothing, half, nothing}, 1);
      }
      x = at::relu(z + x);
    }
  }
  return at::linear(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1), parameters["linear.weight"],
                    parameters["linear.bias"]);
}

class ResNetForward : public testing::TestWithParam<std::tuple<bool, at::MemoryFormat>> {};

TEST_P(ResNetForward, AgreesWithTheNetworkWrittenInTorchFunctionsInValueAndGradient) {
  const auto [training, format] = GetParam();
  at::manual_seed(1);
  const auto model = MakeModel("resnet20", 10, {});
  model->train(training);
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
  const at::Tensor images = at::randn({8, 3, 32, 32});
  const at::Tensor labels = at::randint(10, {8}, at::kLong);
  auto gradients = [&](const at::Tensor& logits) {
    return torch::autograd::grad({at::cross_entropy_loss(logits, labels)}, model->parameters());
  };
  const at::Tensor expected = Reference(*model, images, training);
  const auto expected_gradients = gradients(expected);
  const at::Tensor logits = model->forward(images.contiguous(format));
  EXPECT_TRUE(at::allclose(logits, expected, 1e-3, 1e-3)) << (logits - expected).abs().max().item<float>();
  const auto actual_gradients = gradients(logits);
  // Convolutions that add in a different order (Winograd's algorithm) change the sign of the input of some rectifiers; how
  // many depends on the processor. convolution_test checks each convolution alone with a tolerance of 1e-5.
  const double tolerance = format == at::MemoryFormat::ChannelsLast ? 1e-2 : 2e-3;
  for (size_t i = 0; i < expected_gradients.size(); ++i) {
    const at::Tensor difference = (actual_gradients[i] - expected_gradients[i]).norm();
    EXPECT_LT(difference.item<double>(), tolerance * expected_gradients[i].norm().item<double>() + 1e-5) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResNetForward,
                         testing::Combine(testing::Bool(), testing::Values(at::MemoryFormat::Contiguous,
                                                                           at::MemoryFormat::ChannelsLast)));

NormState State(int64_t channels) {
  NormState state;
  state.weight = (at::rand({channels}) + 0.5).set_requires_grad(true);
  state.bias = at::randn({channels}).set_requires_grad(true);
  state.running_mean = at::randn({channels});
  state.running_var = at::rand({channels}) + 0.5;
  return state;
}

at::Tensor Input(at::IntArrayRef shape) {
  return (at::randn(shape) * 3 + 50).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
}

class FusedNormTest : public testing::TestWithParam<std::tuple<bool, bool, bool, int>> {};

TEST_P(FusedNormTest, AgreesWithSeparateOperationsInDoublePrecision) {
  const auto [batch_statistics, relu, with_residual, channels] = GetParam();
  at::manual_seed(2);
  const NormState state = State(channels);
  const at::Tensor x = Input({5, channels, 7, 9});
  const at::Tensor residual = with_residual ? Input({5, channels, 7, 9}) : at::Tensor();
  ASSERT_TRUE(CanFuseNorm(x));

  const at::Tensor mean = state.running_mean.to(at::kDouble), variance = state.running_var.to(at::kDouble);
  at::Tensor expected =
      at::batch_norm(x.to(at::kDouble), state.weight.to(at::kDouble), state.bias.to(at::kDouble), mean,
                     variance, batch_statistics, 0.1, 1e-5, false);
  if (with_residual) expected = expected + residual.to(at::kDouble);
  if (relu) expected = expected.relu();
  const at::Tensor y = FusedNorm(x, residual, state, batch_statistics, relu);
  EXPECT_TRUE(at::allclose(y, expected.to(at::kFloat), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(state.running_mean, mean.to(at::kFloat), 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(state.running_var, variance.to(at::kFloat), 1e-5, 1e-6));

  std::vector<at::Tensor> inputs = {x, state.weight, state.bias};
  if (with_residual) inputs.push_back(residual);
  const at::Tensor upstream = at::randn_like(y);
  const auto actual = torch::autograd::grad({y}, inputs, {upstream});
  const auto wanted = torch::autograd::grad({expected}, inputs, {upstream.to(at::kDouble)});
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::allclose(actual[i], wanted[i], 1e-4, 1e-4)) << i;
}

INSTANTIATE_TEST_SUITE_P(All, FusedNormTest,
                         testing::Combine(testing::Bool(), testing::Bool(), testing::Bool(),
                                          testing::Values(16, 48)));

TEST(FusedNormTest, LetsNaNThroughSoThatDivergenceIsSeen) {
  const NormState state = State(16);
  at::Tensor x = Input({1, 16, 2, 2}).detach();
  x.fill_(std::nanf(""));
  EXPECT_TRUE(FusedNorm(x, {}, state, true, true).isnan().all().item<bool>());
}

TEST(SyncBatchNorm, OfRanksWithAQuarterEachEqualsOneRankWithTheWholeBatch) {
  at::manual_seed(4);
  const NormState whole = State(6);
  const at::Tensor x = Input({8, 6, 3, 5});
  const at::Tensor upstream = at::randn_like(x);
  const at::Tensor mean = whole.running_mean.clone(), variance = whole.running_var.clone();
  const at::Tensor expected =
      at::batch_norm(x, whole.weight, whole.bias, mean, variance, true, 0.1, 1e-5, false);
  const auto wanted = torch::autograd::grad({expected}, {x, whole.weight, whole.bias}, {upstream});

  std::vector<at::Tensor> y(4), dx(4), dweight(4), dbias(4);
  OnRanks(4, [&](ThreadCommunicator& communicator) {
    const int r = communicator.rank();
    NormState state{whole.weight.detach().clone().set_requires_grad(true),
                    whole.bias.detach().clone().set_requires_grad(true), whole.running_mean.clone(),
                    whole.running_var.clone()};
    const at::Tensor part = x.detach().narrow(0, 2 * r, 2).clone().set_requires_grad(true);
    y[r] = SyncBatchNorm(part, state, communicator);
    const auto gradients =
        torch::autograd::grad({y[r]}, {part, state.weight, state.bias}, {upstream.narrow(0, 2 * r, 2)});
    dx[r] = gradients[0], dweight[r] = gradients[1], dbias[r] = gradients[2];
    EXPECT_TRUE(at::allclose(state.running_mean, mean, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(state.running_var, variance, 1e-5, 1e-6));
  });
  EXPECT_TRUE(at::allclose(at::cat(y), expected, 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(at::cat(dx), wanted[0], 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(dweight[0] + dweight[1] + dweight[2] + dweight[3], wanted[1], 1e-4, 1e-4));
  EXPECT_TRUE(at::allclose(dbias[0] + dbias[1] + dbias[2] + dbias[3], wanted[2], 1e-4, 1e-4));
}

TEST(BatchNorm, TakesTheVarianceOfOneValuePerChannelAsZero) {
  SoloCommunicator solo;
  for (const BatchNormMode mode : {BatchNormMode::kTrain, BatchNormMode::kSync}) {
    for (const int64_t channels : {6, 16}) {  // kTrain has its own kernel for 16
      BatchNorm norm(channels, {mode, &solo});
      norm.train();
      const at::Tensor x = Input({1, channels, 1, 1}).detach();
      const at::Tensor y = norm.forward(x);
      const auto buffers = norm.named_buffers();
      // A kernel may compute x / sqrt(epsilon) - mean / sqrt(epsilon), which are about 16,000.
      EXPECT_TRUE(at::allclose(y, at::zeros_like(y), 0, 0.01)) << y;
      EXPECT_TRUE(at::allclose(buffers["running_mean"], 0.1 * x.flatten()));
      EXPECT_TRUE(at::allclose(buffers["running_var"], at::full({channels}, 0.9))) << buffers["running_var"];
    }
  }
}

TEST(BatchNorm, InEvalModeKeepsItsRunningStatisticsWhileTraining) {
  BatchNorm norm(16, {BatchNormMode::kEval, nullptr});
  norm.train();
  const at::Tensor y = norm.forward(Input({4, 16, 3, 3}));
  EXPECT_TRUE(norm.named_buffers()["running_mean"].equal(at::zeros({16})));
  EXPECT_GT(y.mean().item<float>(), 40);
}

}  // namespace
}  // namespace scalelab::trainer
