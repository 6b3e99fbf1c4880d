// Tests of native/tensor: parity with one rank, the parts of a model, and their memory and messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>

#include "catalog/models.h"
#include "tests/unit/trainer/divided_training.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/models/gpt.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

struct Case {
  const char* model;
  int ranks, tensor_ranks;
  int64_t parts;  // micro-batches of a group
  bool keeps_last_batch = true;
  int64_t epochs = 7;
  // Batch normalisation amplifies rounding errors, so use double precision.
  at::ScalarType type = at::kFloat;
  int64_t side = 32;  // of images, in pixels
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.model; }

// gpt-nano has three heads.
constexpr GptSize kFourHeads{2, 4, 32, 16};

std::shared_ptr<Model> Make(const std::string& name, at::ScalarType type = at::kFloat) {
  at::manual_seed(5);
  const std::shared_ptr<Model> model =
      name == "gpt-four-heads" ? std::make_shared<Gpt>(kFourHeads, 32) : NewModel(name);
  model->to(type);
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  return model;
}

TrainingSpec SpecOf(int64_t tensor_ranks) {
  TrainingSpec spec;
  spec.engine = "native/tensor";
  spec.tensor_ranks = tensor_ranks;
  return spec;
}

class Tensor : public testing::TestWithParam<Case> {};

TEST_P(Tensor, TrainsLikeOneRank) {
  const Case& c = GetParam();
  const int groups = c.ranks / c.tensor_ranks;
  TrainingSpec one;
  one.accumulation_steps = c.parts * groups;  // the same micro-batches
  SoloCommunicator solo;
  const auto alone = Make(c.model, c.type);
  const std::vector<double> expected = Train(c, one, *alone, solo);

  TrainingSpec spec = SpecOf(c.tensor_ranks == c.ranks ? 0 : c.tensor_ranks);
  spec.accumulation_steps = c.parts;
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < c.ranks; ++r) models.push_back(Make(c.model, c.type));
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : models.back()->parameters()) parameter.zero_();  // rank 0's count
  }
  std::vector<std::vector<double>> losses(c.ranks);
  OnRanks(c.ranks, [&](ThreadCommunicator& rank) {
    losses[rank.rank()] = Train(c, spec, *models[rank.rank()], rank);
  });

  for (size_t step = 0; step < expected.size(); ++step) {
    for (int r = 0; r < c.ranks; ++r)
      EXPECT_EQ(losses[r].at(step), losses[r / c.tensor_ranks * c.tensor_ranks].at(step));
    if (groups > 1) continue;
    EXPECT_NEAR(losses[0][step], expected[step], 1e-4 * expected[step]) << "step " << step;
  }
  double largest = 0;
  const auto compare = [&](const auto& of_one, const auto& of_many, bool same) {
    for (const auto& named : of_one) {
      const at::Tensor found = of_many(*models[0])[named.key()];
      for (int r = 1; r < c.ranks; ++r)
        EXPECT_TRUE(of_many(*models[r])[named.key()].equal(found)) << named.key() << " on rank " << r;
      if (!same) continue;
      const double size = named.value().abs().max().clamp_min(1e-3).template item<double>();
      const double deviation = (found - named.value()).abs().max().template item<double>() / size;
      EXPECT_LT(deviation, kTolerance) << named.key();
      largest = std::max(largest, deviation);
    }
  };
  compare(
      alone->named_parameters(), [](const Model& model) { return model.named_parameters(); }, true);
  // The running statistics come from the first group.
  compare(
      alone->named_buffers(), [](const Model& model) { return model.named_buffers(); }, groups == 1);
  std::printf("%s, %d ranks, %d divide the model: largest deviation %.1e of a parameter's size\n", c.model,
              c.ranks, c.tensor_ranks, largest);
  EXPECT_FALSE(alone->parameters()[0].equal(Make(c.model, c.type)->parameters()[0])) << "it must train";
}

INSTANTIATE_TEST_SUITE_P(All, Tensor,
                         testing::Values(Case{"resnet20", 2, 2, 1, true, 7, at::kDouble, 16},
                                         Case{"resnet20", 4, 4, 3, true, 7, at::kDouble, 16},
                                         Case{"resnet20", 4, 2, 2, /*keeps_last_batch=*/false, 2, at::kDouble,
                                              16},
                                         Case{"gpt-nano", 2, 2, 1}, Case{"gpt-nano", 3, 3, 3},
                                         Case{"gpt-nano", 4, 2, 2}, Case{"gpt-four-heads", 4, 4, 2}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.model) + "_" +
                                              std::to_string(info.param.ranks) + "_ranks_" +
                                              std::to_string(info.param.tensor_ranks);
                           std::erase(name, '-');
                           return name;
                         });

// Returns the number of parameters on the rank that has these shares of the heads and of the hidden units.
double NumbersOfGpt(const GptSize& size, int64_t vocabulary, double heads, double hidden) {
  const double d = size.width;
  const double attention = heads * (3 * d * d + 3 * d + d * d) + d,
               perceptron = hidden * (8 * d * d + 4 * d) + d;
  return static_cast<double>(vocabulary + size.context) * d + size.layers * (4 * d + attention + perceptron) +
         2 * d;
}

TEST(TensorParts, HaveTheMemoryAndTheMessagesOfTheFormula) {
  struct Expected {
    const char* model;
    int ranks;
    std::vector<double> numbers;  // of each rank
    double messages;              // numbers that a rank passes to the network in a step
  };
  const double tokens = kGlobalBatch * 16;
  // Convolutions have 267,696 of the parameters. For each sample, the outputs of all convolutions are
  // gathered, and the gradients of the inputs of all convolutions except the first are summed.
  const double whole = 269'722, convolutions = 267'696;
  const double outputs = 7 * 16'384 + 6 * 8'192 + 6 * 4'096, inputs = 7 * 16'384 + 6 * 8'192 + 5 * 4'096;
  const std::vector<Expected> all = {
      {"gpt-nano",
       2,
       {NumbersOfGpt(kGptNano, 32, 1.0 / 3, 0.5), NumbersOfGpt(kGptNano, 32, 2.0 / 3, 0.5)},
       3 * 4 * tokens * 48},
      {"gpt-four-heads", 4, std::vector<double>(4, NumbersOfGpt(kFourHeads, 32, 0.25, 0.25)),
       2 * 4 * tokens * 32},
      {"resnet20", 4, std::vector<double>(4, whole - convolutions * 3 / 4),
       kGlobalBatch * (outputs + inputs)}};
  for (const Expected& expected : all) {
    const Case c{expected.model, expected.ranks, expected.ranks, 1, /*keeps_last_batch=*/false, /*epochs=*/1};
    std::vector<std::shared_ptr<Model>> models;
    for (int r = 0; r < c.ranks; ++r) models.push_back(Make(c.model));
    std::vector<std::vector<Metric>> metrics(c.ranks);
    std::vector<int64_t> bytes(c.ranks);
    OnRanks(c.ranks, [&](ThreadCommunicator& rank) {
      const int r = rank.rank();
      Train(c, SpecOf(0), *models[r], rank, &metrics[r], &bytes[r]);
    });
    for (int r = 0; r < c.ranks; ++r) {
      std::map<std::string, double> values;
      for (const auto& [key, value] : metrics[r]) values[std::string(key)] = value;
      EXPECT_EQ(values.at("memory/parameters_bytes"), 4 * expected.numbers[r]) << c.model << " rank " << r;
      EXPECT_EQ(values.at("memory/optimizer_bytes"), 4 * expected.numbers[r]) << c.model << " rank " << r;
      for (const char* key : {"memory/parameters_ideal_bytes", "memory/gradients_ideal_bytes",
                              "memory/optimizer_ideal_bytes"}) {
        EXPECT_EQ(values.at(key), 4 * expected.numbers[r]) << key << " of " << c.model << " rank " << r;
      }
      // Each gradient begins at a multiple of 64 bytes.
      EXPECT_NEAR(values.at("memory/gradients_bytes"), 4 * expected.numbers[r],
                  64.0 * models[r]->parameters().size());
      EXPECT_EQ(static_cast<double>(bytes[r]), 4 * expected.messages) << c.model << " rank " << r;
    }
  }
}

TEST(TensorParts, AreThoseOfTheCatalog) {
  for (const char* name : {"resnet20", "resnet18", "resnet50", "gpt-nano", "vgg16"}) {
    const auto model = NewModel(name);
    int64_t channels = 0, fewest = 0;
    if (const auto* divisible = dynamic_cast<const DivisibleModel*>(model.get())) {
      for (const Division& division : divisible->Divisions()) {
        if (division.equally)
          channels = std::gcd(channels, division.units);
        else
          fewest = fewest == 0 ? division.units : std::min(fewest, division.units);
      }
    }
    EXPECT_EQ(FindModel(name)->channels, channels) << name;
    EXPECT_EQ(FindModel(name)->heads, fewest) << name;
    EXPECT_EQ(FindModel(name)->batch_norm, !model->buffers().empty()) << name;
  }
  EXPECT_EQ(FindModel("gpt-small")->heads, kGptSmall.heads);
}

TEST(TensorParts, RefuseWhatCannotBeDivided) {
  const auto gpt = [] { return NewModel("gpt-nano"); };
  EXPECT_THAT(Error(SpecOf(0), 2, [] { return MakeModel("mobilenet_v2", 10, {}); }),
              HasSubstr("cannot divide the layers of this model: use a ResNet or a gpt, or native/ddp"));
  EXPECT_THAT(Error(SpecOf(0), 4, gpt),
              HasSubstr("3 heads, too few for 4 ranks: set tensor_ranks to at most 3"));
  EXPECT_THAT(
      Error(SpecOf(0), 3, [] { return NewModel("resnet20"); }),
      HasSubstr(
          "16 output channels, which 3 ranks cannot divide equally: set tensor_ranks to a divisor of 16"));
  EXPECT_THAT(Error(SpecOf(3), 4, gpt),
              HasSubstr("tensor_ranks is 3, which does not divide the run's 4 ranks"));
  TrainingSpec spec = SpecOf(2);
  spec.batch_norm = "sync";
  EXPECT_THAT(Error(spec, 4, gpt), HasSubstr("batch_norm \"sync\""));
}

TEST(TensorParts, AreNotRecordedAndStoredInShards) {
  OnRanks(2, [](ThreadCommunicator& rank) {
    const auto model = std::make_shared<Gpt>(kFourHeads, 32);
    const auto strategy = MakeStrategy(SpecOf(0), *model, rank);
    EXPECT_THAT(strategy->WhyNotRecorded(), HasSubstr("native/tensor"));
    EXPECT_EQ(strategy->stored(), Strategy::Stored::kShards);
    EXPECT_EQ(strategy->SliceOf(1, 2).index, 0);
    EXPECT_EQ(strategy->SliceOf(1, 2).count, 1);
  });
}

}  // namespace
}  // namespace scalelab::trainer
