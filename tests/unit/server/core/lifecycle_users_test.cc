// Jobs that run under the account of their study's owner.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::SizeIs;
using testing::StartsWith;

TEST(LifecycleUsers, AJobHasTheOwnerOfItsStudyAsUser) {
  World world;
  world.Submit(World::Spec({1}), "", "alice");
  world.lifecycle.Plan(world.now, world.fx);
  ASSERT_THAT(world.fx.submit, SizeIs(1));
  EXPECT_EQ(world.fx.submit[0].user, "alice");
}

TEST(LifecycleUsers, AttemptsAreInTheDirectoryOfTheOwner) {
  for (const bool by_owner : {false, true}) {
    World world(/*read_events=*/false, by_owner);
    world.Submit(World::Spec({1}), "", "alice");
    const std::string job = world.AskedFor();
    world.Job(job, JobStatus::State::kRunning);
    const v1::SynchronizeResponse desired = world.Sync(job);
    ASSERT_EQ(desired.attempts_size(), 1);
    EXPECT_THAT(desired.attempts(0).directory(), StartsWith(by_owner ? "/runs/alice/1/" : "/runs/1/"));
  }
}

TEST(LifecycleUsers, JobsThatWaitForAnAgentAreSubmittedWhenItConnects) {
  World world;
  world.Submit(World::Spec({1}), "", "alice");
  world.Submit(World::Spec({1}), "", "bob");
  world.lifecycle.Plan(world.now, world.fx);
  ASSERT_THAT(world.fx.submit, SizeIs(2));
  for (const JobRequest& request : std::exchange(world.fx.submit, {})) {
    // Many tries, so that the next one is minutes away.
    for (int i = 0; i < 10; ++i)
      world.lifecycle.JobSubmitted(request.token, absl::UnavailableError("the agent is not connected"),
                                   world.now, world.fx);
  }
  world.After(1);
  EXPECT_TRUE(world.fx.submit.empty());
  world.lifecycle.TryAgain("alice", world.now);
  world.After(0);
  ASSERT_THAT(world.fx.submit, SizeIs(1));
  EXPECT_EQ(world.fx.submit[0].user, "alice");
}

}  // namespace
}  // namespace scalelab::server
