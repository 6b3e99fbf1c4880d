// Compares the bytes that a rank communicates in a step (metric comm/bytes) with the formulas of
// docs/users/strategies.md. tensor_test.cc does this for native/tensor.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/unit/trainer/divided_training.h"
#include "worker/trainer/models/gpt.h"
#include "worker/trainer/strategies/zero_strategy.h"

namespace scalelab::trainer {
namespace {

constexpr int kSteps = 8;
constexpr double kPadding = 0.02;  // share of the padding of buckets, and of flags for unused parameters
constexpr double kLength = 16, kVocabulary = 32, kWidth = kGptNano.width;

using Make = std::function<std::unique_ptr<Strategy>(Model& model, Communicator& communicator)>;

// Trains gpt-nano. Returns the mean of comm/bytes over the steps, by rank.
std::vector<double> BytesOf(TrainingSpec spec, int ranks, const Make& make) {
  spec.global_batch = kGlobalBatch;
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < ranks; ++r) models.push_back(NewModel("gpt-nano"));
  std::vector<double> bytes(ranks);
  OnRanks(ranks, [&](ThreadCommunicator& rank) {
    Model& model = *models[rank.rank()];
    const auto strategy = make(model, rank);
    TrainStep step(spec, Precision::kFp32, at::kCPU, model, *strategy, rank);
    const auto [place, count] = strategy->SliceOf(rank.rank(), ranks);
    Batch batch{at::empty({0}), at::empty({0}, at::kLong)};
    if (place >= 0) {
      std::vector<int64_t> mine;
      for (int64_t i = 0; i < kGlobalBatch / count; ++i) mine.push_back(kGlobalBatch / count * place + i);
      batch = Samples("gpt-nano", mine);
    }
    for (int s = 0; s < kSteps; ++s) {
      StepRecord record{.global_samples = kGlobalBatch, .marks = StepMarks(at::kCPU)};
      step.Run(batch, 0.01, record);
      bytes[rank.rank()] += static_cast<double>(record.bytes) / kSteps;
    }
  });
  return bytes;
}

std::vector<double> BytesOf(const TrainingSpec& spec, int ranks) {
  return BytesOf(spec, ranks, [&](Model& model, Communicator& communicator) {
    return MakeStrategy(spec, model, communicator);
  });
}

TrainingSpec With(const char* engine, const std::function<void(TrainingSpec&)>& change = {}) {
  TrainingSpec spec;
  spec.engine = engine;
  if (change) change(spec);
  return spec;
}

// Returns the sum of `of_matrix` over all matrices, plus the bytes of the other parameters.
double OfMatrices(const Model& model, const std::function<double(double rows, double columns)>& of_matrix) {
  double bytes = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    bytes += parameter.dim() < 2
                 ? static_cast<double>(parameter.nbytes())
                 : of_matrix(static_cast<double>(parameter.size(0)), static_cast<double>(parameter.size(1)));
  }
  return bytes;
}

TEST(CommunicatedBytes, AreThoseOfTheFormula) {
  const auto model = NewModel("gpt-nano");
  const auto parameters = static_cast<double>(CountParameters(*model));
  const auto compressed = [](const char* form, const char* engine = "native/ddp") {
    return With(engine, [=](TrainingSpec& s) { s.gradient_compression = form; });
  };
  const auto in_parts = [](const char* engine) {
    return With(engine, [](TrainingSpec& s) { s.accumulation_steps = 3; });
  };
  const double powersgd =
                   OfMatrices(*model, [](double rows, double columns) { return 4 * 4 * (rows + columns); }),
               top_k =
                   OfMatrices(*model, [](double rows, double columns) { return 8 * 0.01 * rows * columns; }),
               onebit = OfMatrices(*model,
                                   [](double rows, double columns) { return rows * columns / 8 + 8 * rows; });
  struct Case {
    std::string name;
    TrainingSpec spec;
    double bytes;
  };
  const std::vector<Case> cases = {
      {"none", With("native/none"), 0},
      {"ddp", With("native/ddp"), 4 * parameters},
      {"ddp in parts", in_parts("native/ddp"), 4 * parameters},
      {"serial", With("native/serial"), 4 * parameters},
      {"horovod", With("native/horovod"), 4 * parameters},
      {"fp16", compressed("fp16"), 2 * parameters},
      {"bf16", compressed("bf16"), 2 * parameters},
      {"powersgd", compressed("powersgd"), powersgd},
      {"top-k", compressed("top-k"), top_k},
      {"onebit", compressed("onebit"), onebit},
      {"zero1", With("native/zero1"), 8 * parameters},
      {"zero1 in parts", in_parts("native/zero1"), 8 * parameters},
      {"zero1 bf16", compressed("bf16", "native/zero1"), 6 * parameters},
      {"zero1 powersgd", compressed("powersgd", "native/zero1"), powersgd + 4 * parameters},
      {"zero1 top-k", compressed("top-k", "native/zero1"), top_k + 4 * parameters},
      {"zero1 onebit", compressed("onebit", "native/zero1"), onebit + 4 * parameters},
      {"zero2", With("native/zero2"), 8 * parameters},
      {"zero2 in parts", in_parts("native/zero2"), 4 * parameters * (3 + 1)},
      {"local-sgd", With("native/local-sgd", [](TrainingSpec& s) { s.local_steps = 4; }),
       4 * parameters / 4}};
  for (const Case& c : cases) {
    for (const int ranks : {2, 4}) {
      for (const double bytes : BytesOf(c.spec, ranks))
        EXPECT_NEAR(bytes, c.bytes, kPadding * c.bytes) << c.name << " on " << ranks << " ranks";
    }
  }
}

TEST(CommunicatedBytes, OfDividedParametersAreBelowThoseOfTheFormula) {
  const auto parameters = static_cast<double>(CountParameters(*NewModel("gpt-nano")));
  for (const int parts : {1, 3}) {
    for (const int ranks : {2, 4}) {
      TrainingSpec spec;
      spec.accumulation_steps = parts;
      // With small buckets, almost all parameters are gathered twice in each part.
      const auto bytes = BytesOf(spec, ranks, [](Model& model, Communicator& communicator) {
        return std::make_unique<ZeroStrategy>(model, communicator,
                                              ZeroOptions{.stage = 3, .bucket_bytes = 1000});
      });
      for (const double of_rank : bytes) {
        EXPECT_GT(of_rank, 9 * parts * parameters) << ranks << " ranks";
        EXPECT_LT(of_rank, 12 * parts * parameters * (1 + kPadding)) << ranks << " ranks";
      }
    }
  }
}

TEST(CommunicatedBytes, OfARankThatTrainsWithServersAreTwiceTheParameters) {
  const auto parameters = static_cast<double>(CountParameters(*NewModel("gpt-nano")));
  for (const int trainers : {1, 2}) {
    const auto bytes = BytesOf(
        With("native/parameter-server", [=](TrainingSpec& s) { s.server_ranks = trainers; }), 2 * trainers);
    for (int r = 0; r < trainers; ++r) EXPECT_NEAR(bytes[r], 8 * parameters, kPadding * 8 * parameters);
  }
}

// Each of two neighbouring stages sends the activations or their gradients. The first and the last stage sum the gradients of
// the token embeddings.
TEST(CommunicatedBytes, OfAPipelineAreThoseOfTheFormula) {
  const auto parameters = static_cast<double>(CountParameters(*NewModel("gpt-nano")));
  const double embedding = 4 * kVocabulary * kWidth;
  for (const int parts : {1, 3}) {
    const auto spec = [=](int stages) {
      return With("native/pipeline", [=](TrainingSpec& s) {
        s.pipeline_stages = stages;
        s.accumulation_steps = parts;
      });
    };
    for (const int stages : {2, 4}) {
      const double activations = 4 * kGlobalBatch * kLength * kWidth;
      const auto bytes = BytesOf(spec(stages), stages);
      for (int s = 0; s < stages; ++s) {
        const bool at_end = s == 0 || s + 1 == stages;
        const double expected = at_end ? activations + embedding : 2 * activations;
        EXPECT_NEAR(bytes[s], expected, kPadding * expected) << "stage " << s << " of " << stages;
      }
    }
    // Two groups also average the gradients of their layers. How layers are divided depends on measured times.
    const auto bytes = BytesOf(spec(2), 4);
    const double group =
        2 * (4 * kGlobalBatch / 2 * kLength * kWidth + embedding) + 4 * parameters + embedding;
    for (const int first : {0, 2})
      EXPECT_NEAR(bytes[first] + bytes[first + 1], group, kPadding * group) << "ranks from " << first;
  }
}

}  // namespace
}  // namespace scalelab::trainer
