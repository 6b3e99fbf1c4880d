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
  queue.Charge("ann", 100, kNow);  // bob and cid used equally little
  const std::vector<int64_t> before = queue.Before(21, kNow);
  EXPECT_EQ(before.size(), 11u);  // of priority 1: eight of bob and cid, then three of ann
  for (const int64_t id : before) {
    EXPECT_EQ(queue.Next(kNow), id);
    queue.Remove(id);
  }
  EXPECT_EQ(queue.Next(kNow), 21);
  EXPECT_TRUE(queue.Before(21, kNow).empty());
  EXPECT_TRUE(queue.Before(99, kNow).empty());
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
