#include "server/core/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

RankState Rank(int rank, bool finished, const std::string& hash = "h") {
  RankState state;
  state.stream.rank = rank;
  state.stream.finished = finished;
  state.stream.parameter_hash = hash;
  return state;
}

v1::SynchronizeRequest::AttemptStatus Exit(int status) {
  v1::SynchronizeRequest::AttemptStatus s;
  s.set_exit_status(status);
  return s;
}

TEST(Provenance, HasTheCodeOfAProgram) {
  v1::CodeSnapshot code;
  auto& file = *code.add_files();
  file.set_path("/home/ada/train.py");
  file.set_sha256("1234");
  code.set_git_root("/home/ada");
  code.set_git_commit("abcd");
  code.set_git_dirty(false);
  const std::string json = ProvenanceJson(std::vector<v1::NodeInfo>(2), {}, code);
  const auto read = CodeOfProvenance(json);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->SerializeAsString(), code.SerializeAsString()) << json;
  EXPECT_TRUE(read->has_git_dirty()) << "that there are no changes is known";
  EXPECT_EQ(NodesOfProvenance(json).size(), 2u);
  EXPECT_FALSE(CodeOfProvenance(ProvenanceJson(std::vector<v1::NodeInfo>(1))).has_value());
  for (const char* other : {"", "{}", "[]", "[1]", R"([{"code":1}])"}) {
    EXPECT_FALSE(CodeOfProvenance(other).has_value()) << other;
  }
}

// Archives may have any text. Recursive code would overflow the stack.
TEST(Provenance, ThatIsNestedDeeplyIsMalformed) {
  for (const char* member : {"noise", "code", "gpus"}) {
    std::string json = absl::StrCat(R"([{")", member, R"(":)", std::string(1'000'000, '['));
    absl::StrAppend(&json, std::string(1'000'000, ']'), "}]");
    EXPECT_TRUE(NoiseOfProvenance(json).empty()) << member;
    EXPECT_FALSE(CodeOfProvenance(json).has_value()) << member;
    EXPECT_TRUE(NodesOfProvenance(json).empty()) << member;
  }
}

TEST(Judge, AllRanksFinishedWithEqualParametersIsSuccess) {
  const Outcome outcome = Judge({Rank(0, true), Rank(1, true)}, Exit(0));
  EXPECT_EQ(outcome.state, db::AttemptState::kSucceeded);
  EXPECT_EQ(outcome.parameter_hash, "h");
}

TEST(Judge, OutOfMemoryOfOneRankExplainsTheDeathOfTheOthers) {
  std::vector<RankState> ranks = {Rank(0, false), Rank(1, false)};
  ranks[1].stream.error_message = "no memory for 3 GiB";
  ranks[1].stream.error_kind = "out_of_memory";
  auto exit = Exit(137);
  exit.set_cause(v1::Attempt::RANK_KILLED);
  const Outcome outcome = Judge(ranks, exit);
  EXPECT_EQ(outcome.cause, db::Cause::kOutOfMemory);
  EXPECT_THAT(outcome.message, HasSubstr("rank 1: no memory"));
}

TEST(Judge, AKilledRankExplainsTheErrorsOfItsPeers) {
  std::vector<RankState> ranks = {Rank(0, false), Rank(1, false)};
  ranks[0].stream.error_message = "peer is gone";
  auto exit = Exit(137);
  exit.set_cause(v1::Attempt::RANK_KILLED);
  EXPECT_EQ(Judge(ranks, exit).cause, db::Cause::kRankKilled);
}

TEST(Judge, AnErrorThatARankWroteIsTheMessage) {
  std::vector<RankState> ranks = {Rank(0, false)};
  ranks[0].stream.error_message = "data_batch_1.bin is short";
  const Outcome outcome = Judge(ranks, Exit(1));
  EXPECT_EQ(outcome.cause, db::Cause::kTrainerError);
  EXPECT_THAT(outcome.message, HasSubstr("data_batch_1.bin is short"));
}

TEST(Judge, ASignalWithoutAnotherReasonKilledARank) {
  EXPECT_EQ(Judge({Rank(0, false)}, Exit(139)).cause, db::Cause::kRankKilled);
}

TEST(Judge, AMissingFinishEventIsExplainedByTheMalformedLine) {
  std::vector<RankState> ranks = {Rank(0, false)};
  ranks[0].stream.first_malformed = "line 17: has a number beyond 1.8e308";
  const Outcome outcome = Judge(ranks, Exit(0));
  EXPECT_EQ(outcome.cause, db::Cause::kNoFinish);
  EXPECT_THAT(outcome.message, HasSubstr("rank 0, line 17: has a number beyond 1.8e308"));
}

TEST(Judge, ExitStatusZeroIsEnoughWhereTheStudySaysSo) {
  const std::vector<RankState> ranks = {Rank(0, true, ""), Rank(1, false, "")};
  EXPECT_EQ(Judge(ranks, Exit(0), false).state, db::AttemptState::kSucceeded);
  EXPECT_EQ(Judge(ranks, Exit(0), true).cause, db::Cause::kNoFinish);
  EXPECT_EQ(Judge(ranks, Exit(3), false).cause, db::Cause::kTrainerError);
  auto missing = Exit(0);
  missing.set_cause(v1::Attempt::NO_FINISH);
  EXPECT_EQ(Judge(ranks, missing, false).cause, db::Cause::kNoFinish) << "a metric is not in the output";
}

Summary SummaryOf(std::map<std::string, double> metrics) {
  RankState rank = Rank(0, true);
  rank.finish_metrics = std::move(metrics);
  db::AttemptRow attempt;
  attempt.nodes = "n0";
  return Summarize(attempt, {rank}, "f");
}

TEST(Summarize, RefusesImpossibleValuesWithAReason) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double wrong : {-5.0, 0.0, 1e300, nan, HUGE_VAL}) {
    SCOPED_TRACE(wrong);
    const Summary summary = SummaryOf({{"run/throughput", wrong}, {"run/epoch_seconds", 2}});
    EXPECT_FALSE(summary.row.throughput.has_value());
    EXPECT_EQ(summary.row.epoch_seconds, 2);
    EXPECT_THAT(summary.refused, HasSubstr("run/throughput of rank 0 is "));
  }
  EXPECT_EQ(SummaryOf({{"run/throughput", -5}}).refused,
            "run/throughput of rank 0 is -5, which is not above 0; the value is not used");
  const Summary shares =
      SummaryOf({{"run/comm_share", 1.7}, {"run/peak_memory_bytes", -1e9}, {"run/steps", nan}});
  EXPECT_FALSE(shares.row.comm_share.has_value());
  EXPECT_FALSE(shares.row.peak_memory.has_value());
  EXPECT_EQ(shares.row.steps, 0);
  EXPECT_THAT(shares.refused, HasSubstr("these values are not used"));
}

TEST(Summarize, TakesPossibleValuesAsTheyAre) {
  const Summary summary =
      SummaryOf({{"run/throughput", 100}, {"run/train_loss", -3}, {"run/comm_share", 0}, {"x", 1e300}});
  EXPECT_EQ(summary.row.throughput, 100);
  EXPECT_EQ(summary.row.train_loss, -3);
  EXPECT_EQ(summary.row.comm_share, 0);
  EXPECT_EQ(summary.refused, "");
  EXPECT_NE(summary.row.nodes_hash, 0);
}

TEST(Summarize, AddsUpTheEnergyOfTheNodesAndLeavesItOutIfOneIsMissing) {
  const auto summarize = [](const std::vector<std::map<std::string, double>>& metrics) {
    std::vector<RankState> ranks;
    for (const auto& of_rank : metrics) {
      ranks.push_back(Rank(static_cast<int>(ranks.size()), true));
      ranks.back().finish_metrics = of_rank;
    }
    db::AttemptRow attempt;
    attempt.nodes = "n0,n1";
    return Summarize(attempt, ranks, "f").row.metrics;
  };
  const std::map<std::string, double> first = {{"run/energy_joules", 300},    {"run/joules_per_sample", 3},
                                               {"run/gpu_utilisation", 0.5},  {"run/gpu_power_w", 100},
                                               {"run/gpu_memory_bytes", 1e9}, {"run/steps", 9}};
  const std::map<std::string, double> second = {{"run/energy_joules", 500},    {"run/joules_per_sample", 5},
                                                {"run/gpu_utilisation", 1},    {"run/gpu_power_w", 200},
                                                {"run/gpu_memory_bytes", 2e9}, {"run/steps", 9}};
  const std::map<std::string, double> other = {{"run/steps", 9}};
  const std::map<std::string, double> both = {{"run/energy_joules", 800},    {"run/joules_per_sample", 8},
                                              {"run/gpu_utilisation", 0.75}, {"run/gpu_power_w", 150},
                                              {"run/gpu_memory_bytes", 2e9}, {"run/steps", 9}};
  EXPECT_EQ(summarize({first, other, second, other}), both);
  EXPECT_EQ(summarize({first, other, other, other}), other);
}

TEST(Summarize, KeepsTheTimesOfAllRanksOrOfNone) {
  const auto summarize = [](const std::vector<std::map<std::string, double>>& metrics) {
    std::vector<RankState> ranks;
    for (const auto& of_rank : metrics) {
      ranks.push_back(Rank(static_cast<int>(ranks.size()), true));
      ranks.back().finish_metrics = of_rank;
    }
    db::AttemptRow attempt;
    attempt.nodes = "n0,n1";
    return Summarize(attempt, ranks, "f").row.times;
  };
  std::map<std::string, double> first = {{"run/mean_step_s", 1},          {"run/comm_exposed_s", 0.25},
                                         {"run/data_s", 0.125},           {"run/comm_total_s", 0.5},
                                         {"run/rank_gradient_norm2", 10}, {"run/mean_gradient_norm2", 4},
                                         {"run/samples_to_accuracy", 900}};
  std::map<std::string, double> second = first;
  second["run/comm_exposed_s"] = 0.5;
  second["run/comm_total_s"] = 0.75;
  second["run/rank_gradient_norm2"] = 14;
  const db::RunTimes times = summarize({first, second});
  EXPECT_EQ(times.nodes, "n0,n1");
  EXPECT_EQ(times.ranks, (std::vector<db::RunTimes::Rank>{{1, 0.25, 0.125}, {1, 0.5, 0.125}}));
  EXPECT_EQ(times.comm_total, 0.625);
  EXPECT_EQ(times.rank_norm, 12);
  EXPECT_EQ(times.mean_norm, 4);
  EXPECT_EQ(times.samples_to_accuracy, 900);
  second.erase("run/data_s");
  second["run/rank_gradient_norm2"] = -1;
  const db::RunTimes partial = summarize({first, second});
  EXPECT_TRUE(partial.ranks.empty());
  EXPECT_FALSE(partial.rank_norm.has_value() || partial.mean_norm.has_value());
  EXPECT_TRUE(summarize({{{"run/throughput", 1}}}).empty());
  EXPECT_EQ(summarize({{{"run/mean_step_s", 1}, {"run/data_s", 0}}}).ranks,
            (std::vector<db::RunTimes::Rank>{{1, 0, 0}}))
      << "one rank waits for no gradients";
}

TEST(Summarize, DerivesTheThroughputOfAProgramThatReportsOnlyItsSteps) {
  RankState rank = Rank(0, true);
  for (int i = 0; i < 9; ++i) rank.steps.Add(*StepTimes::BucketOf(0.5));
  const db::AttemptRow attempt;
  EXPECT_NEAR(*Summarize(attempt, {rank}, "f", 64).row.throughput, 128, 1.3);
  EXPECT_FALSE(Summarize(attempt, {rank}, "f").row.throughput.has_value());
  rank.finish_metrics = {{"run/throughput", 100}};
  EXPECT_EQ(Summarize(attempt, {rank}, "f", 64).row.throughput, 100);
  rank.finish_metrics = {{"run/throughput", -1}};
  EXPECT_FALSE(Summarize(attempt, {rank}, "f", 64).row.throughput.has_value()) << "refused, not replaced";
}

TEST(StepTimes, TheMedianIsThatOfTheStepsToWithinOnePercent) {
  StepTimes times;
  EXPECT_FALSE(times.Median().has_value());
  for (const double seconds : {0.010, 0.020, 0.021, 0.022, 5.0}) times.Add(*StepTimes::BucketOf(seconds));
  EXPECT_NEAR(*times.Median(), 0.021, 0.021 * 0.01);
  EXPECT_FALSE(StepTimes::BucketOf(0).has_value());
  EXPECT_FALSE(StepTimes::BucketOf(-1).has_value());
  EXPECT_FALSE(StepTimes::BucketOf(std::numeric_limits<double>::quiet_NaN()).has_value());
}

TEST(StepTimes, ASumOfStepsDoesNotOverflow) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(AddToStep(7, 5), 12);
  EXPECT_EQ(AddToStep(-7, 5), -2);
  EXPECT_EQ(AddToStep(kLargest - 5, 5), kLargest);
  EXPECT_EQ(AddToStep(kLargest - 4, 5), kLargest);
  EXPECT_EQ(AddToStep(kLargest, 0), kLargest);
}

TEST(Fingerprint, DependsOnHardwareAndSoftwareNotOnTheOrderOfNodes) {
  v1::NodeInfo a, b;
  a.set_cpu_model("x");
  b.set_cpu_model("y");
  EXPECT_EQ(Fingerprint({a, b}), Fingerprint({b, a}));
  EXPECT_EQ(Fingerprint({a, a}), Fingerprint({a}));
  EXPECT_NE(Fingerprint({a}), Fingerprint({b}));
  v1::NodeInfo newer = a;
  (*newer.mutable_software())["libtorch"] = "2";
  EXPECT_NE(Fingerprint({a}), Fingerprint({newer}));
}

TEST(Retries, WhatIsListedAndByDefaultOnlyWhatIsNotTheTrainersFault) {
  v1::Retry retry;
  EXPECT_TRUE(Retries(retry, db::Cause::kNodeFail));
  EXPECT_TRUE(Retries(retry, db::Cause::kRankKilled));
  EXPECT_FALSE(Retries(retry, db::Cause::kTrainerError));
  EXPECT_FALSE(Retries(retry, db::Cause::kOutOfMemory));
  retry.add_on("out_of_memory");
  EXPECT_TRUE(Retries(retry, db::Cause::kOutOfMemory));
  EXPECT_FALSE(Retries(retry, db::Cause::kNodeFail));
}

}  // namespace
}  // namespace scalelab::server
