#include "worker/trainer/models/resnet_imagenet.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>

#include <algorithm>

#include "tests/fakes/thread_communicator.h"

namespace scalelab::trainer {
namespace {

namespace F = torch::nn::functional;

constexpr const char* kNames[] = {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"};

TEST(ResNetImageNet, HasThePublishedNumbersOfParameters) {
  const int64_t expected[] = {11'689'512, 21'797'672, 25'557'032, 44'549'160, 60'192'808};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(CountParameters(*MakeModel(kNames[i], 1000, {})), expected[i]) << kNames[i];
  }
}

TEST(ResNetImageNet, StartsAsTorchvisionDoes) {
  at::manual_seed(3);
  const auto model = MakeModel("resnet50", 1000, {});
  for (const auto& item : model->named_parameters()) {
    const at::Tensor& value = item.value();
    if (value.dim() == 4) {
      if (value.numel() < 9'000) continue;
      const double fan_out = static_cast<double>(value.size(0) * value.size(2) * value.size(3));
      EXPECT_NEAR(value.var().item<double>() * fan_out / 2, 1, 0.1) << item.key();
    } else if (value.dim() == 1 && item.key() != "fc.bias") {
      const bool weight = item.key().ends_with("weight");
      EXPECT_TRUE(value.eq(weight ? 1 : 0).all().item<bool>()) << item.key();
    } else {  // uniform up to 1 / sqrt(2048)
      EXPECT_LE(value.abs().max().item<double>(), 0.0221) << item.key();
      EXPECT_GT(value.abs().max().item<double>(), 0.0215) << item.key();
    }
  }
}

TEST(ResNetImageNet, GivesLogitsOfAllClassesAndGradientsToAllParameters) {
  at::manual_seed(4);
  const at::Tensor images = at::randn({3, 3, 70, 70}), labels = at::tensor({0, 36, 5}, at::kLong);
  for (const char* name : kNames) {
    const auto model = MakeModel(name, 37, {});
    const at::Tensor logits = model->forward(images);
    EXPECT_EQ(logits.sizes(), at::IntArrayRef({3, 37})) << name;
    at::cross_entropy_loss(logits, labels).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << name << " " << item.key();
      EXPECT_GT(item.value().grad().norm().item<float>(), 0) << name << " " << item.key();
    }
  }
}

// Table 1 of He et al. 2015, implemented a second time with Torch's functional calls.
class Reference {
 public:
  Reference(const Model& model, bool batch_statistics)
      : parameters_(model.named_parameters()),
        buffers_(model.named_buffers()),
        batch_statistics_(batch_statistics) {}

  at::Tensor ResNet18(const at::Tensor& images) {
    at::Tensor x = Stem(images);
    for (const std::string layer : {"layer1", "layer2", "layer3", "layer4"}) {
      for (const std::string number : {".0.", ".1."}) {
        const std::string block = layer + number;
        const int stride = number == ".0." && layer != "layer1" ? 2 : 1;
        const at::Tensor y = F::relu(Norm(block + "bn1", Conv(block + "conv1", x, stride, 1)));
        const at::Tensor z = Norm(block + "bn2", Conv(block + "conv2", y, 1, 1));
        x = F::relu(z + (stride == 2 ? Projection(block, x, 2) : x));
      }
    }
    return Head(x);
  }

  at::Tensor ResNet50(const at::Tensor& images) {
    at::Tensor x = Stem(images);
    const int depths[] = {3, 4, 6, 3};
    for (int stage = 0; stage < 4; ++stage) {
      for (int block = 0; block < depths[stage]; ++block) {
        const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block) + ".";
        const int stride = stage > 0 && block == 0 ? 2 : 1;
        at::Tensor y = F::relu(Norm(name + "bn1", Conv(name + "conv1", x, 1, 0)));
        y = F::relu(Norm(name + "bn2", Conv(name + "conv2", y, stride, 1)));
        y = Norm(name + "bn3", Conv(name + "conv3", y, 1, 0));
        x = F::relu(y + (block == 0 ? Projection(name, x, stride) : x));
      }
    }
    return Head(x);
  }

 private:
  at::Tensor Stem(const at::Tensor& images) {
    const at::Tensor x = F::relu(Norm("bn1", Conv("conv1", images, 2, 3)));
    return F::max_pool2d(x, F::MaxPool2dFuncOptions(3).stride(2).padding(1));
  }
  at::Tensor Head(const at::Tensor& x) {
    const at::Tensor mean = F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(1)).flatten(1);
    return F::linear(mean, parameters_["fc.weight"], parameters_["fc.bias"]);
  }
  at::Tensor Projection(const std::string& block, const at::Tensor& x, int stride) {
    return Norm(block + "downsample.1", Conv(block + "downsample.0", x, stride, 0));
  }
  at::Tensor Conv(const std::string& name, const at::Tensor& x, int stride, int padding) {
    return F::conv2d(x, parameters_[name + ".weight"],
                     F::Conv2dFuncOptions().stride(stride).padding(padding));
  }
  at::Tensor Norm(const std::string& name, const at::Tensor& x) {
    return F::batch_norm(x, buffers_[name + ".running_mean"].clone(), buffers_[name + ".running_var"].clone(),
                         F::BatchNormFuncOptions()
                             .weight(parameters_[name + ".weight"])
                             .bias(parameters_[name + ".bias"])
                             .training(batch_statistics_));
  }

  torch::OrderedDict<std::string, at::Tensor> parameters_, buffers_;
  const bool batch_statistics_;
};

// Normalizations are not the identity, so that the test detects a missing or exchanged one.
std::shared_ptr<Model> MakeTestModel(const std::string& name, at::MemoryFormat format,
                                     const BatchNormOptions& batch_norm) {
  at::manual_seed(1);
  const auto model = MakeModel(name, 1000, batch_norm);
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    if (item.value().dim() == 4) item.value().set_data(item.value().contiguous(format));
    if (item.value().dim() != 1 || item.key() == "fc.bias") continue;  // only normalizations
    item.value().uniform_(item.key().ends_with("weight") ? 0.5 : -0.3,
                          item.key().ends_with("weight") ? 1 : 0.3);
  }
  for (auto& item : model->named_buffers()) {
    const bool variance = item.key().ends_with("running_var");
    item.value().uniform_(variance ? 0.5 : -0.3, variance ? 2 : 0.3);
  }
  return model;
}

double LargestDeviation(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

using Case = std::tuple<std::string, BatchNormMode, at::MemoryFormat>;

class ResNetImageNetForward : public testing::TestWithParam<Case> {};

TEST_P(ResNetImageNetForward, AgreesWithTheNetworkWrittenInTorchFunctions) {
  const auto& [name, mode, format] = GetParam();
  const auto model = MakeTestModel(name, format, {mode, nullptr});
  const at::NoGradGuard no_grad;
  const at::Tensor images = at::randn({6, 3, 64, 64});
  Reference reference(*model, mode == BatchNormMode::kTrain);
  const at::Tensor expected = name == "resnet18" ? reference.ResNet18(images) : reference.ResNet50(images);
  const at::Tensor logits = model->forward(images.contiguous(format));
  EXPECT_GT(expected.std().item<double>(), 0.1) << "or the comparison says little";
  EXPECT_LT(LargestDeviation(logits, expected), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, ResNetImageNetForward,
                         testing::Combine(testing::Values("resnet18", "resnet50"),
                                          testing::Values(BatchNormMode::kTrain, BatchNormMode::kEval),
                                          testing::Values(at::MemoryFormat::Contiguous,
                                                          at::MemoryFormat::ChannelsLast)));

TEST(ResNetImageNet, HasTheSameGradientsInBothMemoryFormats) {
  const at::Tensor labels = at::tensor({1, 999, 500, 7}, at::kLong);
  for (const char* name : {"resnet18", "resnet50"}) {
    for (BatchNormMode mode : {BatchNormMode::kEval, BatchNormMode::kTrain}) {
      // Fifty layers, each of which divides by the deviation of only 16 values, amplify the rounding
      // differences of another order of additions.
      const double tolerance = mode == BatchNormMode::kEval ? 2e-3 : 5e-2;
      std::vector<std::vector<at::Tensor>> gradients;
      for (at::MemoryFormat format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        const auto model = MakeTestModel(name, format, {mode, nullptr});
        const at::Tensor images = at::randn({4, 3, 64, 64}).contiguous(format);
        gradients.push_back(torch::autograd::grad({at::cross_entropy_loss(model->forward(images), labels)},
                                                  model->parameters()));
      }
      double largest = 0;
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        const double deviation = (gradients[1][i] - gradients[0][i]).norm().item<double>();
        largest = std::max(largest, deviation / gradients[0][i].norm().item<double>());
      }
      EXPECT_LT(largest, tolerance) << name;
      RecordProperty(std::string(name) + (mode == BatchNormMode::kEval ? "_eval" : "_train"),
                     std::to_string(largest));
    }
  }
}

TEST(ResNetImageNet, WithStatisticsOfAllRanksIsOneRankWithTheWholeBatch) {
  const auto whole = MakeTestModel("resnet18", at::MemoryFormat::ChannelsLast, {});
  const at::Tensor images = at::randn({4, 3, 64, 64});
  const at::Tensor expected = whole->forward(images).detach();
  std::vector<at::Tensor> logits(2);
  OnRanks(2, [&](ThreadCommunicator& communicator) {
    const int rank = communicator.rank();
    const at::NoGradGuard no_grad;
    const auto model = MakeModel("resnet18", 1000, {BatchNormMode::kSync, &communicator});
    const auto parameters = model->parameters(), wanted = whole->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(wanted[i]);
    logits[rank] = model->forward(images.narrow(0, 2 * rank, 2));
  });
  EXPECT_LT(LargestDeviation(at::cat(logits), expected), 1e-4);
}

}  // namespace
}  // namespace scalelab::trainer
