#include "server/prediction/replay.h"

#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using Sizes = std::vector<PartsOfSize>;

TEST(Replay, ComputationThatDividesAndNoCommunicationLeft) {
  // A step takes 0.1 s, plus 0.01 s for each sample of a rank. Half of the small communication is exposed.
  const Sizes sizes = {{1, {6.5, 0, 0, 640}}, {2, {3.3, 1e-9, 2e-9, 320}}, {4, {1.7, 1.5e-9, 3e-9, 160}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 40, 0).value(), 0.5, 1e-6);
}

TEST(Replay, ABandwidthByHand) {
  // Weak scaling: 1 s of computation, and 0.2 (p - 1) / p s of communication that is exposed.
  const Sizes sizes = {{1, {1, 0, 0, 32}}, {2, {1, 0.1, 0.1, 32}}, {4, {1, 0.15, 0.15, 32}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 32, 0).value(), 1 + 0.2 * 15 / 16, 1e-9);
}

TEST(Replay, AWaitAndHiddenCommunicationByHand) {
  // The same with 0.3 s and 1.2 s of communication. The wait on 4 ranks is 1.0491 x 0.3 / 0.5895 = 0.5339 s,
  // so m = 0.6661 s and h = 0.5161. m g - h w = 1.25 x 0.6661 - 0.5161 = 0.3165 s.
  // docs/users/predictions.md has this example.
  const Sizes sizes = {{1, {1, 0, 0, 32}}, {2, {1, 0.1, 0.3, 32}}, {4, {1, 0.15, 1.2, 32}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 32, 0).value(), 1.3165, 5e-5);
}

TEST(Replay, ALatencyByHand) {
  // 0.01 (p - 1) s of exposed latency.
  const Sizes sizes = {{1, {1, 0, 0, 32}}, {2, {1, 0.01, 0.01, 32}}, {4, {1, 0.03, 0.03, 32}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 32, 0).value(), 1.15, 1e-9);
}

TEST(Replay, CommunicationThatComputationCannotHideIsExposed) {
  // Strong scaling: computation falls from 8 s to 0.5 s on 16 ranks, which can hide 0.25 s, while about 0.83 s of communication on 4
  // ranks become 1.04 s.
  const Sizes sizes = {{1, {8, 0, 0, 64}}, {2, {4, 0.01, 0.08, 32}}, {4, {2, 0.01, 0.9, 16}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 4, 0).value(), 0.5 + 1.04 - 0.25, 0.02);
}

TEST(Replay, WaitingForSlowerRanksIsNoCommunication) {
  // On 2 ranks, half a second of "communication" is the wait for the other rank. This part grows like the
  // expected maximum of normal values.
  const Sizes sizes = {{1, {8, 0, 0, 64}}, {2, {8, 0.001, 0.5, 64}}, {4, {8, 0.001, 0.9, 64}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 64, 0).value(), 8, 0.01);
}

TEST(Replay, OnlyTheNetworkThatTheRanksUseCounts) {
  // Two ranks on a node: the network between nodes is ten times slower.
  const Sizes sizes = {{1, {1, 0, 0, 32}}, {2, {1, 0.01, 0.01, 32}}, {4, {1, 0.15, 0.15, 32}}};
  EXPECT_NEAR(ReplayStep(sizes, 16, 32, 2).value(), 1 + 0.2 * 15 / 16, 1e-9);
}

TEST(Replay, WithoutExposedCommunicationThereIsNoModel) {
  EXPECT_FALSE(ReplayStep({{1, {1, 0, 0, 32}}, {2, {1, 0, 0, 32}}}, 4, 32, 0).has_value());
  EXPECT_FALSE(ReplayStep({{1, {1, 0, 0, 32}}, {2, {0, 0.1, 0.1, 32}}}, 4, 32, 0).has_value());
}

}  // namespace
}  // namespace scalelab::server
