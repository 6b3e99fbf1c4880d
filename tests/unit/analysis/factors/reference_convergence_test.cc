#include "analysis/factors/reference_convergence.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::TimeToTarget;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const ReferenceTask kTask{"resnet20", "cifar10", 0.9};

// Without the extremes, 980, 1000 and 1020 samples remain: mean 1000, deviation sqrt(800 / 3).
const std::vector<std::optional<double>> kThousand = {1000, 1200, 900, 1020, 980};
// The same with a mean of 1500.
const std::vector<std::optional<double>> kFifteenHundred = {1400, 1480, 1500, 1700, 1520};
// For five repeats: t = 2.131847 is the 95% quantile with 4 degrees of freedom, and
// 1000 - 2.131847 sqrt(800 / 3) sqrt(1 / 3 + 1 / 3) = 1000 - 2.131847 * 40 / 3.
constexpr double kNoise = 2.131847 * 40 / 3;

// Compares a point of five repeats that need 100 s.
TimeToTarget Compared(const SamplesByBatch& reference, int batch, double samples) {
  TimeToTarget point;
  point.set_n(5);
  point.set_reached(5);
  point.set_seconds(100);
  point.set_samples(samples);
  CompareWithReference({"studies/9", {{kTask, reference}}}, kTask, batch, point);
  return point;
}

TEST(ReferenceConvergence, FewerSamplesThanNoiseExplainsAreReported) {
  const TimeToTarget point = Compared({{128, kThousand}}, 128, 960);
  EXPECT_DOUBLE_EQ(point.reference_samples(), 1000);
  EXPECT_NEAR(point.reference_limit(), 1000 - kNoise, 1e-3);
  EXPECT_FALSE(point.has_normalised_seconds());
  EXPECT_THAT(point.note(),
              StartsWith("converges faster than the reference studies/9: 960 samples instead of "
                         "1000 (its noise explains a mean down to 971.575); check"));
}

TEST(ReferenceConvergence, ATimeWithinTheNoiseIsNormalised) {
  const TimeToTarget point = Compared({{128, kThousand}}, 128, 980);
  EXPECT_NEAR(point.normalised_seconds(), 100.0 * 1000 / 980, 1e-9);
  EXPECT_EQ(
      point.note(),
      "converges faster than the reference studies/9, within its noise; multiplied by 1.02, the time is "
      "102 s");
}

TEST(ReferenceConvergence, ASlowerPointKeepsItsTime) {
  const TimeToTarget point = Compared({{128, kThousand}}, 128, 1100);
  EXPECT_DOUBLE_EQ(point.normalised_seconds(), 100);
  EXPECT_EQ(point.note(), "");
}

TEST(ReferenceConvergence, IsInterpolatedBetweenBatches) {
  const TimeToTarget point = Compared({{128, kThousand}, {512, kFifteenHundred}}, 256, 1300);
  EXPECT_NEAR(point.reference_samples(), 1000 + 500.0 / 3, 1e-9);
  EXPECT_NEAR(point.reference_limit(), 1000 + 500.0 / 3 - kNoise, 1e-3);
}

TEST(ReferenceConvergence, APointAboveTheLineThroughItsNeighboursIsNoReference) {
  std::vector<std::optional<double>> slow;
  for (const auto& samples : kThousand) slow.push_back(*samples + 400);
  const TimeToTarget point = Compared({{128, kThousand}, {256, slow}, {512, kFifteenHundred}}, 256, 1300);
  EXPECT_NEAR(point.reference_samples(), 1000 + 500.0 / 3, 1e-9);
}

TEST(ReferenceConvergence, BelowTheFastestBatchThatBatchIsTheReference) {
  const TimeToTarget point = Compared({{64, kFifteenHundred}, {128, kThousand}}, 64, 1100);
  EXPECT_DOUBLE_EQ(point.reference_samples(), 1000);
  EXPECT_EQ(point.note(), "");
}

TEST(ReferenceConvergence, ALargerBatchHasNoReference) {
  const TimeToTarget point = Compared({{128, kThousand}}, 256, 960);
  EXPECT_FALSE(point.has_reference_samples());
  EXPECT_EQ(point.note(),
            "the reference studies/9 has no batch of 256 or more; add repeats with this batch to it");
}

TEST(ReferenceConvergence, ThreeRepeatsAndOtherTargetsAreNoReference) {
  EXPECT_THAT(Compared({{128, {1000, 1010, 1020}}}, 128, 960).note(), HasSubstr("at least 4 repeats"));
  TimeToTarget point;
  point.set_n(5);
  point.set_samples(960);
  CompareWithReference({"studies/9", {{kTask, {{128, kThousand}}}}}, {"resnet20", "cifar10", 0.8}, 128,
                       point);
  EXPECT_THAT(point.note(), HasSubstr("at least 4 repeats of this model, data set and target"));
}

TEST(ReferenceConvergence, EqualRepeatsHaveNoNoise) {
  const SamplesByBatch exact = {{128, {1000, 1000, 1000, 1000}}};
  EXPECT_DOUBLE_EQ(Compared(exact, 128, 1000).reference_limit(), 1000);
  EXPECT_THAT(Compared(exact, 128, 999).note(), HasSubstr("cannot be compared"));
}

TEST(ReferenceConvergence, ASmallerBatchMayNeedFewerSamples) {
  const scalelab::v1::TimeToTarget point = Compared({{128, kThousand}}, 64, 900);
  EXPECT_FALSE(point.has_reference_samples());
  EXPECT_THAT(point.note(), HasSubstr("has no batch of 64 or less"));
}

// Adds a cell whose repeats need these samples, and a second for each. 0: the target was not reached.
void AddRepeats(Results& results, int ranks, const std::vector<double>& samples) {
  results.Engine("native/ddp", ranks,
                 ",\"model\":\"resnet20\",\"dataset\":\"cifar10\",\"target_accuracy\":0.9");
  for (const double needed : samples) {
    results.Ok({100});
    if (needed > 0) results.last_row().time_to_accuracy = needed;
    db::RunTimes times;
    times.ranks.assign(static_cast<size_t>(ranks), {1, 0, 0});
    if (needed > 0) times.samples_to_accuracy = needed;
    results.Times(times);
  }
}

TEST(ReferenceConvergence, ACurveIsComparedWithTheRunsOfAnotherStudy) {
  Results reference, results;
  AddRepeats(reference, 1, {900, 980, 1000});
  AddRepeats(reference, 2, {1020, 0});  // with the same global batch
  AddRepeats(results, 1, {1100, 1100, 1100, 1100, 1100});
  AddRepeats(results, 4, {960, 960, 960, 960, 960});
  const ReferenceRuns runs = reference.AsReference("studies/9");
  ASSERT_EQ(runs.samples.size(), 1u);
  EXPECT_EQ(runs.samples.begin()->second.at(256).size(), 5u);
  const auto curve = results.Explained(true, {}, &runs);
  EXPECT_EQ(curve.series(0).points(0).time_to_target().note(), "");
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).time_to_target().reference_samples(), 1000);
  EXPECT_NEAR(curve.series(0).points(1).time_to_target().reference_limit(), 1000 - kNoise, 1e-3);
  EXPECT_THAT(curve.series(0).points(1).time_to_target().note(), HasSubstr("than the reference studies/9"));
  const auto alone = results.Explained();
  EXPECT_FALSE(alone.series(0).points(1).time_to_target().has_reference_samples());
  EXPECT_THAT(alone.series(0).points(1).time_to_target().note(), HasSubstr("of the base case"));
}

}  // namespace
}  // namespace scalelab::analysis
