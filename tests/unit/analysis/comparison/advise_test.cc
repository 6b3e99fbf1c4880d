#include "analysis/comparison/advise.h"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"
#include "tests/unit/analysis/simulated_study.h"

namespace scalelab::analysis {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// 1, 2 and 4 ranks with speedups 1, 1.8 and 2.4 in every block, which differ by 1%.
Results ByHand() {
  Results results;
  const auto add = [&](int ranks, double throughput, double epoch_seconds) {
    results.Cell(ranks);
    for (const double block : {1.0, 1.01, 0.99}) {
      results.Ok({throughput * block});
      results.last_row().epoch_seconds = epoch_seconds / block;
    }
  };
  add(1, 100, 3600);
  add(2, 180, 2000);
  add(4, 240, 1500);
  return results;
}

TEST(Advise, FiguresByHand) {
  const auto all = ByHand().Advise({.min_gain = 0.5, .rank_hour_price = 2, .epochs = 10});
  ASSERT_EQ(all.size(), 1u);
  const auto& advice = all[0];
  ASSERT_EQ(advice.sizes_size(), 3);
  // One rank takes 10 hours (the mean over blocks that differ by 1%), 2 ranks 10 / 1.8.
  EXPECT_NEAR(advice.sizes(0).hours().mean(), 10, 0.01);
  EXPECT_NEAR(advice.sizes(1).hours().mean(), 10 / 1.8, 0.01);
  EXPECT_NEAR(advice.sizes(1).cost().mean(), 2 * 2 * 10 / 1.8, 0.02);
  EXPECT_FALSE(advice.sizes(0).has_gain());
  EXPECT_NEAR(advice.sizes(1).gain().mean(), 0.8, 1e-9);
  EXPECT_NEAR(advice.sizes(2).gain().mean(), 240.0 / 180 - 1, 1e-9);
  // 2 ranks cost 22.22, 1 rank 20; they save 4.444 hours: 0.5 for each. By the formula (1.8 / 0.8 - 2) x 2 = 0.5.
  EXPECT_NEAR(advice.sizes(1).hour_price().mean(), 0.5, 1e-9);
  EXPECT_EQ(advice.recommended(), 2);
  EXPECT_THAT(advice.candidates(), ElementsAre(2));
  EXPECT_EQ(advice.cheapest(), 1);
  EXPECT_EQ(advice.fastest(), 4);
  EXPECT_EQ(advice.repeats_needed(), 0);
  EXPECT_THAT(advice.text(),
              AllOf(HasSubstr("Use 2 ranks. From 2 to 4 ranks a doubling gains 33%"),
                    HasSubstr("The cheapest world size is 1 rank with a cost of 20 [19.5, 20.5], "
                              "the fastest is 4 ranks with a time of 4.17 [4.06, 4.27] h.")));
  EXPECT_THAT(advice.open_decisions(), IsEmpty());
}

TEST(Advise, SizesThatCouldBeTheCheapestOrTheFastestAreNamed) {
  const v1::Advice clear = ByHand().Advise({})[0];
  EXPECT_THAT(clear.cheapest_candidates(), ElementsAre(1));
  EXPECT_THAT(clear.fastest_candidates(), ElementsAre(4));
  // The interval of the speedup contains 1, so 1 rank could be faster, and 2, so 2 ranks could cost as little.
  Results noisy;
  noisy.Cell(1).Ok({100, 150, 80}).Cell(2).Ok({150, 110, 160});
  const v1::Advice unclear = noisy.Advise({})[0];
  EXPECT_EQ(unclear.cheapest(), 1);
  EXPECT_EQ(unclear.fastest(), 2);
  EXPECT_THAT(unclear.cheapest_candidates(), ElementsAre(1, 2));
  EXPECT_THAT(unclear.fastest_candidates(), ElementsAre(1, 2));
  EXPECT_THAT(unclear.text(),
              HasSubstr("is 1 rank (possibly 1, 2) with a relative cost of 1, the fastest is 2 ranks "
                        "(possibly 1, 2) with a relative time of 0.769 [0.213, 2.77]."));
}

// Returns "KIND ranks: additional repeats" of each open decision.
std::vector<std::string> OpenOf(const v1::Advice& advice) {
  std::vector<std::string> open;
  for (const v1::OpenDecision& decision : advice.open_decisions())
    open.push_back(absl::StrCat(
        v1::OpenDecision::Kind_Name(decision.kind()), " ", absl::StrJoin(decision.ranks(), ","), ": ",
        decision.has_additional_repeats() ? absl::StrCat(decision.additional_repeats()) : "many"));
  return open;
}

TEST(Advise, NamesTheRunsThatWouldSettleAStep) {
  // The logarithm of the ratio is 0.06 above that of 1.5, with a deviation of 0.05 between blocks. t(n - 1) 0.05 / sqrt(n) is 0.124
  // for the three blocks, 0.062 for five and 0.052 for six.
  Results results;
  results.Cell(1).Ok({100, 100, 100});
  results.Cell(2).Ok({150 * std::exp(0.01), 150 * std::exp(0.06), 150 * std::exp(0.11)});
  const v1::Advice advice = results.Advise({})[0];
  EXPECT_THAT(OpenOf(advice), ElementsAre("GAIN 1,2: 3"));
  EXPECT_EQ(advice.repeats_needed(), 6);
  EXPECT_THAT(advice.text(),
              HasSubstr("About 3 additional repeats of 1 and 2 ranks would settle whether the step "
                        "from 1 to 2 ranks pays."));
}

TEST(Advise, NamesTheRunsThatWouldSettleTheCheapestAndTheFastest) {
  // The logarithms of the ratios have a mean of 0.2628 and a deviation of 0.5166. t(n - 1) / sqrt(n) is below 0.2628 / 0.5166, the
  // distance from 1, from 18 repeats on; below 0.4303 / 0.5166, the distance from 2, from 9 on; below
  // 0.1426 / 0.5166, the distance from 1.5, from 53 on.
  Results results;
  results.Cell(1).Ok({100, 150, 80}).Cell(2).Ok({150, 110, 160});
  const v1::Advice advice = results.Advise({})[0];
  EXPECT_THAT(OpenOf(advice), ElementsAre("GAIN 1,2: 50", "CHEAPEST 1,2: 6", "FASTEST 1,2: 15"));
  EXPECT_THAT(
      advice.text(),
      AllOf(HasSubstr(
                "About 6 additional repeats of 1 and 2 ranks would settle which of them is the cheapest."),
            HasSubstr(
                "About 15 additional repeats of 1 and 2 ranks would settle which of them is the fastest.")));
}

TEST(Advise, WithoutAnIntervalItNeedsTwoMoreRepeats) {
  Results results;
  results.Cell(1).Ok({100}).Cell(2).Ok({180});
  EXPECT_THAT(OpenOf(results.Advise({})[0]), ElementsAre("GAIN 1,2: 2", "CHEAPEST 1,2: 2", "FASTEST 1,2: 2"));
}

TEST(Advise, ADifferenceThatNeedsManyRepeatsDoesNotMatter) {
  Results results;
  results.Cell(1).Ok({100, 108, 95}).Cell(2).Ok({150, 149, 156});
  const v1::Advice advice = results.Advise({})[0];
  EXPECT_THAT(OpenOf(advice), Contains("GAIN 1,2: many"));
  EXPECT_THAT(advice.text(),
              HasSubstr("More than 100 additional repeats of 1 and 2 ranks would be needed to settle "
                        "whether the step from 1 to 2 ranks pays"));
}

// World sizes in three blocks, in which an epoch takes 0.9, 1 and 1.1 times the given hours. With 0 hours, the runs report none.
Results WithHours(const std::vector<std::array<double, 3>>& ranks_throughput_hours) {
  Results results;
  for (const auto& [ranks, throughput, hours] : ranks_throughput_hours) {
    results.Cell(static_cast<int>(ranks));
    for (const double block : {0.9, 1.0, 1.1}) {
      results.Ok({throughput / block});
      if (hours > 0) results.last_row().epoch_seconds = 3600 * hours * block;
    }
  }
  return results;
}

TEST(Advise, NamesTheRunsThatWouldSettleADeadline) {
  const Results results = WithHours({{1, 100, 1}, {2, 190, 0.5}});
  // 0.5 hours with a deviation of 0.05: t(n - 1) 0.05 / sqrt(n) is 0.052 for six repeats and 0.046 for seven.
  const v1::Advice in_time = results.Advise({.deadline_hours = 0.55})[0];
  EXPECT_EQ(in_time.recommended(), 2);
  EXPECT_THAT(OpenOf(in_time), ElementsAre("DEADLINE 2: 4"));
  EXPECT_EQ(in_time.repeats_needed(), 7);
  EXPECT_THAT(in_time.text(),
              HasSubstr("About 4 additional repeats of 2 ranks would settle whether the training "
                        "with 2 ranks meets the deadline of 0.55 h."));
  const v1::Advice late = results.Advise({.deadline_hours = 0.45})[0];
  EXPECT_EQ(late.recommended(), 0);
  EXPECT_THAT(OpenOf(late), ElementsAre("DEADLINE 2: 4"));
  EXPECT_THAT(late.text(), HasSubstr("Probably no measured world size meets the deadline of 0.45 h."));
  EXPECT_THAT(OpenOf(results.Advise({.deadline_hours = 0.1})[0]), IsEmpty()) << "certainly late";
}

TEST(Advise, EverySizeThatMayMeetTheDeadlineIsACandidate) {
  const Results results = WithHours({{1, 100, 1.05}, {2, 103, 1.02}, {4, 200, 0.5}});
  const v1::Advice advice = results.Advise({.deadline_hours = 1})[0];
  EXPECT_EQ(advice.recommended(), 4);
  EXPECT_THAT(advice.candidates(), ElementsAre(1, 2, 4));
  EXPECT_THAT(OpenOf(advice), ElementsAre(StartsWith("DEADLINE 1: "), StartsWith("DEADLINE 2: ")));
}

TEST(Advise, HoursThatComeFromTheSpeedupHaveAnInterval) {
  const Results results = WithHours({{1, 100, 1}, {2, 200, 0}});
  const v1::Advice advice = results.Advise({.deadline_hours = 0.9})[0];
  // Half of 1 +- t 0.1 / sqrt(3), where t = 6.2054 is the 98.75% quantile with two degrees of freedom. The speedup has no noise.
  EXPECT_NEAR(advice.sizes(1).hours().mean(), 0.5, 1e-9);
  EXPECT_NEAR(advice.sizes(1).hours().low(), 0.3209, 1e-4);
  EXPECT_NEAR(advice.sizes(1).hours().high(), 0.6791, 1e-4);
  EXPECT_TRUE(advice.sizes(1).in_time());
}

TEST(Advise, ADeadlineIsMetEvenIfTheStepDoesNotPay) {
  const auto in_time = ByHand().Advise({.deadline_hours = 5, .epochs = 10})[0];
  EXPECT_EQ(in_time.recommended(), 4);
  EXPECT_FALSE(in_time.sizes(1).in_time());
  EXPECT_TRUE(in_time.sizes(2).in_time());
  const auto late = ByHand().Advise({.deadline_hours = 1, .epochs = 10})[0];
  EXPECT_EQ(late.recommended(), 0);
  EXPECT_THAT(late.text(), HasSubstr("No measured world size meets the deadline of 1 h."));
}

TEST(Advise, TheIntervalOfHoursIsThatOfTheEpochsOfTheSizeItself) {
  // The epochs of both sizes vary by 10% together, so the speedup is exact, but the hours are not.
  Results results;
  for (const int ranks : {1, 2}) {
    results.Cell(ranks);
    for (const double block : {0.9, 1.0, 1.1}) {
      results.Ok({100 * ranks / block});
      results.last_row().epoch_seconds = 3600 * block / ranks;
    }
  }
  const auto advice = results.Advise({.deadline_hours = 1.1})[0];
  // Student's t interval of 0.9, 1 and 1.1 hours: 1 +- 4.303 x 0.1 / sqrt(3).
  EXPECT_NEAR(advice.sizes(0).hours().mean(), 1, 1e-9);
  EXPECT_NEAR(advice.sizes(0).hours().low(), 0.7516, 1e-4);
  EXPECT_NEAR(advice.sizes(0).hours().high(), 1.2484, 1e-4);
  EXPECT_NEAR(advice.sizes(1).cost().high(), 1.2484, 1e-4);
  EXPECT_FALSE(advice.sizes(0).has_in_time()) << "the interval contains the deadline";
  EXPECT_TRUE(advice.sizes(1).in_time());
}

TEST(Advise, OneRepeatHasNoIntervalOfHours) {
  Results results;
  results.Cell(1).Ok({100});
  results.last_row().epoch_seconds = 3600;
  results.Cell(2).Ok({180});
  results.last_row().epoch_seconds = 2000;
  const auto advice = results.Advise({.deadline_hours = 2})[0];
  EXPECT_DOUBLE_EQ(advice.sizes(0).hours().mean(), 1);
  EXPECT_FALSE(advice.sizes(0).hours().has_low());
  EXPECT_FALSE(advice.sizes(0).has_in_time());
}

TEST(Advise, WithoutTimesOfEpochsADeadlineCannotBeMet) {
  Results results;
  results.Cell(1).Ok({100, 101, 99}).Cell(2).Ok({180, 181.8, 178.2});
  const auto advice = results.Advise({.deadline_hours = 2})[0];
  EXPECT_FALSE(advice.sizes(0).has_in_time());
  EXPECT_FALSE(advice.sizes(1).has_in_time());
  EXPECT_EQ(advice.recommended(), 2);
  EXPECT_THAT(advice.text(),
              AllOf(HasSubstr("no run/epoch_seconds"), HasSubstr("The deadline is not considered")));
}

TEST(Advise, WhatTheNoiseLeavesOpenIsUndecided) {
  Results results;
  results.Cell(1).Ok({100, 108, 95}).Cell(2).Ok({150, 149, 156});
  const auto advice = results.Advise({})[0];
  EXPECT_THAT(advice.candidates(), ElementsAre(1, 2));
  EXPECT_GT(advice.repeats_needed(), 3);
  EXPECT_THAT(advice.text(), AllOf(HasSubstr("Undecided: 1 or 2 ranks"), HasSubstr("ranks")));
}

TEST(Advise, AStepOfFourTimesTheRanksIsTwoDoublings) {
  Results results;
  results.Cell(2).Ok({100, 101, 99}).Cell(8).Ok({225, 227.25, 222.75});
  EXPECT_NEAR(results.Advise({})[0].sizes(1).gain().mean(), 0.5, 1e-9);
}

TEST(Advise, OneWorldSizeLeavesNothingToChoose) {
  Results results;
  results.Cell(2).Ok({100, 101});
  EXPECT_THAT(results.Advise({})[0].text(), HasSubstr("nothing to choose"));
}

TEST(Advise, FixedRanksLeaveNothingToChoose) {
  Results results;
  results.FixedRanks(4, R"({"engine":"a"})").Ok({100, 101}).FixedRanks(4, R"({"engine":"b"})").Ok({90, 91});
  const auto advice = results.Advise({});
  ASSERT_EQ(advice.size(), 2u);
  for (const v1::Advice& of_engine : advice) {
    ASSERT_EQ(of_engine.sizes_size(), 1);
    EXPECT_EQ(of_engine.sizes(0).ranks(), 4);
    EXPECT_EQ(of_engine.text(), "Only one world size has results, so there is nothing to choose.");
  }
}

TEST(Advise, OnSimulatedTruthsIsRightOrUndecided) {
  for (const Truth& truth : AdviceTruths()) {
    const Decisions decisions = AdviceDecisions(truth, 200, 21);
    EXPECT_GE(decisions.right, 0.9) << "serial " << truth.serial;
    EXPECT_GE(decisions.undecided, 0.8) << "serial " << truth.serial;
  }
}

// The expected shares follow from the distance of 1.8 standard errors: the estimate is on the right side in Phi(1.8) = 96% of the
// studies, and the interval of 2.2 to 2.5 standard errors contains the limit in 66 to 76%. 200 studies have standard errors
// of 1.4% and 3.3%.
TEST(Advise, OnSimulatedTruthsNearTheLimitIsRightOrUndecided) {
  for (const NearTruth& near : AdviceTruthsNearTheLimit()) {
    const Decisions decisions = AdviceDecisions(near.truth, 200, 22, near.noise);
    EXPECT_GE(decisions.right, 0.9) << near.noise.name;
    EXPECT_GE(decisions.undecided, 0.8) << near.noise.name;
    EXPECT_GE(decisions.open, 0.6) << near.noise.name;
    EXPECT_LE(decisions.open, 0.9) << near.noise.name;
  }
}

// If the gain is exactly the least one, there is no right size, and 95% intervals contain the limit in at least 95% of the studies.
TEST(Advise, OnATruthAtTheLimitIsUndecided) {
  const Truth truth = {.ranks = {1, 2, 4, 8, 16}, .serial = 1.0 / 17};
  ASSERT_NEAR(truth.Throughput(16) / truth.Throughput(8), 1.5, 1e-12);
  for (const double noise : {0.02, 0.05})
    EXPECT_GE(AdviceDecisions(truth, 200, 23, {.name = "", .run = noise, .block = 0.03}).open, 0.92) << noise;
}

}  // namespace
}  // namespace scalelab::analysis
