// Tests of native/pipeline: schedules, the division of models, and parity with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "tests/unit/trainer/divided_training.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/strategies/pipeline/schedule.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

using pipeline::DivideByCost;
using pipeline::Pass;
using pipeline::PassesOf;
using pipeline::Schedule;
using testing::ElementsAre;
using testing::HasSubstr;

std::string Text(const std::vector<Pass>& passes) {
  std::string text;
  for (const auto [forward, part] : passes) text += (forward ? " F" : " B") + std::to_string(part);
  return text;
}

TEST(PipelineSchedule, HasTheOrderOfThePapers) {
  EXPECT_EQ(Text(PassesOf(Schedule::kGpipe, 0, 3, 3)), " F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(Text(PassesOf(Schedule::k1f1b, 0, 3, 4)), " F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(Text(PassesOf(Schedule::k1f1b, 1, 3, 4)), " F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(Text(PassesOf(Schedule::k1f1b, 2, 3, 4)), " F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(Text(PassesOf(Schedule::k1f1b, 0, 4, 1)), " F0 B0");
  EXPECT_EQ(pipeline::ParseSchedule("gpipe"), Schedule::kGpipe);
  EXPECT_EQ(pipeline::ParseSchedule("1f1b"), Schedule::k1f1b);
  EXPECT_THROW(pipeline::ParseSchedule("zero-bubble"), TrainerError);
}

// Simulates the stages: each pass begins as soon as its input has arrived. A forward pass takes 1 unit of
// time, a backward pass 2. Returns the end of the last pass.
int64_t Duration(Schedule schedule, int stages, int64_t parts) {
  std::vector<std::vector<Pass>> passes;
  for (int s = 0; s < stages; ++s) passes.push_back(PassesOf(schedule, s, stages, parts));
  std::map<std::tuple<int, bool, int64_t>, int64_t> end;  // by stage and pass
  std::vector<size_t> next(stages, 0);
  std::vector<int64_t> free(stages, 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (int s = 0; s < stages; ++s) {
      if (next[s] == passes[s].size()) continue;
      const auto [forward, part] = passes[s][next[s]];
      const int from = forward ? s - 1 : s + 1;
      const bool alone = from < 0 || from >= stages;
      if (!alone && !end.contains({from, forward, part})) continue;
      const int64_t begin = std::max(free[s], alone ? 0 : end[{from, forward, part}]);
      free[s] = end[{s, forward, part}] = begin + (forward ? 1 : 2);
      ++next[s];
      progress = true;
    }
  }
  for (int s = 0; s < stages; ++s) EXPECT_EQ(next[s], passes[s].size()) << "stage " << s << " waits forever";
  return *std::ranges::max_element(free);
}

TEST(PipelineSchedule, HasTheBubbleOfTheFormula) {
  EXPECT_DOUBLE_EQ(pipeline::IdealBubble(4, 8), 3.0 / 11);
  EXPECT_DOUBLE_EQ(pipeline::IdealBubble(1, 8), 0);
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1f1b}) {
    for (const int stages : {2, 3, 4, 7}) {
      for (const int64_t parts : {1, 2, 5, 8, 16}) {
        const auto duration = static_cast<double>(Duration(schedule, stages, parts));
        EXPECT_DOUBLE_EQ(1 - 3 * static_cast<double>(parts) / duration, pipeline::IdealBubble(stages, parts))
            << stages << " stages, " << parts << " parts";
      }
    }
  }
}

TEST(PipelineSchedule, OneForwardOneBackwardKeepsActivationsOfFewParts) {
  for (const int stages : {1, 2, 4}) {
    for (int stage = 0; stage < stages; ++stage) {
      int64_t kept = 0, most = 0;
      for (const auto [forward, part] : PassesOf(Schedule::k1f1b, stage, stages, 16)) {
        kept += forward ? 1 : -1;
        most = std::max(most, kept);
      }
      EXPECT_EQ(most, stages - stage);
      EXPECT_EQ(kept, 0);
    }
  }
}

TEST(PipelineDivision, MakesTheSlowestStageAsFastAsPossible) {
  EXPECT_THAT(DivideByCost({1, 1, 1, 1}, 2), ElementsAre(0, 2, 4));
  EXPECT_THAT(DivideByCost({5, 1, 1, 1}, 2), ElementsAre(0, 1, 4));
  EXPECT_THAT(DivideByCost({1, 1, 1, 9}, 3), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(DivideByCost({0, 0, 0}, 3), ElementsAre(0, 1, 2, 3)) << "every stage has a block";
  EXPECT_THAT(DivideByCost({2, 3}, 1), ElementsAre(0, 2));
}

struct Case {
  const char* model;
  int ranks, stages;
  const char* schedule;
  int64_t parts;
  bool keeps_last_batch = true;
  int64_t epochs = 7;
  // Batch normalisation over two samples amplifies rounding errors, so use double precision.
  at::ScalarType type = at::kFloat;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.model; }

class Pipeline : public testing::TestWithParam<Case> {};

TEST_P(Pipeline, TrainsLikeOneRank) {
  const Case& c = GetParam();
  const int groups = c.ranks / c.stages;
  TrainingSpec spec;
  spec.warmup_steps = 2;
  spec.accumulation_steps = c.parts * groups;  // the same micro-batches
  SoloCommunicator solo;
  const auto alone = NewModel(c.model);
  alone->to(c.type);
  const std::vector<double> expected = Train(c, spec, *alone, solo);

  spec.engine = "native/pipeline";
  spec.pipeline_stages = c.stages;
  spec.pipeline_schedule = c.schedule;
  spec.accumulation_steps = c.parts;
  std::vector<std::shared_ptr<Model>> models;
  for (int r = 0; r < c.ranks; ++r) {
    models.push_back(NewModel(c.model));
    models.back()->to(c.type);
  }
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : models.back()->parameters()) parameter.zero_();  // rank 0's count
  }
  std::vector<std::vector<double>> losses(c.ranks);
  std::vector<std::vector<Metric>> metrics(c.ranks);
  OnRanks(c.ranks, [&](ThreadCommunicator& rank) {
    const int r = rank.rank();
    losses[r] = Train(c, spec, *models[r], rank, &metrics[r]);
  });

  for (size_t step = 0; step < expected.size(); ++step) {
    for (int r = 0; r < c.ranks; ++r) EXPECT_EQ(losses[r].at(step), losses[r / c.stages * c.stages].at(step));
    if (groups > 1) continue;
    EXPECT_NEAR(losses[0][step], expected[step], 1e-4 * expected[step]) << "step " << step;
  }
  double largest = 0;
  const auto compare = [&](const auto& of_one, const auto& of_many, bool same) {
    for (const auto& named : of_one(*alone)) {
      const at::Tensor found = of_many(*models[0])[named.key()];
      for (int r = 1; r < c.ranks; ++r) {
        EXPECT_TRUE(of_many(*models[r])[named.key()].equal(found)) << named.key() << " on rank " << r;
      }
      if (!same) continue;
      const double size = named.value().abs().max().clamp_min(1e-3).template item<double>();
      const double deviation = (found - named.value()).abs().max().template item<double>() / size;
      EXPECT_LT(deviation, kTolerance) << named.key();
      largest = std::max(largest, deviation);
    }
  };
  const auto parameters = [](const Model& model) { return model.named_parameters(); };
  const auto buffers = [](const Model& model) { return model.named_buffers(); };
  compare(parameters, parameters, true);
  // With several groups, the running statistics come from the first group.
  compare(buffers, buffers, groups == 1);
  std::printf("%s, %d ranks, %d stages, %s: largest deviation %.1e of a parameter's size\n", c.model, c.ranks,
              c.stages, c.schedule, largest);
  EXPECT_FALSE(alone->parameters()[0].equal(NewModel(c.model)->parameters()[0].to(c.type)))
      << "it must train";

  for (const auto& of_rank : metrics) {
    std::map<std::string, double> values;
    for (const auto& [key, value] : of_rank) values[std::string(key)] = value;
    EXPECT_GT(values.at("run/pipeline_bubble"), 0);
    EXPECT_LT(values.at("run/pipeline_bubble"), 1);
    EXPECT_DOUBLE_EQ(values.at("run/pipeline_bubble_ideal"), pipeline::IdealBubble(c.stages, c.parts));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Pipeline,
    testing::Values(Case{"resnet20", 2, 2, "1f1b", 3}, Case{"resnet20", 4, 4, "gpipe", 4},
                    Case{"resnet20", 4, 2, "1f1b", 3, /*keeps_last_batch=*/false, /*epochs=*/2, at::kDouble},
                    Case{"gpt-nano", 2, 2, "gpipe", 3}, Case{"gpt-nano", 4, 4, "1f1b", 6},
                    Case{"gpt-nano", 4, 2, "1f1b", 2}, Case{"gpt-nano", 4, 2, "gpipe", 1}),
    [](const auto& info) {
      std::string name = std::string(info.param.model) + "_" + std::to_string(info.param.ranks) + "_ranks_" +
                         std::to_string(info.param.stages) + "_stages_" + info.param.schedule;
      std::erase(name, '-');
      return name + "_" + std::to_string(info.param.parts);
    });

// Each rank updates only its own stage. Together, the ranks update the whole model.
TEST(PipelineStages, DivideTheModel) {
  for (const char* name : {"resnet20", "resnet18", "gpt-nano"}) {
    std::vector<std::shared_ptr<Model>> models;
    for (int r = 0; r < 4; ++r) models.push_back(NewModel(name));
    std::vector<int64_t> trained(4);
    std::vector<int> tied(4);
    TrainingSpec spec;
    spec.engine = "native/pipeline";
    OnRanks(4, [&](ThreadCommunicator& rank) {
      const int r = rank.rank();
      const auto strategy = MakeStrategy(spec, *models[r], rank);
      std::set<std::string> mine;
      for (const at::Tensor& tensor : strategy->Trained()) {
        trained[r] += tensor.numel();
        for (const auto& named : models[r]->named_parameters()) {
          if (named.value().is_same(tensor)) mine.insert(named.key());
        }
      }
      tied[r] = mine.contains("wte.weight") ? 1 : 0;
      EXPECT_EQ(mine.size(), strategy->Trained().size());
      EXPECT_THAT(strategy->WhyNotRecorded(), HasSubstr("native/pipeline"));
      EXPECT_EQ(strategy->stored(), Strategy::Stored::kShards);
    });
    const int64_t twice =
        IsGpt(name) ? 32 * 48 : 0;  // the token embedding is in the first and the last stage
    EXPECT_EQ(trained[0] + trained[1] + trained[2] + trained[3], CountParameters(*models[0]) + twice) << name;
    EXPECT_THAT(tied, twice > 0 ? ElementsAre(1, 0, 0, 1) : ElementsAre(0, 0, 0, 0));
  }
}

TEST(PipelineStages, RefuseWhatCannotBeDivided) {
  const auto gpt = [] { return NewModel("gpt-nano"); };
  TrainingSpec spec;
  spec.engine = "native/pipeline";
  EXPECT_THAT(Error(spec, 2, [] { return MakeModel("vgg16", 10, {}); }),
              HasSubstr("cannot divide this model into stages: use a ResNet or a gpt, or native/ddp"));
  EXPECT_THAT(Error(spec, 6, gpt),
              HasSubstr("5 blocks, too few for 6 stages: set pipeline_stages to at most 5"));
  spec.pipeline_stages = 3;
  EXPECT_THAT(Error(spec, 4, gpt),
              HasSubstr("pipeline_stages is 3, which does not divide the run's 4 ranks"));
  spec.pipeline_stages = 2;
  spec.batch_norm = "sync";
  EXPECT_THAT(Error(spec, 4, gpt), HasSubstr("batch_norm \"sync\""));
}

}  // namespace
}  // namespace scalelab::trainer
