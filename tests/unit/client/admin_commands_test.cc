// Tests of `scalelab admin`.
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::HasSubstr;

class AdminCommands : public ClientTest {
 protected:
  AdminCommands() {
    auto* removed = server_.pruned.add_removed();
    removed->set_rule("points older than 365d");
    removed->set_studies(3);
    removed->set_points(1'234'567);
    removed = server_.pruned.add_removed();
    removed->set_rule("logs older than 90d");
    removed->set_directories(12);
    removed->set_bytes(5 << 20);
    server_.pruned.set_database_bytes_before(int64_t{2} << 30);
    server_.pruned.set_database_bytes_after(int64_t{1} << 30);
    Start();
  }
};

TEST_F(AdminCommands, PruneShowsWhatEachRuleRemoved) {
  const Outcome outcome = Run({"admin", "prune"});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, HasSubstr("Removed"));
  EXPECT_THAT(outcome.out, HasSubstr("points older than 365d"));
  EXPECT_THAT(outcome.out, HasSubstr("1234567"));
  EXPECT_THAT(outcome.out, HasSubstr("5.00 MiB"));
  EXPECT_THAT(outcome.out, HasSubstr("database after"));
  ASSERT_EQ(server_.prunes.size(), 1u);
  EXPECT_FALSE(server_.prunes[0].dry_run());
}

TEST_F(AdminCommands, ADryRunAsksForNothingToBeRemoved) {
  const Outcome outcome = Run({"admin", "prune", "--dry-run", "-o", "csv"});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, HasSubstr("logs older than 90d,0,0,12,5242880"));
  ASSERT_EQ(server_.prunes.size(), 1u);
  EXPECT_TRUE(server_.prunes[0].dry_run());
  EXPECT_THAT(Run({"admin", "prune", "--dry-run"}).out, HasSubstr("Would be removed"));
}

TEST_F(AdminCommands, WithoutRulesPruneNamesTheGuide) {
  server_.pruned.clear_removed();
  const Outcome outcome = Run({"admin", "prune"});
  ASSERT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_THAT(outcome.out, HasSubstr("no retention rules"));
}

}  // namespace
}  // namespace scalelab::client
