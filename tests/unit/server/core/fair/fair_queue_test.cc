#include "server/core/fair/fair_queue.h"

#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

double Nothing(const std::string&) { return 0; }
bool All(const std::string&, const std::string&) { return true; }

TEST(FairQueue, PriorityComesFirstThenFirstCome) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(2, 0, "ann");
  queue.Add(3, 7, "ann");
  EXPECT_EQ(queue.Next(Nothing, All), 3);
  queue.Remove(3);
  EXPECT_EQ(queue.Next(Nothing, All), 1);
}

TEST(FairQueue, BeforeIsWhatNextGivesOneAfterAnother) {
  FairQueue queue;
  const std::vector<std::string> owners = {"ann", "bob", "cid"};
  for (int64_t id = 1; id <= 24; ++id) queue.Add(id, static_cast<int>(id % 2), owners[id % owners.size()]);
  const std::vector<int64_t> before = queue.Before(22);
  EXPECT_EQ(before.size(), 7u);  // of bob: four of priority 1, then three of priority 0
  const auto bob = [](const std::string& owner, const std::string&) { return owner == "bob"; };
  for (const int64_t id : before) {
    EXPECT_EQ(queue.Next(Nothing, bob), id);
    queue.Remove(id);
  }
  EXPECT_EQ(queue.Next(Nothing, bob), 22);
  EXPECT_TRUE(queue.Before(22).empty());
  EXPECT_TRUE(queue.Before(99).empty());
}

TEST(FairQueue, AnOwnerThatMayNotStartDoesNotStopOthers) {
  FairQueue queue;
  queue.Add(1, 7, "ann", "gpu");
  queue.Add(2, 7, "ann", "cpu");
  queue.Add(3, 0, "bob", "gpu");
  EXPECT_EQ(queue.Next(Nothing, [](const auto&, const std::string& partition) { return partition == "cpu"; }),
            2);
  EXPECT_EQ(queue.Next(Nothing, [](const std::string& owner, const auto&) { return owner != "ann"; }), 3);
  EXPECT_EQ(queue.Next(Nothing, [](const auto&, const auto&) { return false; }), std::nullopt);
}

TEST(FairQueue, WhoUsedLessGoesFirst) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(2, 0, "bob");
  EXPECT_EQ(queue.Next([](const std::string& owner) { return owner == "ann" ? 100 : 0; }, All), 2);
  EXPECT_EQ(queue.Next([](const std::string& owner) { return owner == "ann" ? 100 : 200; }, All), 1);
}

TEST(FairQueue, TheOrderIsWhatNextGivesOneAfterAnother) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(2, 0, "bob", "gpu");
  queue.Add(3, 0, "bob");
  queue.Add(4, 0, "cid");
  queue.Add(5, 3, "ann");
  const auto usage = [](const std::string& owner) {
    return owner == "ann" ? 3.0 : owner == "bob" ? 1.0 : 2.0;
  };
  EXPECT_EQ(queue.Order(usage, 100), (std::vector<int64_t>{5, 2, 3, 4, 1}));
  EXPECT_EQ(queue.Order(usage, 2), (std::vector<int64_t>{5, 2}));
  EXPECT_EQ(queue.size(), 5u);
  for (const int64_t id : queue.Order(usage, 100)) {
    EXPECT_EQ(queue.Next(usage, All), id);
    queue.Remove(id);
  }
}

TEST(FairQueue, AddingTwiceAndRemovingWhatIsNotThereChangeNothing) {
  FairQueue queue;
  queue.Add(1, 0, "ann");
  queue.Add(1, 9, "bob");
  queue.Remove(2);
  EXPECT_EQ(queue.size(), 1u);
  queue.Remove(1);
  EXPECT_EQ(queue.Next(Nothing, All), std::nullopt);
}

}  // namespace
}  // namespace scalelab::server
