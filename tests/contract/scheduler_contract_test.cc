// What every Scheduler promises, whatever gives out the nodes.
#include <signal.h>

#include <functional>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/local_cluster.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::HasSubstr;
using testing::Not;

// A scheduler with room for two one-rank jobs at a time, and what a test needs to do to its jobs from
// outside.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual Scheduler& scheduler() = 0;
  virtual JobRequest Request(const std::string& token, int ranks) = 0;
  virtual JobStatus Status(const std::string& token) = 0;
  virtual JobStatus WaitFor(const std::string& token, State state) = 0;
  // Waits until the worker of the job started last works.
  virtual void WaitForWorker() = 0;
  // Ends that worker with status 0, or another.
  virtual void EndWorker(bool success) = 0;
  // The coordinator's side of the scheduler dies and comes back.
  virtual void Restart() = 0;
};

class LocalHarness : public Harness {
 public:
  Scheduler& scheduler() override { return cluster_.scheduler(); }
  JobRequest Request(const std::string& token, int ranks) override { return cluster_.Request(token, ranks); }
  JobStatus Status(const std::string& token) override { return cluster_.Status(token); }
  JobStatus WaitFor(const std::string& token, State state) override { return cluster_.WaitFor(token, state); }
  void WaitForWorker() override { worker_ = cluster_.WaitForWorker().pid; }
  void EndWorker(bool success) override { kill(worker_, success ? SIGTERM : SIGUSR1); }
  void Restart() override { cluster_.Restart(); }

 private:
  LocalCluster cluster_{/*slots=*/2};
  pid_t worker_ = 0;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Harness>()> make;
};

class SchedulerContract : public testing::TestWithParam<Kind> {
 protected:
  std::string Submit(const std::string& token, int ranks = 1) {
    const absl::StatusOr<std::string> id = scheduler().Submit(harness_->Request(token, ranks));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  // Submits a job of one rank and waits until it works.
  void Run(const std::string& token) {
    Submit(token);
    harness_->WaitFor(token, State::kRunning);
    harness_->WaitForWorker();
  }
  Scheduler& scheduler() { return harness_->scheduler(); }

  std::unique_ptr<Harness> harness_ = GetParam().make();
};

TEST_P(SchedulerContract, AJobNobodyAskedForIsUnknown) {
  EXPECT_EQ(harness_->Status("nobody").state, State::kUnknown);
}

TEST_P(SchedulerContract, AJobRunsAndCompletes) {
  EXPECT_THAT(Submit("a"), Not(testing::IsEmpty()));
  harness_->WaitForWorker();
  EXPECT_EQ(harness_->Status("a").state, State::kRunning);
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
}

TEST_P(SchedulerContract, AJobWhoseWorkerFailsHasFailedForAReason) {
  Run("a");
  harness_->EndWorker(false);
  EXPECT_THAT(harness_->WaitFor("a", State::kFailed).reason, HasSubstr("status 3"));
}

TEST_P(SchedulerContract, HowAJobEndedCanBeAskedAgain) {
  Run("a");
  harness_->EndWorker(false);
  harness_->WaitFor("a", State::kFailed);
  EXPECT_EQ(harness_->Status("a").state, State::kFailed);
}

TEST_P(SchedulerContract, SubmittingATokenAgainFindsItsJob) {
  const std::string id = Submit("a");
  EXPECT_EQ(Submit("a"), id);
  harness_->WaitForWorker();
  EXPECT_EQ(Submit("a"), id);
  EXPECT_EQ(harness_->Status("a").external_id, id);
  // Had it started a second job, that one would take the other slot.
  Run("b");
}

TEST_P(SchedulerContract, AJobThatIsOverIsNotStartedAgain) {
  Run("a");
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
  Submit("a");
  EXPECT_EQ(harness_->Status("a").state, State::kCompleted);
}

TEST_P(SchedulerContract, PollAnswersForEachTokenInOrder) {
  Run("a");
  Submit("big", 2);
  const absl::StatusOr<std::vector<JobStatus>> statuses = scheduler().Poll({"nobody", "big", "a"});
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  ASSERT_EQ(statuses->size(), 3u);
  EXPECT_EQ((*statuses)[0].token, "nobody");
  EXPECT_EQ((*statuses)[0].state, State::kUnknown);
  EXPECT_EQ((*statuses)[1].token, "big");
  EXPECT_EQ((*statuses)[1].state, State::kPending);
  EXPECT_THAT((*statuses)[1].reason, Not(testing::IsEmpty()));
  EXPECT_EQ((*statuses)[2].token, "a");
  EXPECT_EQ((*statuses)[2].state, State::kRunning);
  EXPECT_TRUE(scheduler().Poll({})->empty());
}

TEST_P(SchedulerContract, AJobWaitsUntilThereIsRoom) {
  Run("a");
  Submit("big", 2);
  EXPECT_EQ(harness_->Status("big").state, State::kPending);
  harness_->EndWorker(true);
  harness_->WaitFor("big", State::kRunning);
}

TEST_P(SchedulerContract, CancelEndsARunningJob) {
  Run("a");
  EXPECT_TRUE(scheduler().Cancel("a").ok());
  harness_->WaitFor("a", State::kCancelled);
}

TEST_P(SchedulerContract, CancelEndsAJobThatWaits) {
  Run("a");
  Submit("big", 2);
  EXPECT_TRUE(scheduler().Cancel("big").ok());
  harness_->WaitFor("big", State::kCancelled);
  EXPECT_EQ(harness_->Status("a").state, State::kRunning);
}

TEST_P(SchedulerContract, CancellingWhatIsNotThereIsFine) {
  EXPECT_TRUE(scheduler().Cancel("nobody").ok());
  Run("a");
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
  EXPECT_TRUE(scheduler().Cancel("a").ok());
  EXPECT_EQ(harness_->Status("a").state, State::kCompleted);
}

TEST_P(SchedulerContract, AJobNoMachineCouldHoldIsRefusedWithAReason) {
  const absl::Status status = scheduler().Submit(harness_->Request("huge", 1'000'000)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("1000000"));
  EXPECT_EQ(harness_->Status("huge").state, State::kUnknown);
}

TEST_P(SchedulerContract, ARunningJobOutlivesTheCoordinator) {
  Run("a");
  harness_->Restart();
  EXPECT_EQ(harness_->Status("a").state, State::kRunning);
  Submit("a");
  Run("b");  // the slot next to it is free, so it was not started twice
  EXPECT_TRUE(scheduler().Cancel("a").ok());
  harness_->WaitFor("a", State::kCancelled);
}

TEST_P(SchedulerContract, TheSecretStandsInNoScript) {
  JobRequest request = harness_->Request("a", 1);
  request.secret = "a-very-secret-word";
  EXPECT_THAT(scheduler().Script(request), Not(HasSubstr("a-very-secret-word")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerContract,
                         testing::Values(Kind{"local", [] { return std::make_unique<LocalHarness>(); }}),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::server
