#include "server/core/fair_queue.h"

#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

TEST(FairQueue, PriorityComesFirstThenFirstCome) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(2, 0, "ann");
  queue.Add(3, 7, "ann");
  EXPECT_EQ(queue.Next(kNow), 3);
  queue.Remove(3);
  EXPECT_EQ(queue.Next(kNow), 1);
}

TEST(FairQueue, BeforeIsWhatNextGivesOneAfterAnother) {
  FairQueue queue;
  const std::vector<std::string> owners = {"ann", "bob", "cid"};
  for (int64_t id = 1; id <= 24; ++id) queue.Add(id, static_cast<int>(id % 2), owners[id % owners.size()]);
  const std::vector<int64_t> before = queue.Before(22);
  EXPECT_EQ(before.size(), 7u);  // of bob: four of priority 1, then three of priority 0
  const auto bob = [](const std::string& owner, const std::string&) { return owner == "bob"; };
  for (const int64_t id : before) {
    EXPECT_EQ(queue.Next(kNow, bob), id);
    queue.Remove(id);
  }
  EXPECT_EQ(queue.Next(kNow, bob), 22);
  EXPECT_TRUE(queue.Before(22).empty());
  EXPECT_TRUE(queue.Before(99).empty());
}

TEST(FairQueue, AnOwnerThatMayNotStartDoesNotStopOthers) {
  FairQueue queue;
  queue.Add(1, 7, "ann", "gpu");
  queue.Add(2, 7, "ann", "cpu");
  queue.Add(3, 0, "bob", "gpu");
  EXPECT_EQ(queue.Next(kNow, [](const auto&, const std::string& partition) { return partition == "cpu"; }),
            2);
  EXPECT_EQ(queue.Next(kNow, [](const std::string& owner, const auto&) { return owner != "ann"; }), 3);
  EXPECT_EQ(queue.Next(kNow, [](const auto&, const auto&) { return false; }), std::nullopt);
}

TEST(FairQueue, WhoUsedLessGoesFirst) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(2, 0, "bob");
  queue.Charge("ann", 100, kNow);
  EXPECT_EQ(queue.Next(kNow), 2);
  queue.Charge("bob", 200, kNow);
  EXPECT_EQ(queue.Next(kNow), 1);
}

TEST(FairQueue, HalfOfTheUsageIsForgottenInAHalfLife) {
  FairQueue queue(absl::Hours(1));
  queue.Charge("ann", 100, kNow);
  EXPECT_DOUBLE_EQ(queue.Usage("ann", kNow + absl::Hours(1)), 50);
  queue.Charge("ann", 10, kNow + absl::Hours(1));
  EXPECT_DOUBLE_EQ(queue.Usage("ann", kNow + absl::Hours(2)), 30);
}

TEST(FairQueue, AddingTwiceAndRemovingWhatIsNotThereChangeNothing) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(1, 9, "bob");
  queue.Remove(2);
  EXPECT_EQ(queue.size(), 1u);
  queue.Remove(1);
  EXPECT_EQ(queue.Next(kNow), std::nullopt);
}

}  // namespace
}  // namespace scalelab::server
