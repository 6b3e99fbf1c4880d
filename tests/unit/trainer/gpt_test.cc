#include "worker/trainer/models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/loop/evaluation.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

constexpr GptSize kTiny{2, 2, 8, 6};

TEST(Gpt, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(CountParameters(*MakeModel("gpt-small", 50257, {})), 124'439'808);  // GPT-2 small
  // 12 layers of (12 w^2 + 13 w) parameters, the embeddings, and the last normalization.
  EXPECT_EQ(CountParameters(*MakeModel("gpt-nano", 256, {})),
            3 * (12 * 48 * 48 + 13 * 48) + (256 + 128 + 2) * 48);
}

TEST(Gpt, DoesNotSeeLaterTokens) {
  at::manual_seed(1);
  Gpt model(kTiny, 11);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor({3, 1, 4, 1, 5, 9}, at::kLong).view({1, 6});
  const at::Tensor logits = model.forward(tokens);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({6, 11}));
  for (int place = 1; place < 6; ++place) {
    at::Tensor changed = tokens.clone();
    changed[0][place] = 2;
    const at::Tensor other = model.forward(changed);
    EXPECT_TRUE(other.narrow(0, 0, place).equal(logits.narrow(0, 0, place))) << place;
    EXPECT_FALSE(other[place].equal(logits[place])) << place;
  }
  EXPECT_TRUE(model.forward(tokens.narrow(1, 0, 4)).allclose(logits.narrow(0, 0, 4), 1e-5, 1e-6));
  EXPECT_THROW(model.forward(at::zeros({1, 7}, at::kLong)), c10::Error);
}

// Compares the gradient of each parameter with differences of the loss, along a random direction.
TEST(Gpt, HasTheGradientsThatDifferencesOfItsLossShow) {
  constexpr double kStep = 1e-5;
  at::manual_seed(2);
  Gpt model(kTiny, 11);
  model.to(at::kDouble);
  const at::Tensor tokens = at::randint(11, {3, 6}, at::kLong), labels = at::randint(11, {3, 6}, at::kLong);
  const auto loss = [&] { return MeanLoss(model.forward(tokens), labels); };
  loss().backward();
  for (const auto& item : model.named_parameters()) {
    const at::NoGradGuard no_grad;
    at::Tensor value = item.value();
    ASSERT_TRUE(value.grad().defined()) << item.key();
    const at::Tensor start = value.clone(), direction = at::randn_like(value);
    value.copy_(start + kStep * direction);
    const double above = loss().item<double>();
    value.copy_(start - kStep * direction);
    const double below = loss().item<double>();
    value.copy_(start);
    const double expected = (above - below) / (2 * kStep),
                 found = (value.grad() * direction).sum().item<double>();
    EXPECT_NEAR(found, expected, 1e-7 + 1e-5 * std::abs(expected)) << item.key();
  }
}

TEST(Gpt, TrainsOnTokensOnlyAndUpToItsContext) {
  TrainingSpec spec;
  spec.model = "gpt-nano";
  const auto error = [&](const ImageShape& shape) -> std::string {
    try {
      MakeInitialModel(spec, shape, nullptr);
    } catch (const TrainerError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error({}), HasSubstr("set dataset to tokens or synthetic-tokens"));
  EXPECT_THAT(error({.side = 0, .classes = 256, .tokens = 129}), HasSubstr("of up to 128 tokens, not 129"));
  EXPECT_EQ(error({.side = 0, .classes = 256, .tokens = 128}), "");
  spec.model = "resnet20";
  EXPECT_THAT(error({.side = 0, .classes = 256, .tokens = 128}), HasSubstr("trains on images"));
}

class Tokens : public testing::Test {
 protected:
  Tokens() : directory_(testing::TempDir() + "/tokens-" + std::to_string(getpid())) {
    std::filesystem::create_directories(directory_);
    spec_.model = "gpt-nano";
    spec_.dataset = "tokens";
    spec_.data_dir = directory_;
    spec_.sequence_length = 4;
    spec_.evaluate = true;
    Write("train.bin", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    Write("val.bin", {20, 21, 22, 23, 24});
  }
  ~Tokens() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::vector<uint16_t>& tokens) const {
    std::ofstream(directory_ + "/" + name, std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()), std::ssize(tokens) * 2);
  }
  std::string Error() const {
    try {
      LoadDataset(spec_);
    } catch (const TrainerError& e) {
      return e.what();
    }
    return "";
  }

  const std::string directory_;
  TrainingSpec spec_;
};

TEST_F(Tokens, AreCutIntoSamplesWithTheFollowingTokensAsLabels) {
  const Dataset data = LoadDataset(spec_);
  EXPECT_EQ(data.train.size, 2);
  EXPECT_EQ(data.test.size, 1);
  EXPECT_EQ(data.train.shape.classes, 256);
  Batch batch = AllocateBatch(2, data.train.shape, at::MemoryFormat::Contiguous);
  LoadBatch(data.train, std::vector<int32_t>{1, 0}, nullptr, batch);
  EXPECT_TRUE(batch.images.equal(at::tensor({5, 6, 7, 8, 1, 2, 3, 4}, at::kLong).view({2, 4})));
  EXPECT_TRUE(batch.labels.equal(batch.images + 1));
  EXPECT_EQ(batch.samples(), 2);
  spec_.train_samples = 1;
  EXPECT_EQ(LoadDataset(spec_).train.size, 1);
}

TEST_F(Tokens, OutsideTheVocabularyAreRefused) {
  spec_.vocabulary = 11;
  EXPECT_THAT(Error(), HasSubstr("val.bin: token 20 at place 0 is not in 0 to 10"));
}

TEST_F(Tokens, NeedFilesOfWholeNumbers) {
  std::ofstream(directory_ + "/val.bin", std::ios::binary) << "odd";
  EXPECT_THAT(Error(), HasSubstr("val.bin is not a readable file of an even number of bytes"));
  std::filesystem::remove(directory_ + "/val.bin");
  EXPECT_THAT(Error(), HasSubstr("val.bin does not exist"));
}

TEST_F(Tokens, NeedASampleForTheEvaluation) {
  Write("val.bin", {20, 21, 22, 23});
  EXPECT_THAT(Error(), HasSubstr("val.bin: has 4 tokens, but a sample needs 5 (sequence_length + 1)"));
  spec_.evaluate = false;
  EXPECT_EQ(Error(), "");
}

TEST(SyntheticTokens, CanBeLearnedAndAreTheSameOnEveryRank) {
  TrainingSpec spec;
  spec.model = "gpt-nano";
  spec.dataset = "synthetic-tokens";
  spec.train_samples = 50;
  spec.evaluate = true;
  const Dataset data = LoadDataset(spec), again = LoadDataset(spec);
  EXPECT_EQ(data.train.size, 50);
  EXPECT_EQ(data.train.text, again.train.text);
  // The most frequent successor of a token follows it most of the time, in training and test.
  std::map<int, std::map<int, int>> successors;
  for (size_t i = 0; i + 1 < data.train.text.size(); ++i)
    ++successors[data.train.text[i]][data.train.text[i + 1]];
  int right = 0, all = 0;
  for (size_t i = 0; i + 1 < data.test.text.size(); ++i, ++all) {
    const auto& of = successors[data.test.text[i]];
    const auto most =
        std::max_element(of.begin(), of.end(), [](auto& a, auto& b) { return a.second < b.second; });
    right += most != of.end() && most->first == data.test.text[i + 1];
  }
  EXPECT_GT(right, all * 0.7);
  EXPECT_LT(right, all * 0.8);
}

TEST(CountCorrect, CountsATokenAsAPartOfItsSample) {
  const at::Tensor logits = at::eye(4), labels = at::tensor({0, 1, 3, 3}, at::kLong);
  EXPECT_EQ(CountCorrect(logits, labels).item<double>(), 3);
  EXPECT_EQ(CountCorrect(logits, labels.view({2, 2})).item<double>(), 1.5);
  EXPECT_EQ(MeanLoss(logits, labels.view({2, 2})).item<float>(), MeanLoss(logits, labels).item<float>());
}

}  // namespace
}  // namespace scalelab::trainer
