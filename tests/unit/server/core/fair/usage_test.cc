#include "server/core/fair/usage.h"

#include <gtest/gtest.h>

#include <cmath>

namespace scalelab::server {
namespace {

constexpr db::Micros kStart = 1'800'000'000'000'000;  // the beginning of an hour
constexpr db::Micros kHour = db::kHour;
constexpr absl::Duration kHalfLife = absl::Hours(1);
// Decayed usage of a node that is held for ever, with a half-life of one hour: 3600 s / ln 2.
constexpr double kWhole = 5193.702;

Holding Of(const std::string& owner, int nodes, db::Micros from, db::Micros until, int gpus = 0) {
  return {owner, "gpu", nodes, gpus, from, until};
}

TEST(Usage, OneHalfLifeCountsHalfOfAnEndlessTime) {
  EXPECT_NEAR(DecayedSeconds(kStart, kStart + kHour, kStart + kHour, kHalfLife), kWhole / 2, 0.01);
  EXPECT_NEAR(DecayedSeconds(kStart, kStart + 2 * kHour, kStart + 2 * kHour, kHalfLife), kWhole * 3 / 4,
              0.01);
  // One hour, which is one half-life, later the usage counts half as much.
  EXPECT_NEAR(DecayedSeconds(kStart, kStart + kHour, kStart + 2 * kHour, kHalfLife), kWhole / 4, 0.01);
  EXPECT_EQ(DecayedSeconds(kStart, kStart, kStart, kHalfLife), 0);
  EXPECT_EQ(DecayedSeconds(kStart + 5, kStart, kStart, kHalfLife), 0);
}

TEST(Usage, AShortTimeCountsAsItIs) {
  EXPECT_NEAR(DecayedSeconds(kStart, kStart + 1'000'000, kStart + 1'000'000, absl::Hours(24 * 7)), 1, 1e-6);
}

TEST(Usage, DoesNotDependOnThePartsInWhichItIsCharged) {
  UsageLedger once, often;
  once.set_half_life(kHalfLife);
  often.set_half_life(kHalfLife);
  db::WriteBatch batch;
  const db::Micros end = kStart + 5 * kHour;
  once.Charge(Of("ann", 3, kStart, end), end, batch);
  for (db::Micros at = kStart; at < end; at += 60'000'000)
    often.Charge(Of("ann", 3, at, at + 60'000'000), at + 60'000'000, batch);
  const db::UsageRow a = once.At("ann", end + kHour), b = often.At("ann", end + kHour);
  EXPECT_NEAR(a.decayed_node_seconds, b.decayed_node_seconds, 1e-6);
  EXPECT_NEAR(a.decayed_node_seconds, 3 * kWhole * (1 - std::exp2(-5)) / 2, 0.1);
  EXPECT_NEAR(a.node_seconds, 3 * 5 * 3600, 1e-6);
  EXPECT_NEAR(b.node_seconds, 3 * 5 * 3600, 1e-6);
}

TEST(Usage, TheExampleOfTheOperatorsGuide) {
  UsageLedger ledger;
  ledger.set_half_life(kHalfLife);
  db::WriteBatch batch;
  const db::Micros end = kStart + 3 * kHour;
  ledger.Charge(Of("ann", 4, kStart + kHour, end), end, batch);
  ledger.Charge(Of("bob", 2, kStart + 2 * kHour, end), end, batch);
  EXPECT_NEAR(ledger.At("ann", end).decayed_node_seconds, 15'581, 1);
  EXPECT_NEAR(ledger.At("bob", end).decayed_node_seconds, 5'194, 1);
  EXPECT_EQ(ledger.At("cyd", end).decayed_node_seconds, 0);
  EXPECT_NEAR(ledger.At("ann", end + kHour).decayed_node_seconds, 7'791, 1);
  EXPECT_NEAR(ledger.At("bob", end + kHour).decayed_node_seconds, 2'597, 1);
}

TEST(Usage, IsTheSameAfterItWasStored) {
  UsageLedger ledger;
  db::WriteBatch batch;
  ledger.Charge(Of("ann", 2, kStart, kStart + kHour, 8), kStart + kHour, batch);
  ledger.Charge(Of("bob", 1, kStart, kStart + kHour), kStart + kHour, batch);
  ledger.Charge(Of("ann", 2, kStart + kHour, kStart + 2 * kHour, 8), kStart + 2 * kHour, batch);
  db::ServiceState stored;
  for (const db::UsageRow& row : batch.usage) {
    std::erase_if(stored.usage, [&](const db::UsageRow& old) { return old.owner == row.owner; });
    stored.usage.push_back(row);
  }
  stored.usage_hours = batch.usage_hours;
  UsageLedger again;
  again.Restore(stored);
  const db::Micros later = kStart + 30 * kHour;
  EXPECT_EQ(again.At("ann", later).decayed_node_seconds, ledger.At("ann", later).decayed_node_seconds);
  EXPECT_EQ(again.At("ann", later).gpu_seconds, 2 * 3600 * 8);
  EXPECT_EQ(again.At("bob", later).node_seconds, 3600);
  EXPECT_EQ(again.GpuSecondsOfWeek("ann", "gpu", later), 2 * 3600 * 8);
  EXPECT_EQ(again.GpuSecondsOfWeek("ann", "cpu", later), 0);
}

TEST(Usage, GpuSecondsAreForgottenAfterAWeek) {
  UsageLedger ledger;
  db::WriteBatch batch;
  const db::Micros week = 7 * 24 * kHour;
  ledger.Charge(Of("ann", 1, kStart + kHour / 2, kStart + kHour + kHour / 2, 2), kStart + 2 * kHour, batch);
  ASSERT_EQ(batch.usage_hours.size(), 2u);
  EXPECT_EQ(batch.usage_hours[0].gpu_seconds, 3600);
  EXPECT_EQ(ledger.GpuSecondsOfWeek("ann", "gpu", kStart + week), 7200);
  EXPECT_EQ(ledger.GpuSecondsOfWeek("ann", "gpu", kStart + week + kHour), 3600);
  EXPECT_EQ(ledger.GpuSecondsOfWeek("ann", "gpu", kStart + week + 2 * kHour), 0);
}

}  // namespace
}  // namespace scalelab::server
