#include "server/core/fair/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Limits, LaterRulesReplaceWhatTheyContain) {
  Limits limits;
  limits.rules.resize(3);
  limits.rules[0].pending_allocations = 2;
  limits.rules[0].runs = 9;
  limits.rules[1].user = "ann";
  limits.rules[1].pending_allocations = 5;
  limits.rules[2].partition = "gpu";
  limits.rules[2].pending_allocations = 1;
  EXPECT_EQ(limits.For("bob", "").pending_allocations, 2);
  EXPECT_EQ(limits.For("ann", "").pending_allocations, 5);
  EXPECT_EQ(limits.For("ann", "gpu").pending_allocations, 1);
  EXPECT_EQ(limits.For("ann", "gpu").runs, 9);
  EXPECT_EQ(Limits().For("ann", "").pending_allocations, 4);
  EXPECT_EQ(Limits().For("ann", "").runs, LimitSet::kNone);
}

TEST(Limits, TheSentenceHasTheLimitItsValueAndTheUse) {
  Limits limits;
  LimitRule rule;
  rule.running_allocations = 8;
  rule.runs = 20;
  rule.gpu_hours_per_week = 100;
  limits.rules = {rule};
  limits.partition_pending_allocations = 6;
  const auto reached = [&](const Use& use) { return ReachedLimit(limits, "ann", "gpu", use); };
  EXPECT_EQ(reached({}), "");
  EXPECT_EQ(reached({.pending_allocations = 3, .running_allocations = 4, .runs = 19, .gpu_hours_week = 99}),
            "");
  EXPECT_THAT(reached({.pending_allocations = 4}),
              AllOf(HasSubstr("pending_allocations of ann in partition gpu"), HasSubstr("4 of 4 jobs")));
  EXPECT_THAT(
      reached({.pending_allocations = 1, .running_allocations = 7}),
      AllOf(HasSubstr("running_allocations of ann"), HasSubstr("7 run and 1 wait"), HasSubstr("limit is 8")));
  EXPECT_THAT(reached({.runs = 20}), AllOf(HasSubstr("limit runs of ann"), HasSubstr("20 of 20 runs")));
  EXPECT_THAT(reached({.gpu_hours_week = 100.25}),
              AllOf(HasSubstr("gpu_hours_per_week of ann"), HasSubstr("100.2 of 100 GPU-hours")));
  EXPECT_THAT(reached({.pending_in_partition = 6}),
              AllOf(HasSubstr("partition_pending_allocations of partition gpu"),
                    HasSubstr("6 of 6 jobs of all users")));
  EXPECT_THAT(ReachedLimit(Limits(), "ann", "", {.pending_allocations = 4}),
              HasSubstr("in the default partition"));
}

}  // namespace
}  // namespace scalelab::server
