// Tests of `queue`, `admin` and `study hold|release|priority`.
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Study;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SharingCommands : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.studies = {MakeStudy(8, "b", Study::QUEUED, 9, 0, 0),
                       MakeStudy(7, "a", Study::SUCCEEDED, 0, 0, 9)};
  }
};

TEST_F(SharingCommands, TheQueueHasPositionOwnerAndReason) {
  auto& entry = *server_.queue.add_entries();
  entry.set_position(1);
  entry.set_study("studies/8");
  entry.set_display_name("b");
  entry.set_owner("ada");
  entry.set_owner_usage(7200);
  entry.set_queued_runs(9);
  entry.set_reason("priority 0; the limit runs is reached");
  const Outcome outcome = Run({"queue"});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("studies/8"), HasSubstr("ada"), HasSubstr("2.000"),
                                 HasSubstr("priority 0; the limit runs is reached")));
  EXPECT_THAT(Run({"queue", "-o", "csv"}).out,
              HasSubstr("1,studies/8,b,ada,,0,7200,9,priority 0; the limit runs is reached"));
  server_.queue.Clear();
  EXPECT_THAT(Run({"queue"}).out, HasSubstr("no study waits for an allocation"));
}

TEST_F(SharingCommands, UsageIsShownInHoursAndExactInCsv) {
  server_.usage.set_half_life_seconds(7 * 24 * 3600);
  auto& usage = *server_.usage.add_usages();
  usage.set_user("ada");
  usage.set_decayed_node_seconds(5400);
  usage.set_node_seconds(7200.5);
  usage.set_gpu_seconds(36000);
  usage.set_running_allocations(2);
  const Outcome outcome = Run({"admin", "usage"});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("7d00h"), HasSubstr("1.500"), HasSubstr("10.00")));
  EXPECT_THAT(Run({"admin", "usage", "-o", "csv"}).out, HasSubstr("ada,5400,7200.5,36000,0,0,2,0"));
}

TEST_F(SharingCommands, DrainSendsTheReason) {
  const Outcome outcome = Run({"admin", "drain", "--reason", "new switch"});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("on: no run begins"), HasSubstr("new switch"), HasSubstr("3")));
  EXPECT_THAT(Run({"admin", "undrain"}), Exits(ExitCode::kOk));
  ASSERT_EQ(server_.drains.size(), 2u);
  EXPECT_TRUE(server_.drains[0].drain());
  EXPECT_EQ(server_.drains[0].reason(), "new switch");
  EXPECT_FALSE(server_.drains[1].drain());
}

TEST_F(SharingCommands, HoldReleaseAndPriorityActOnTheSelectedStudies) {
  EXPECT_THAT(Run({"study", "hold", "all"}), Exits(ExitCode::kOk));
  EXPECT_THAT(server_.held, ElementsAre("studies/8")) << "not the one that is over";
  EXPECT_THAT(Run({"study", "release", "8"}), Exits(ExitCode::kOk));
  EXPECT_THAT(server_.released, ElementsAre("studies/8"));
  EXPECT_THAT(Run({"study", "release", "all"}).out, HasSubstr("no study is held"));
  EXPECT_THAT(Run({"study", "priority", "8", "-5"}), Exits(ExitCode::kOk));
  ASSERT_EQ(server_.priorities.size(), 1u);
  EXPECT_EQ(server_.priorities[0].priority(), -5);
  EXPECT_THAT(Run({"study", "priority", "8", "1001"}), Exits(ExitCode::kUsage));
}

}  // namespace
}  // namespace scalelab::client
