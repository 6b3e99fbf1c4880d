#include "server/accounts/lookup_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <system_error>

#include "server/accounts/accounts.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;

TEST(LookupCache, AThreadThatCannotBeStartedIsAnErrorAndTheNextLookupFollows) {
  absl::Duration now = absl::Hours(1);
  bool threads = false;
  LookupCache<int, int> cache([](int key) { return 2 * key; }, [&now] { return now; },
                              [&threads](const std::function<void()>& work) {
                                if (!threads) throw std::system_error(EAGAIN, std::generic_category());
                                std::thread(work).detach();
                              });
  const auto get = [&cache](int key) { return cache.Get(key, absl::Minutes(1), absl::Minutes(1)); };
  EXPECT_EQ(get(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(get(1).status().message(), HasSubstr("cannot start a thread"));
  threads = true;
  EXPECT_EQ(get(1).status().code(), absl::StatusCode::kUnavailable) << "the pause is not over";
  now += LookupCache<int, int>::kPause;
  EXPECT_EQ(get(1).value(), 2);

  threads = false;
  now += 2 * LookupCache<int, int>::kFresh;
  EXPECT_EQ(get(1).value(), 2) << "an old answer is better than none";
  // No lookup is counted that never began.
  for (int key = 10; key < 10 + 2 * LookupCache<int, int>::kMostLookups; ++key) EXPECT_FALSE(get(key).ok());
  threads = true;
  EXPECT_EQ(get(100).value(), 200);
}

TEST(Accounts, OnlySomeErrorsMeanThatThereIsNoEntry) {
  EXPECT_EQ(LookUpUid("root").value(), 0u);
  EXPECT_EQ(LookUpUid("no such user").value(), std::nullopt);
  EXPECT_TRUE(MeansNoEntry(ENOENT));
  EXPECT_FALSE(MeansNoEntry(EIO));
  EXPECT_FALSE(MeansNoEntry(ETIMEDOUT));
}

}  // namespace
}  // namespace scalelab::server
