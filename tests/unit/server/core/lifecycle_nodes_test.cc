// Tests of jobs that exclude nodes on which attempts fail.
#include <gmock/gmock.h>

#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LifecycleNodesTest : public testing::Test {
 protected:
  LifecycleNodesTest() {
    v1::StudySpec spec = World::Spec({1}, 20);
    spec.mutable_retry()->set_max(10);
    id_ = world_.Submit(spec);
  }
  // Executes one attempt on a node of this name: its job begins, and ends with the given result. Returns the
  // nodes that the job excluded.
  std::vector<std::string> Attempt(const std::string& node, bool succeeds) {
    world_.After(600);  // after any backoff
    world_.lifecycle.Plan(world_.now, world_.fx);
    EXPECT_EQ(world_.fx.submit.size(), 1u);
    const JobRequest request = world_.fx.submit.back();
    world_.fx.submit.clear();
    world_.node_prefix = node + "-";
    world_.Job(request.token, JobStatus::State::kRunning);
    const auto desired = world_.Sync(request.token);
    EXPECT_EQ(desired.attempts_size(), 1);
    world_.Sync(request.token, {World::Running(desired.attempts(0).token())});
    if (succeeds) world_.Finish(request.token, desired);
    world_.Job(request.token, succeeds ? JobStatus::State::kCancelled : JobStatus::State::kNodeFail,
               "it ended");
    return request.excluded_nodes;
  }
  JobRequest NextJob() {
    world_.After(600);
    world_.lifecycle.Plan(world_.now, world_.fx);
    EXPECT_EQ(world_.fx.submit.size(), 1u);
    const JobRequest request = world_.fx.submit.back();
    world_.fx.submit.clear();
    return request;
  }
  // Makes bad-0 a bad node.
  void MakeBadNode() {
    Attempt("good", true);
    for (int i = 0; i < 3; ++i) EXPECT_THAT(Attempt("bad", false), IsEmpty());
  }

  World world_;
  int64_t id_ = 0;
};

TEST_F(LifecycleNodesTest, AJobExcludesANodeOnWhichAttemptsFailedAgainAndAgain) {
  MakeBadNode();
  EXPECT_THAT(Attempt("good", true), ElementsAre("bad-0"));
  world_.After(3600);
  EXPECT_THAT(Attempt("good", true), IsEmpty()) << "the time has an end";
}

TEST_F(LifecycleNodesTest, TheReasonOfABadNodeHasNoMessageOfAPrivateStudy) {
  world_.state.study(id_)->row.is_private = true;
  MakeBadNode();
  EXPECT_EQ(world_.state.bad_nodes.Avoided(world_.now).at(0).reason, "the node failed");
}

TEST_F(LifecycleNodesTest, ExplainNamesTheNodesThatAJobDoesNotUse) {
  MakeBadNode();
  const JobRequest job = NextJob();
  world_.lifecycle.JobSubmitted(job.token, "7", world_.now, world_.fx);
  const auto reasons = ExplainStudy(world_.state, world_.study(id_), world_.now);
  const auto found = std::find_if(reasons.begin(), reasons.end(),
                                  [](const auto& r) { return r.kind() == v1::Reason::NODES_AVOIDED; });
  ASSERT_NE(found, reasons.end());
  EXPECT_EQ(reasons.front().kind(), v1::Reason::SCHEDULER_PENDING);
  EXPECT_THAT(found->message(),
              HasSubstr("job 7 does not use nodes on which attempts failed again and again: "
                        "bad-0 (the node failed: it ended)"));
  EXPECT_TRUE(found->has_next_try_time());
}

TEST_F(LifecycleNodesTest, AJobThatTheSchedulerRefusesBecauseOfItIsSubmittedWithoutExclusion) {
  MakeBadNode();
  const JobRequest job = NextJob();
  ASSERT_THAT(job.excluded_nodes, ElementsAre("bad-0"));
  const int64_t queued = world_.study(id_).counts[static_cast<int>(db::RunState::kQueued)];
  world_.lifecycle.JobSubmitted(job.token, absl::InvalidArgumentError("node configuration is not available"),
                                world_.now, world_.fx);
  EXPECT_EQ(world_.study(id_).counts[static_cast<int>(db::RunState::kQueued)], queued);
  world_.After(1);
  ASSERT_EQ(world_.fx.submit.size(), 1u);
  EXPECT_EQ(world_.fx.submit[0].token, job.token);
  EXPECT_THAT(world_.fx.submit[0].excluded_nodes, IsEmpty());
  // If Slurm refuses the job without excluded nodes too, the refusal is final.
  world_.lifecycle.JobSubmitted(job.token, absl::InvalidArgumentError("node configuration is not available"),
                                world_.now, world_.fx);
  EXPECT_EQ(world_.study(id_).counts[static_cast<int>(db::RunState::kQueued)], 0);
}

TEST_F(LifecycleNodesTest, AJobThatWaitsLongerThanTheExclusionIsReplaced) {
  MakeBadNode();
  const JobRequest job = NextJob();
  ASSERT_THAT(job.excluded_nodes, ElementsAre("bad-0"));
  world_.lifecycle.JobSubmitted(job.token, "7", world_.now, world_.fx);
  world_.After(600);
  EXPECT_FALSE(world_.Cancelled(job.token));
  world_.After(3600);
  EXPECT_TRUE(world_.Cancelled(job.token));
  world_.Job(job.token, JobStatus::State::kCancelled);
  const JobRequest next = NextJob();
  EXPECT_NE(next.token, job.token);
  EXPECT_THAT(next.excluded_nodes, IsEmpty());
  EXPECT_TRUE(world_.study(id_).failed_allocations.empty()) << "a replaced job is no failure";
}

}  // namespace
}  // namespace scalelab::server
