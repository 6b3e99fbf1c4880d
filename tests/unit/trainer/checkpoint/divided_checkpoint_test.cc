// Tests that native/pipeline, native/tensor and native/parameter-server continue from checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <ostream>
#include <string>

#include "tests/unit/trainer/checkpoint/saved_run.h"
#include "tests/unit/trainer/divided_training.h"
#include "worker/trainer/models/gpt.h"
#include "worker/trainer/strategies/pipeline_strategy.h"

namespace scalelab::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kBefore = 3, kSteps = 6, kBatch = 4;
constexpr GptSize kHeads{2, 4, 32, 16};

// A run whose state is stored on one number of ranks and continued on another.
struct Change {
  int from, to;
};

struct Case {
  const char* name;
  const char* engine;
  const char* model;
  int64_t divided_by;  // stages or tensor_ranks; 0: all ranks
  int ranks;
  std::vector<Change> changes;
  // Batch normalisation amplifies rounding, which double precision makes small.
  at::ScalarType type = at::kFloat;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class DividedCheckpoint : public testing::TestWithParam<Case> {
 protected:
  using Models = std::vector<std::shared_ptr<Model>>;

  static bool OfTokens() { return std::string(GetParam().model) != "resnet20"; }

  Models Make(int count) {
    Models models;
    for (int i = 0; i < count; ++i) {
      at::manual_seed(5);
      models.push_back(OfTokens() ? std::make_shared<Gpt>(kHeads, 32) : NewModel(GetParam().model));
      models.back()->to(GetParam().type);
      for (at::Tensor& parameter : models.back()->parameters()) {
        if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    return models;
  }
  // Returns models with other parameters and buffers than those of Make.
  Models MakeOthers(int count) {
    const at::NoGradGuard no_grad;
    Models models = Make(count);
    for (const auto& model : models) {
      for (const at::Tensor& tensor : model->parameters()) tensor.fill_(9);
      for (const at::Tensor& tensor : model->buffers()) tensor.fill_(9);
    }
    return models;
  }
  static Batch BatchOf(const at::Tensor& samples) {
    std::vector<int64_t> which;
    for (int64_t i = 0; i < samples.numel(); ++i) which.push_back(samples[i].item<int64_t>() % kSamples);
    Batch batch = Samples(OfTokens() ? "gpt" : "resnet20", which);
    if (!OfTokens())  // crop the images to their middle, which is enough
      batch.images = batch.images.narrow(2, 12, 8).narrow(3, 12, 8).to(GetParam().type).contiguous();
    return batch;
  }
  static TrainingSpec Spec() {
    TrainingSpec spec;
    spec.engine = GetParam().engine;
    spec.global_batch = kBatch;
    spec.momentum = 0.9;
    spec.accumulation_steps = 2;
    spec.pipeline_stages = spec.tensor_ranks = GetParam().divided_by;
    return spec;
  }

  // Trains without interruption. Returns what was stored after kBefore steps.
  Saved TrainWhole(const Models& models) {
    Saved saved;
    OnRanksOrAlone(static_cast<int>(models.size()), [&](Communicator& c) {
      SavedRank rank(Spec(), *models[c.rank()], c, BatchOf);
      rank.Train(0, kBefore);
      rank.Save(saved, kBefore);
      rank.Train(kBefore, kSteps);
      rank.EndEpoch();
    });
    return saved;
  }
  void Continue(const Saved& saved, const Models& models) {
    OnRanksOrAlone(static_cast<int>(models.size()), [&](Communicator& c) {
      SavedRank rank(Spec(), *models[c.rank()], c, BatchOf, &saved);
      rank.Train(kBefore, kSteps);
      rank.EndEpoch();
    });
  }
  static double Deviation(const torch::OrderedDict<std::string, at::Tensor>& found,
                          const torch::OrderedDict<std::string, at::Tensor>& expected) {
    double largest = 0;
    for (const auto& named : expected) {
      if (!named.value().is_floating_point()) continue;
      const double size = named.value().abs().max().clamp_min(1e-3).template item<double>();
      largest =
          std::max(largest, (found[named.key()] - named.value()).abs().max().template item<double>() / size);
    }
    return largest;
  }
};

TEST_P(DividedCheckpoint, ContinuedOnAsManyRanksEndsWithTheSameParametersBitForBit) {
  const Models whole = Make(GetParam().ranks), models = MakeOthers(GetParam().ranks);
  Continue(TrainWhole(whole), models);
  for (int r = 0; r < GetParam().ranks; ++r) {
    for (const auto& named : whole[r]->named_parameters())
      EXPECT_TRUE(models[r]->named_parameters()[named.key()].equal(named.value())) << named.key();
    for (const auto& named : whole[r]->named_buffers())
      EXPECT_TRUE(models[r]->named_buffers()[named.key()].equal(named.value())) << named.key();
  }
}

TEST_P(DividedCheckpoint, ContinuedOnAnotherNumberOfRanksTrainsOn) {
  const double tolerance = GetParam().type == at::kDouble ? 1e-9 : 5e-6;
  for (const auto [from, to] : GetParam().changes) {
    const Models whole = Make(from), models = MakeOthers(to);
    Continue(TrainWhole(whole), models);
    const double parameters = Deviation(models[0]->named_parameters(), whole[0]->named_parameters()),
                 buffers = Deviation(models[0]->named_buffers(), whole[0]->named_buffers());
    std::printf("%s, continued on %d instead of %d ranks: largest deviation %.1e of a parameter's size\n",
                GetParam().name, to, from, parameters);
    EXPECT_LT(parameters, tolerance) << from << " to " << to;
    EXPECT_LT(buffers, tolerance) << from << " to " << to;
    for (int r = 1; r < to; ++r)
      EXPECT_EQ(Deviation(models[r]->named_parameters(), models[0]->named_parameters()), 0);
  }
}

// All groups of ranks have the same parameters, so a checkpoint contains them only once.
TEST_P(DividedCheckpoint, HasEachParameterAndItsMomentumOnce) {
  const Models models = Make(GetParam().ranks);
  const Saved saved = TrainWhole(models);
  int64_t parameters = 0, velocities = 0;
  for (const NamedTensors& of_rank : saved.of_ranks) {
    for (const auto& [name, tensor] : Below(of_rank, "parameter/")) parameters += tensor.numel();
    for (const auto& [name, tensor] : Below(of_rank, "optimizer/")) velocities += tensor.numel();
  }
  EXPECT_EQ(parameters, CountParameters(*models[0]));
  EXPECT_EQ(velocities, CountParameters(*models[0]));
}

INSTANTIATE_TEST_SUITE_P(
    Engines, DividedCheckpoint,
    testing::Values(
        Case{"pipeline", "native/pipeline", "gpt", 0, 4, {{2, 4}, {4, 2}, {2, 1}, {1, 2}}},
        Case{"pipeline_in_groups", "native/pipeline", "gpt", 2, 4, {{4, 2}, {2, 4}}},
        Case{"pipeline_of_a_resnet", "native/pipeline", "resnet20", 0, 2, {{2, 1}, {1, 2}}, at::kDouble},
        Case{"tensor", "native/tensor", "gpt", 0, 4, {{2, 4}, {4, 2}, {2, 1}, {1, 2}, {2, 3}}},
        Case{"tensor_in_groups", "native/tensor", "gpt", 2, 4, {{4, 2}, {2, 4}}},
        Case{"tensor_of_a_resnet", "native/tensor", "resnet20", 0, 2, {{2, 4}, {2, 1}, {1, 2}}, at::kDouble},
        Case{"parameter_server", "native/parameter-server", "gpt", 0, 3, {{3, 2}, {2, 3}, {2, 1}, {1, 2}}}),
    [](const auto& info) { return std::string(info.param.name); });

Batch Tokens(const at::Tensor& samples) {
  std::vector<int64_t> which;
  for (int64_t i = 0; i < samples.numel(); ++i) which.push_back(samples[i].item<int64_t>() % kSamples);
  return Samples("gpt", which);
}

TEST(PipelineCheckpoint, KeepsTheStagesWhichAreOtherwiseMeasuredAgain) {
  OnRanks(2, [](ThreadCommunicator& c) {
    const auto model = std::make_shared<Gpt>(kHeads, 32);
    PipelineStrategy strategy(*model, c, {});
    const auto blocks = static_cast<int64_t>(strategy.begins().back());
    for (const int64_t second : {int64_t{1}, blocks - 1}) {
      strategy.PrepareFor({{"begins", at::tensor(std::vector<int64_t>{0, second, blocks}, at::kLong)}});
      EXPECT_THAT(strategy.begins(), ElementsAre(0, second, blocks));
    }
    const NamedTensors state = strategy.State();
    ASSERT_EQ(state[0].first, "begins");
    EXPECT_EQ(state[0].second[1].item<int64_t>(), blocks - 1);
    // The last stage has only the last block: the normalization and the token embedding.
    if (c.rank() == 1) {
      EXPECT_EQ(strategy.Trained().size(), 3u);
    }
  });
}

TEST(PipelineCheckpoint, OfAnotherNumberOfStagesIsRefused) {
  OnRanks(4, [](ThreadCommunicator& c) {
    const auto model = std::make_shared<Gpt>(kHeads, 32);
    PipelineStrategy strategy(*model, c, {.stages = 4});
    try {
      strategy.PrepareFor({{"begins", at::tensor(std::vector<int64_t>{0, 1, 4}, at::kLong)}});
      FAIL() << "no error";
    } catch (const TrainerError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("was written with pipeline_stages 2, this run has 4: restore pipeline_stages"));
    }
  });
}

// With only one rank that trains, the order of gradients is fixed.
TEST(ParameterServerCheckpoint, KeepsTheCountOfMissedUpdates) {
  TrainingSpec spec;
  spec.engine = "native/parameter-server";
  spec.consistency = "async";
  spec.global_batch = kBatch;
  Saved saved;
  OnRanks(2, [&](ThreadCommunicator& c) {
    const auto model = std::make_shared<Gpt>(kHeads, 32);
    SavedRank rank(spec, *model, c, Tokens);
    rank.Train(0, 3);
    rank.Save(saved, 3);
  });
  const at::Tensor& counts = Find(saved.of_ranks[1], "strategy/staleness");
  EXPECT_EQ(counts[1].item<double>(), 3) << "updates";
  counts[0] = 12;  // sum of the missed updates
  counts[2] = 5;   // largest number of missed updates
  // The numbers of gradients that missed 0, 1, 2, ... updates follow.
  counts[3] = 0;
  for (const int missed : {3, 4, 5}) counts[3 + missed] = 1;
  std::vector<NamedTensors> states;
  for (const NamedTensors& of_rank : saved.of_ranks) states.push_back(Below(of_rank, "strategy/"));
  for (const int ranks : {2, 3}) {
    OnRanks(ranks, [&](ThreadCommunicator& c) {
      const auto model = std::make_shared<Gpt>(kHeads, 32);
      const auto strategy = MakeStrategy(spec, *model, c);
      strategy->LoadState(ranks == 2 ? std::vector<NamedTensors>{states[c.rank()]} : states);
      strategy->EndEpoch();
      std::vector<Metric> metrics;
      strategy->AppendMetrics(metrics);
      const std::map<std::string, double> values(metrics.begin(), metrics.end());
      EXPECT_EQ(values.at("run/staleness_mean"), 4);
      EXPECT_EQ(values.at("run/staleness_p50"), 4);
      EXPECT_EQ(values.at("run/staleness_p90"), 5);
      EXPECT_EQ(values.at("run/staleness_max"), 5);
    });
  }
}

}  // namespace
}  // namespace scalelab::trainer
