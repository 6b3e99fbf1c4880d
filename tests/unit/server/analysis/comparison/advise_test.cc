#include "server/analysis/comparison/advise.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/analysis/fixture.h"
#include "tests/unit/server/analysis/simulated_study.h"

namespace scalelab::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  EXPECT_THAT(advice.text(), AllOf(HasSubstr("Use 2 ranks. From 2 to 4 ranks a doubling gains 33%"),
                                   HasSubstr("The cheapest world size is 1 rank, the fastest is 4 ranks.")));
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
              HasSubstr("is 1 rank (possibly 1, 2), the fastest is 2 ranks (possibly 1, 2)."));
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

TEST(Advise, OnSimulatedTruthsIsRightOrUndecided) {
  for (const Truth& truth : AdviceTruths()) {
    const Decisions decisions = AdviceDecisions(truth, 200, 21);
    EXPECT_GE(decisions.right, 0.9) << "serial " << truth.serial;
    EXPECT_GE(decisions.undecided, 0.8) << "serial " << truth.serial;
  }
}

}  // namespace
}  // namespace scalelab::server
