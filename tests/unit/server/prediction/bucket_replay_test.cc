#include "server/prediction/bucket_replay.h"

#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using Sizes = std::vector<RecordedSize>;

// Returns a step of 1 s of computation, of which backward takes 0.6 s, with two buckets. `cost` determines
// the seconds of their all-reduces.
RecordedSize Size(int ranks, const RingCost& cost, double exposed = 0) {
  RecordedStep step{0.6, {{1e6, 0.2, 0}, {2e6, 0.6, 0}}};
  if (ranks > 1) {
    for (RecordedBucket& bucket : step.buckets) bucket.reduce = cost.Seconds(ranks, bucket.bytes);
  }
  return {ranks, {1, exposed, 0, 32}, {step}};
}

TEST(BucketReplay, TheCostOfARingByHand) {
  // 2 x 3 messages of a quarter of 1e6 bytes: 6 x 0.001 + 1.5e6 x 1e-8.
  EXPECT_NEAR((RingCost{0.001, 1e-8}.Seconds(4, 1e6)), 0.021, 1e-12);
}

TEST(BucketReplay, LatencyAndBandwidthAreFoundFromOneSize) {
  const RingCost cost{0.002, 3e-8};
  const auto fitted = FitRing({Size(1, cost), Size(4, cost)}, 16, 0);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->alpha, cost.alpha, 1e-9);
  EXPECT_NEAR(fitted->beta, cost.beta, 1e-15);
}

TEST(BucketReplay, BucketsWaitForTheOnesBeforeThem) {
  const RecordedStep step{1, {{1e6, 0.5, 0}, {1e6, 0.6, 0}, {1e6, 1, 0}}};
  // Each takes 0.3 s on 2 ranks: 0.5 to 0.8, 0.8 to 1.1, 1.1 to 1.4.
  const RingCost cost{0, 3e-7};
  EXPECT_NEAR(SimulateExposed(step, cost, 2, 1), 0.4, 1e-9);
  // Backward of 2 s: the last bucket is ready when the others are done.
  EXPECT_NEAR(SimulateExposed(step, cost, 2, 2), 0.3, 1e-9);
}

TEST(BucketReplay, AStepByHand) {
  // alpha = 1 ms, beta = 1e-8 s. On 16 ranks the buckets take 30 x 0.001 + 1.875e6 x 1e-8 = 0.04875 s and 0.0675 s; the first is
  // hidden, so the step is 1.0675 s.
  const RingCost cost{0.001, 1e-8};
  const Sizes sizes = {Size(1, cost), Size(2, cost, cost.Seconds(2, 2e6)),
                       Size(4, cost, cost.Seconds(4, 2e6))};
  EXPECT_NEAR(ReplayBuckets(sizes, 16, 32, 0).value(), 1.0675, 1e-9);
}

TEST(BucketReplay, WhatTheSimulationDoesNotExplainIsWaitingAndGrowsSlowly) {
  const RingCost cost{0.001, 1e-8};
  const double on_four = cost.Seconds(4, 2e6);
  const Sizes sizes = {Size(1, cost), Size(2, cost, cost.Seconds(2, 2e6)), Size(4, cost, on_four + 0.01)};
  const double step = ReplayBuckets(sizes, 16, 32, 0).value();
  EXPECT_NEAR(step, 1.0675 + 0.01 * LargestOf(16) / LargestOf(4), 1e-9);
  EXPECT_LT(step, 1.0675 + 0.02) << "four times the ranks";
}

TEST(BucketReplay, ANetworkThatWasNotMeasuredIsNotReplayed) {
  const RingCost cost{0.001, 1e-8};
  const Sizes on_one_node = {Size(1, cost), Size(2, cost), Size(4, cost)};
  EXPECT_FALSE(ReplayBuckets(on_one_node, 16, 32, 4).has_value()) << "16 ranks are on four nodes";
  EXPECT_TRUE(ReplayBuckets(on_one_node, 16, 32, 16).has_value());
}

TEST(BucketReplay, OnlyAllReducesOfTheSameNetworkAreFitted) {
  const RingCost within{0.0001, 1e-9}, between{0.001, 1e-8};
  const auto fitted = FitRing({Size(1, within), Size(2, within), Size(4, between), Size(8, between)}, 16, 2);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(fitted->alpha, between.alpha, 1e-9);
}

TEST(BucketReplay, AMeasuredNetworkReplacesTheRecordedAllReduces) {
  const RingCost measured{0.001, 1e-8}, recorded{0.002, 2e-8};
  std::vector<AllReduceTime> times;
  for (const double bytes : {1e3, 1e6, 1e8}) times.push_back({4, bytes, measured.Seconds(4, bytes)});
  const RingCost network = FitRing(times);
  EXPECT_NEAR(network.alpha, measured.alpha, 1e-9);
  EXPECT_NEAR(network.beta, measured.beta, 1e-15);
  const Sizes sizes = {Size(1, recorded), Size(2, recorded), Size(4, recorded)};
  EXPECT_NEAR(ReplayBuckets(sizes, 16, 32, 0, network).value(), 1.0675, 1e-9) << "as in AStepByHand";
  EXPECT_GT(ReplayBuckets(sizes, 16, 32, 0).value(), 1.1);
  EXPECT_TRUE(ReplayBuckets(sizes, 16, 32, 4, network).has_value()) << "the network between nodes is known";
}

TEST(BucketReplay, WithoutRecordedBucketsOfTheLargestSizeThereIsNone) {
  const RingCost cost{0.001, 1e-8};
  Sizes sizes = {Size(1, cost), Size(2, cost), Size(4, cost)};
  sizes.back().steps.clear();
  EXPECT_FALSE(ReplayBuckets(sizes, 16, 32, 0).has_value());
}

}  // namespace
}  // namespace scalelab::server
