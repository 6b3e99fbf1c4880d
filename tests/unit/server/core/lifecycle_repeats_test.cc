// Tests of studies whose number of blocks depends on their results.
#include "gmock/gmock.h"
#include "server/core/explain.h"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = JobStatus::State;

// A study of two cells with two to five blocks, on one allocation.
struct Adaptive : World {
  Adaptive() : World(false, false, /*assess=*/true) {
    v1::StudySpec spec = Spec({1, 2}, 0);
    spec.mutable_adaptive_repeats()->set_min(2);
    spec.mutable_adaptive_repeats()->set_max(5);
    spec.mutable_adaptive_repeats()->set_half_width(0.02);
    id = Submit(spec);
    job = AskedFor();
    Job(job, State::kRunning);
    desired = Sync(job);
  }
  // Finishes the runs of `blocks` blocks.
  void FinishBlocks(int blocks) {
    for (int run = 0; run < 2 * blocks; ++run) {
      ASSERT_EQ(desired.attempts_size(), 1);
      desired = Finish(job, desired);
    }
  }
  // Returns the number of blocks to assess, or 0.
  int Assessing() {
    const int blocks = fx.assess.empty() ? 0 : fx.assess.back().blocks;
    fx.assess.clear();
    return blocks;
  }
  void Answer(int blocks, absl::StatusOr<Assessment> assessment) {
    lifecycle.Assessed({id, blocks}, assessment, now, fx);
    desired =
        state.study(id) == nullptr || IsFinal(study(id).row.state) ? v1::SynchronizeResponse() : Sync(job);
  }
  int64_t Count(db::RunState of) const { return study(id).counts[static_cast<size_t>(of)]; }

  int64_t id;
  std::string job;
  v1::SynchronizeResponse desired;
};

TEST(AdaptiveRepeats, TheFirstBlocksRunAndTheOthersWaitForTheAssessment) {
  Adaptive world;
  EXPECT_THAT(world.study(world.id).queued, SizeIs(3)) << "two blocks of two runs, one of which runs";
  EXPECT_THAT(world.study(world.id).later, SizeIs(6));
  world.FinishBlocks(1);
  EXPECT_EQ(world.Assessing(), 0);
  world.FinishBlocks(1);
  EXPECT_EQ(world.Assessing(), 2);
  EXPECT_THAT(world.desired.attempts(), IsEmpty()) << "no run begins before the answer";
  EXPECT_EQ(world.state.allocations.size(), 1);
  EXPECT_EQ(world.state.allocations.begin()->second->row.state, db::AllocationState::kRunning)
      << "the nodes are kept";
}

TEST(AdaptiveRepeats, AWholeBlockIsAddedWhenTheResultsAreNotPreciseEnough) {
  Adaptive world;
  world.FinishBlocks(2);
  world.Assessing();
  world.Answer(2, Assessment{false, ""});
  EXPECT_EQ(world.desired.attempts_size(), 1);
  EXPECT_EQ(world.Count(db::RunState::kQueued), 5);
  world.FinishBlocks(1);
  EXPECT_EQ(world.Assessing(), 3);
}

TEST(AdaptiveRepeats, TheRestIsSkippedWhenTheyArePreciseEnough) {
  Adaptive world;
  world.FinishBlocks(3 - 1);
  world.Assessing();
  world.Answer(2, Assessment{true, "not needed: narrow"});
  EXPECT_EQ(world.study(world.id).row.state, db::StudyState::kSucceeded);
  EXPECT_EQ(world.Count(db::RunState::kSucceeded), 4);
  EXPECT_EQ(world.Count(db::RunState::kSkipped), 6);
  EXPECT_EQ(world.study(world.id).runs.back().message, "not needed: narrow");
  EXPECT_EQ(world.state.allocations.begin()->second->row.state, db::AllocationState::kReleasing);
}

TEST(AdaptiveRepeats, TheLargestNumberOfBlocksIsTheEnd) {
  Adaptive world;
  world.FinishBlocks(2);
  for (int blocks = 2; blocks < 5; ++blocks) {
    EXPECT_EQ(world.Assessing(), blocks);
    world.Answer(blocks, Assessment());
    world.FinishBlocks(1);
  }
  EXPECT_EQ(world.Assessing(), 0);
  EXPECT_EQ(world.Count(db::RunState::kSucceeded), 10);
  EXPECT_EQ(world.study(world.id).row.state, db::StudyState::kSucceeded);
}

TEST(AdaptiveRepeats, AnErrorIsTriedAgainAndAfterSeveralTheNextBlockRuns) {
  Adaptive world;
  world.FinishBlocks(2);
  const absl::Status error = absl::UnavailableError("locked");
  for (int failure = 1; failure < 5; ++failure) {
    ASSERT_EQ(world.Assessing(), 2) << failure;
    world.Answer(2, error);
    EXPECT_THAT(world.desired.attempts(), IsEmpty());
    world.After(0.5);
    EXPECT_EQ(world.Assessing(), 0) << "not before the time of the retry";
    world.After(17);
    world.Sync(world.job);
  }
  ASSERT_EQ(world.Assessing(), 2);
  world.Answer(2, error);
  EXPECT_EQ(world.desired.attempts_size(), 1);
  EXPECT_THAT(world.fx.warnings, SizeIs(4));
}

TEST(AdaptiveRepeats, AfterARestartTheSameBlocksAreAssessedAgain) {
  Adaptive world;
  world.FinishBlocks(2);
  world.Assessing();
  LiveStudy& study = *world.state.study(world.id);
  // Restore the state that the database has: queued runs, and no data about the assessment.
  study.queued.merge(study.later);
  study.later.clear();
  study.assessing = false;
  world.lifecycle.UpdateQueue(world.now);
  EXPECT_THAT(study.queued, IsEmpty());
  EXPECT_THAT(study.later, SizeIs(6));
  world.After(1);
  EXPECT_EQ(world.Assessing(), 2);
}

TEST(AdaptiveRepeats, ACancelledStudyCancelsTheBlocksThatWait) {
  Adaptive world;
  ASSERT_TRUE(world.lifecycle.CancelStudy(world.id, world.now, world.fx).ok());
  EXPECT_EQ(world.Count(db::RunState::kCancelled), 9);
  EXPECT_THAT(world.study(world.id).later, IsEmpty());
}

TEST(AdaptiveRepeats, AnAnswerThatComesAfterACancelChangesNothing) {
  Adaptive world;
  world.FinishBlocks(2);
  world.Assessing();
  ASSERT_TRUE(world.lifecycle.CancelStudy(world.id, world.now, world.fx).ok());
  world.lifecycle.Assessed({world.id, 2}, Assessment{true, ""}, world.now, world.fx);
  EXPECT_EQ(world.Count(db::RunState::kSkipped), 0);
  EXPECT_EQ(world.Count(db::RunState::kCancelled), 6);
}

TEST(AdaptiveRepeats, ExplainNamesTheRule) {
  Adaptive world;
  const int last = static_cast<int>(world.study(world.id).runs.size()) - 1;
  const auto of_run = ExplainRun(world.state, world.study(world.id), last, world.now);
  ASSERT_THAT(of_run, SizeIs(1));
  EXPECT_THAT(of_run[0].message(), HasSubstr("only if the results of the 4 blocks before it"));
  world.FinishBlocks(2);
  EXPECT_THAT(ExplainStudy(world.state, world.study(world.id), world.now)[0].message(),
              HasSubstr("being examined now"));
}

TEST(AdaptiveRepeats, AStudyIsPausedIfItsFirstRunsFailAndOnlyLaterBlocksRemain) {
  World world(false, false, /*assess=*/true);
  v1::StudySpec spec = World::Spec({1}, 0);
  spec.mutable_retry()->set_max(0);
  spec.mutable_adaptive_repeats()->set_min(5);
  spec.mutable_adaptive_repeats()->set_max(8);
  spec.mutable_adaptive_repeats()->set_half_width(0.02);
  const int64_t id = world.Submit(spec);
  std::string job = world.AskedFor();
  world.Job(job, State::kRunning);
  v1::SynchronizeResponse desired = world.Sync(job);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(desired.attempts_size(), 1) << i;
    desired = world.Sync(job, {World::Ended(desired.attempts(0).token(), 1)});
  }
  EXPECT_THAT(world.study(id).row.pause_reason, HasSubstr("its first 5 runs failed in the same way"));
  EXPECT_TRUE(desired.terminate());
  world.lifecycle.Assessed({id, 5}, Assessment{false, ""}, world.now, world.fx);
  world.Job(job, State::kCompleted);
  world.After(1000);
  EXPECT_EQ(world.AskedFor(), "");
  ASSERT_TRUE(world.lifecycle.ResumeStudy(id, world.now, world.fx).ok());
  job = world.AskedFor();
  world.Job(job, State::kRunning);
  EXPECT_EQ(world.Sync(job).attempts_size(), 1);
}

TEST(AdaptiveRepeats, ParallelAllocationsAddAsManyBlocks) {
  World world(false, false, /*assess=*/true);
  v1::StudySpec spec = World::Spec({1}, 0);
  spec.mutable_limits()->set_concurrent_allocations(3);
  spec.mutable_adaptive_repeats()->set_min(3);
  spec.mutable_adaptive_repeats()->set_max(8);
  spec.mutable_adaptive_repeats()->set_half_width(0.02);
  const int64_t id = world.Submit(spec);
  LiveStudy& study = *world.state.study(id);
  ASSERT_THAT(study.queued, ElementsAre(0, 1, 2));
  study.queued.clear();  // as if they had run
  study.assessing = true;
  world.lifecycle.Assessed({id, 3}, Assessment(), world.now, world.fx);
  EXPECT_THAT(study.queued, ElementsAre(3, 4, 5));
  EXPECT_THAT(study.later, ElementsAre(6, 7));
}

}  // namespace
}  // namespace scalelab::server
