#include "server/core/backoff.h"

#include <gtest/gtest.h>

#include <set>

namespace scalelab::server {
namespace {

constexpr BackoffLimits kLimits{1'000'000, 300'000'000};

TEST(Backoff, DoublesUpToTheLimit) {
  db::Micros full = kLimits.first;
  for (int failures = 1; failures <= 40; ++failures, full = std::min(2 * full, kLimits.longest)) {
    const db::Micros delay = Backoff(failures, kLimits, "key");
    EXPECT_GE(delay, full * 3 / 4) << failures;
    EXPECT_LE(delay, full * 5 / 4) << failures;
  }
}

TEST(Backoff, VariesWithTheKeyByAQuarterInBothDirections) {
  for (const int failures : {1, 4, 20}) {
    const db::Micros full = std::min(kLimits.first << (failures - 1), kLimits.longest);
    std::set<db::Micros> delays;
    for (int key = 0; key < 1000; ++key) {
      const db::Micros delay = Backoff(failures, kLimits, absl::StrCat("token-", key));
      EXPECT_GE(delay, full * 3 / 4);
      EXPECT_LE(delay, full * 5 / 4);
      delays.insert(delay);
    }
    EXPECT_GT(delays.size(), 500u) << "many retries would occur at the same time";
    EXPECT_LT(*delays.begin(), full * 8 / 10);
    EXPECT_GT(*delays.rbegin(), full * 12 / 10);
  }
}

TEST(Backoff, VariesWithTheNumberOfFailures) {
  std::set<db::Micros> at_the_limit;
  for (int failures = 10; failures < 20; ++failures) at_the_limit.insert(Backoff(failures, kLimits, "key"));
  EXPECT_GT(at_the_limit.size(), 5u);
}

TEST(Backoff, DependsOnNothingElse) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Backoff(3, kLimits, "key"), Backoff(3, kLimits, "key"));
}

}  // namespace
}  // namespace scalelab::server
