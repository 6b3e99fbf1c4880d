// Tests of the nodes that new jobs avoid.
#include "server/core/nodes/bad_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr db::Micros kMinute = 60'000'000;
constexpr db::Micros kHour = 60 * kMinute;

class BadNodesTest : public testing::Test {
 protected:
  void Fail(const std::string& nodes, int times = 1, db::Cause cause = db::Cause::kWorkerLost,
            bool works = true, int64_t study = 1) {
    for (int i = 0; i < times; ++i) nodes_.Failed(nodes, study, works, cause, "no heartbeat", now_);
  }
  std::vector<std::string> Avoided() const {
    std::vector<std::string> names;
    for (const AvoidedNode& node : nodes_.Avoided(now_)) names.push_back(node.name);
    return names;
  }

  BadNodes nodes_;
  db::Micros now_ = 1000 * kHour;
};

TEST_F(BadNodesTest, ANodeIsAvoidedAfterThreeFailuresInARow) {
  Fail("n1", 2);
  EXPECT_THAT(Avoided(), IsEmpty());
  Fail("n1");
  ASSERT_THAT(Avoided(), ElementsAre("n1"));
  const AvoidedNode node = nodes_.Avoided(now_)[0];
  EXPECT_EQ(node.reason, "the worker was lost: no heartbeat");
  EXPECT_EQ(node.failures, 3);
  EXPECT_EQ(node.since, now_);
  EXPECT_EQ(node.until, now_ + 30 * kMinute);
}

TEST_F(BadNodesTest, AReasonIsCutBetweenCharacters) {
  const std::string begin(299, 'x');
  const std::string message = absl::StrCat(begin, "\u00E4");
  for (int i = 0; i < 3; ++i) nodes_.Failed("n1", 1, true, db::Cause::kLaunchError, message, now_);
  EXPECT_EQ(nodes_.Avoided(now_).at(0).reason, absl::StrCat("the ranks could not be started: ", begin));
}

TEST_F(BadNodesTest, ASuccessEndsTheCount) {
  Fail("n1", 2);
  nodes_.Succeeded("n1", 1, now_);
  Fail("n1", 2);
  EXPECT_THAT(Avoided(), IsEmpty());
}

TEST_F(BadNodesTest, OnlyCausesOfNodesCount) {
  for (const db::Cause cause :
       {db::Cause::kTrainerError, db::Cause::kOutOfMemory, db::Cause::kTimeout, db::Cause::kPreempted,
        db::Cause::kAllocationCancelled, db::Cause::kRankKilled})
    Fail("n1", 3, cause);
  EXPECT_THAT(Avoided(), IsEmpty());
  for (const db::Cause cause : {db::Cause::kNodeFail, db::Cause::kBootFail, db::Cause::kLaunchError})
    Fail("n1", 1, cause);
  EXPECT_THAT(Avoided(), ElementsAre("n1"));
}

TEST_F(BadNodesTest, OfSeveralNodesTheOneWithoutASuccessRemains) {
  Fail("n1,n2", 2);
  nodes_.Succeeded("n2,n3", 1, now_);
  Fail("n1,n3");
  EXPECT_THAT(Avoided(), ElementsAre("n1"));
}

TEST_F(BadNodesTest, AStudyThatFailsEverywhereSaysNothing) {
  for (const char* node : {"n1", "n2", "n3"}) Fail(node, 5, db::Cause::kLaunchError, /*works=*/false);
  EXPECT_THAT(Avoided(), IsEmpty());
  // The study succeeds on n3, so the other nodes caused the earlier failures.
  nodes_.Succeeded("n3", 1, now_);
  EXPECT_THAT(Avoided(), ElementsAre("n1", "n2"));
}

TEST_F(BadNodesTest, TheSuccessOfAnotherStudyExplainsNothing) {
  Fail("n1", 5, db::Cause::kLaunchError, /*works=*/false, /*study=*/1);
  nodes_.Succeeded("n2", 2, now_);
  EXPECT_THAT(Avoided(), IsEmpty());
}

TEST_F(BadNodesTest, TheTimeEndsAndDoublesWithEachFailureAfterIt) {
  Fail("n1", 3);
  for (const int minutes : {30, 60, 120, 240}) {
    SCOPED_TRACE(minutes);
    now_ += (minutes - 1) * kMinute;
    EXPECT_THAT(Avoided(), ElementsAre("n1"));
    now_ += kMinute;
    EXPECT_THAT(Avoided(), IsEmpty());
    Fail("n1");
    EXPECT_THAT(Avoided(), ElementsAre("n1"));
  }
  for (int i = 0; i < 10; ++i) {
    now_ += 24 * kHour;
    ASSERT_THAT(Avoided(), IsEmpty()) << "no time is longer than a day";
    Fail("n1");
  }
  now_ += 24 * kHour;
  nodes_.Succeeded("n1", 1, now_);
  Fail("n1", 2);
  EXPECT_THAT(Avoided(), IsEmpty()) << "a success makes the node as good as new";
}

TEST_F(BadNodesTest, ASuccessWhileTheNodeIsAvoidedChangesNothing) {
  Fail("n1", 3);
  nodes_.Succeeded("n1", 1, now_ + kMinute);
  EXPECT_THAT(Avoided(), ElementsAre("n1"));
}

TEST_F(BadNodesTest, OldFailuresAreForgotten) {
  Fail("n1", 2);
  now_ += 8 * 24 * kHour;
  Fail("n1", 2);
  EXPECT_THAT(Avoided(), IsEmpty());
}

TEST_F(BadNodesTest, TheListIsBounded) {
  for (int node = 0; node < 5000; ++node) {
    now_ += 1;
    Fail(absl::StrCat("n", node), 3);
  }
  EXPECT_THAT(Avoided(), SizeIs(16));
  EXPECT_THAT(Avoided(), testing::Contains("n4999"));
}

TEST_F(BadNodesTest, NamesThatASlurmOptionCouldMisreadAreIgnored) {
  for (const char* name : {"n[1-9]", "n1 n2", "$(x)", "n\n1"}) Fail(name, 3);
  EXPECT_THAT(Avoided(), IsEmpty());
}

TEST_F(BadNodesTest, AClockThatIsSetBackEndsNothingForever) {
  Fail("n1", 3);
  now_ -= 100 * kHour;
  EXPECT_THAT(Avoided(), IsEmpty());
}

}  // namespace
}  // namespace scalelab::server
