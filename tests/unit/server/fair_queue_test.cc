#include "server/fair_queue.h"

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
  EXPECT_EQ(queue.Ahead(2, kNow), 1u);
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
