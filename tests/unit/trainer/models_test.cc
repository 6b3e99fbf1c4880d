// Tests the registry and AlexNet, VGG-16, MobileNetV2 and Inception V3.
#include "catalog/models.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/train_loop.h"
#include "worker/trainer/models/dropout.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Models, AreThoseThatStudiesMayName) {
  std::string names;
  for (const ModelInfo& model : Models()) names += (names.empty() ? "" : ", ") + std::string(model.name);
  EXPECT_THAT(ErrorOf([] { MakeModel("lenet", 10, {}); }), HasSubstr("use one of " + names));
}

TEST(Models, HaveThePublishedNumbersOfParameters) {
  const std::map<std::string, int64_t> expected = {{"mobilenet_v2", 3'504'872},
                                                   {"alexnet", 61'100'840},
                                                   {"inception_v3", 27'161'264},
                                                   {"vgg16", 138'357'544}};
  for (const auto& [name, count] : expected)
    EXPECT_EQ(CountParameters(*MakeModel(name, 1000, {})), count) << name;
}

class SmallestImage : public testing::TestWithParam<const char*> {};

TEST_P(SmallestImage, TrainsEveryParameterAndAnyLessIsRefused) {
  const std::string name = GetParam();
  const int side = FindModel(name)->smallest_image == 1 ? 32 : FindModel(name)->smallest_image;
  at::manual_seed(4);
  const auto model = MakeModel(name, 7, {});
  const at::Tensor images = at::randn({3, 3, side, side}), labels = at::tensor({0, 6, 5}, at::kLong);
  const TrainingLogits out = model->ForwardTraining(images);
  EXPECT_EQ(FindModel(name)->batch_norm, !model->buffers().empty()) << "running statistics";
  EXPECT_EQ(out.logits.sizes(), at::IntArrayRef({3, 7}));
  EXPECT_EQ(out.auxiliary.defined(), name == "inception_v3");
  at::Tensor loss = at::cross_entropy_loss(out.logits, labels);
  if (out.auxiliary.defined()) loss = loss + at::cross_entropy_loss(out.auxiliary, labels);
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().norm().item<float>(), 0) << item.key();
  }
  const at::Generator own = at::detail::createCPUGenerator(4);
  const at::Generator& common = at::detail::getDefaultCPUGenerator();
  const at::Tensor own_before = own.get_state(), common_before = common.get_state();
  {
    const at::NoGradGuard no_grad;
    const DropoutScope scope(&own);
    model->ForwardTraining(images);
  }
  EXPECT_FALSE(own.get_state().equal(own_before)) << "its dropout draws from the generator of the scope";
  EXPECT_TRUE(common.get_state().equal(common_before));
  if (FindModel(name)->smallest_image == 1) return;

  EXPECT_THROW(model->ForwardTraining(at::randn({3, 3, side - 1, side - 1})), c10::Error)
      << "or catalog/models.cc refuses what would do";
  TrainingSpec spec;
  spec.model = name;
  EXPECT_THAT(ErrorOf([&] { MakeInitialModel(spec, {.side = side - 1}, nullptr); }),
              HasSubstr("model \"" + name + "\" needs images of at least " + std::to_string(side)));
}

INSTANTIATE_TEST_SUITE_P(All, SmallestImage,
                         testing::Values("mobilenet_v2", "alexnet", "inception_v3", "vgg16"),
                         [](const auto& info) { return std::string(info.param); });

// Every other weight must be the same with and without zero_gamma.
TEST(ZeroGamma, IsTheOnlyDifferenceOfTheInitialWeights) {
  const std::map<std::string, std::pair<std::string, size_t>> last = {
      {"resnet8", {"norm2.weight", 3}}, {"resnet18", {"bn2.weight", 8}}, {"resnet50", {"bn3.weight", 16}}};
  for (const auto& [name, expected] : last) {
    TrainingSpec spec;
    spec.model = name;
    spec.seed = 6;
    const auto plain = MakeInitialModel(spec, {}, nullptr);
    spec.zero_gamma = true;
    const auto zero = MakeInitialModel(spec, {}, nullptr);
    size_t zeros = 0;
    for (const auto& item : zero->named_parameters()) {
      const at::Tensor before = plain->named_parameters()[item.key()];
      if (item.key().ends_with(expected.first)) {
        EXPECT_TRUE(before.eq(1).all().item<bool>()) << name << " " << item.key();
        EXPECT_TRUE(item.value().eq(0).all().item<bool>()) << name << " " << item.key();
        ++zeros;
      } else {
        EXPECT_TRUE(item.value().equal(before)) << name << " " << item.key();
      }
    }
    EXPECT_EQ(zeros, expected.second) << name;
  }
}

TEST(ZeroGamma, IsLearnt) {
  at::manual_seed(6);
  const auto model = MakeModel("resnet8", 7, {.zero_gamma = true});
  const at::Tensor images = at::randn({4, 3, 32, 32}).contiguous(at::MemoryFormat::ChannelsLast);
  at::cross_entropy_loss(model->forward(images), at::tensor({0, 6, 5, 1}, at::kLong)).backward();
  for (const auto& item : model->named_parameters()) {
    const at::Tensor gradient = item.value().grad();
    ASSERT_TRUE(gradient.defined()) << item.key();
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << item.key();
    if (item.key().ends_with("norm2.weight")) {
      EXPECT_GT(gradient.norm().item<float>(), 0) << item.key();
    }
  }
}

TEST(ZeroGamma, IsRefusedByModelsWithoutIt) {
  for (const ModelInfo& model : Models()) {
    EXPECT_EQ(model.zero_gamma, std::string(model.name).starts_with("resnet")) << model.name;
  }
  TrainingSpec spec;
  spec.model = "vgg16";
  spec.zero_gamma = true;
  EXPECT_THAT(ErrorOf([&] { MakeInitialModel(spec, {}, nullptr); }),
              HasSubstr("zero_gamma is for ResNets, not for model \"vgg16\""));
}

// Returns the deviation of each weight's values divided by that of torchvision's initial weights; 1
// for uniform ones.
void ExpectDeviation(const Model& model, const std::string& name, double deviation, double mean = 0) {
  const at::Tensor value = model.named_parameters()[name];
  EXPECT_NEAR(value.std(false).item<double>(), deviation, 0.05 * deviation) << name;
  EXPECT_NEAR(value.mean().item<double>(), mean, 0.2 * deviation + 1e-12) << name;
}

TEST(Models, StartAsTorchvisionsDo) {
  at::manual_seed(3);
  const auto mobile = MakeModel("mobilenet_v2", 1000, {});
  ExpectDeviation(*mobile, "features.17.conv.1.0.weight", std::sqrt(2.0 / (960 * 9)));
  ExpectDeviation(*mobile, "features.18.0.weight", std::sqrt(2.0 / 1280));
  ExpectDeviation(*mobile, "classifier.1.weight", 0.01);
  ExpectDeviation(*mobile, "classifier.1.bias", 0);
  ExpectDeviation(*mobile, "features.18.1.weight", 0, 1);
  const auto alex = MakeModel("alexnet", 1000, {});  // weights are uniform in +-1 / sqrt(fan-in)
  ExpectDeviation(*alex, "features.8.weight", 1 / std::sqrt(3.0 * 384 * 9));
  ExpectDeviation(*alex, "classifier.4.weight", 1 / std::sqrt(3.0 * 4096));
  const auto inception = MakeModel("inception_v3", 1000, {});
  ExpectDeviation(*inception, "Mixed_6c.branch7x7dbl_3.conv.weight", 0.1);
  ExpectDeviation(*inception, "AuxLogits.conv1.conv.weight", 0.1);
  ExpectDeviation(*inception, "AuxLogits.fc.weight", 0.001);
  ExpectDeviation(*inception, "fc.weight", 0.1);
  const auto vgg = MakeModel("vgg16", 10, {});
  ExpectDeviation(*vgg, "features.28.weight", std::sqrt(2.0 / (512 * 9)));
  ExpectDeviation(*vgg, "features.28.bias", 0);
  ExpectDeviation(*vgg, "classifier.3.weight", 0.01);
}

TEST(Dropout, OfAScopeIsLikeTorchsWithAnotherGenerator) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({4, 100}), y = x.clone();
  x.requires_grad_(true);
  y.requires_grad_(true);
  at::manual_seed(9);
  const at::Tensor expected = at::dropout(x, 0.2, true);
  expected.sum().backward();
  const at::Generator nine = at::detail::createCPUGenerator(9);
  {
    const DropoutScope scope(&nine);
    const at::Tensor found = ApplyDropout(y, 0.2, true);
    found.sum().backward();
    EXPECT_TRUE(found.equal(expected));
    EXPECT_TRUE(y.grad().equal(x.grad()));
    EXPECT_TRUE(ApplyDropout(y, 0.2, false).equal(y));
    const DropoutScope none(nullptr);
    at::manual_seed(9);
    EXPECT_TRUE(ApplyDropout(y, 0.2, true).equal(expected));
  }
  at::manual_seed(9);
  EXPECT_TRUE(ApplyDropout(y, 0.2, true).equal(expected)) << "outside of a scope";
}

TEST(SeedRank, GivesEachRankNumbersOfItsOwnAndTheSameAgain) {
  TrainingSpec spec;
  const auto drop = [&](int64_t seed, int rank) {
    spec.seed = seed;
    SeedRank(spec, rank);
    return at::dropout(at::ones({1000}), 0.5, true);
  };
  const at::Tensor first = drop(1, 0);
  EXPECT_TRUE(drop(1, 0).equal(first));
  EXPECT_FALSE(drop(1, 1).equal(first));
  EXPECT_FALSE(drop(2, 0).equal(first));
  EXPECT_FALSE(drop(1, 1).equal(drop(2, 0)));
}

}  // namespace
}  // namespace scalelab::trainer
