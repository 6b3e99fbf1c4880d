// Tests of the Slurm scheduler with stand-ins for Slurm's programs that fail, hang, forget jobs and list them
// late. No job may run twice, and no live job may be reported as ended.
#include "tests/fakes/slurm_standins.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kSettle = absl::Seconds(30);

class SlurmFaults : public testing::Test {
 protected:
  SlurmFaults() { Restart(); }

  // sinfo lists a node with 64 cores, but no job gets cores, so that jobs stay in the state that a test sets.
  void Restart() {
    slurm_.Write("slots", "64");
    slurm_.Restart();
    slurm_.Write("slots", "0");
  }
  absl::StatusOr<std::string> Submit(const std::string& token) {
    return slurm_.scheduler().Submit(slurm_.Request(token));
  }
  // Lowers the timeout of commands to 3 s. On a busy machine a working command may take 1 s.
  void LowerCommandTimeout() {
    slurm_.options().command_timeout = absl::Seconds(3);
    Restart();
  }
  JobStatus Status(const std::string& token) { return slurm_.Status(token); }
  absl::Status PollError() { return slurm_.scheduler().Poll({"a"}).status(); }

  SlurmStandins slurm_;
};

// --- sbatch

TEST_F(SlurmFaults, FindsAJobThatWasAcceptedAlthoughSbatchHung) {
  LowerCommandTimeout();
  slurm_.Lie("sbatch", "take-hang");
  const absl::Status status = Submit("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("unknown whether Slurm accepted the job"));
  slurm_.Lie("sbatch", "");
  EXPECT_EQ(Submit("a").value_or("none"), "1");
  EXPECT_EQ(Status("a").state, State::kPending);
  EXPECT_EQ(slurm_.Jobs(), 1);
}

TEST_F(SlurmFaults, DoesNotResubmitAJobThatIsListedLate) {
  slurm_.Lie("sbatch", "late");
  const absl::Status status = Submit("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("Socket timed out"));
  slurm_.Lie("sbatch", "");
  // The job is not listed yet. Submit creates no second one, and Poll does not return kUnknown.
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle / 2);
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Status("a").reason, HasSubstr("Socket timed out"));
  slurm_.Appear();
  EXPECT_EQ(Submit("a").value_or("none"), "1");
  EXPECT_EQ(slurm_.Jobs(), 1);
}

TEST_F(SlurmFaults, ResubmitsAJobWhenItCertainlyDoesNotExist) {
  LowerCommandTimeout();
  slurm_.Lie("sbatch", "hang");
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnknown);
  slurm_.Lie("sbatch", "");
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle - absl::Seconds(5));
  EXPECT_EQ(Status("a").state, State::kPending);
  EXPECT_EQ(slurm_.Jobs(), 0);
  slurm_.Advance(absl::Seconds(6));
  EXPECT_EQ(Status("a").state, State::kUnknown);
  EXPECT_EQ(Submit("a").value_or("none"), "1");
}

TEST_F(SlurmFaults, AFailedQueryRestartsTheWait) {
  slurm_.Lie("sbatch", "late");
  Submit("a").IgnoreError();
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle / 2);
  slurm_.Lie("squeue", "fail slurm_load_jobs error: Unable to contact slurm controller (connect failure)");
  EXPECT_FALSE(PollError().ok());
  slurm_.Lie("squeue", "");
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Appear();
  EXPECT_EQ(Status("a").external_id, "1");
}

TEST_F(SlurmFaults, AfterMalformedOutputOfSbatchTheJobMayExist) {
  for (const char* lie : {"garbage", "empty"}) {
    slurm_.Lie("sbatch", lie);
    EXPECT_EQ(Submit(lie).status().code(), absl::StatusCode::kUnknown) << lie;
    EXPECT_EQ(Status(lie).state, State::kPending) << lie;
  }
  slurm_.Lie("sbatch", "take-garbage");
  EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(Submit("a").value_or("none"), "1");
  EXPECT_EQ(slurm_.Jobs(), 1);
}

TEST_F(SlurmFaults, DoesNotSubmitWhenSqueueFails) {
  for (const char* lie :
       {"garbage", "half", "fail slurm_load_jobs error: Socket timed out on send/recv operation"}) {
    slurm_.Lie("sbatch", "");
    slurm_.Lie("squeue", "");
    ASSERT_TRUE(Submit(absl::StrCat("other-", std::string(lie).substr(0, 4))).ok());
    const int before = slurm_.Calls("sbatch");
    slurm_.Lie("squeue", lie);
    if (std::string(lie) == "half") {
      // The output is incomplete in the line of the job.
      EXPECT_EQ(slurm_.scheduler().Poll({"a"}).status().code(), absl::StatusCode::kUnavailable);
      continue;
    }
    EXPECT_EQ(Submit("a").status().code(), absl::StatusCode::kUnavailable) << lie;
    EXPECT_EQ(slurm_.Calls("sbatch"), before) << lie;
  }
  // The job was certainly not submitted, so Poll returns kUnknown at once.
  slurm_.Lie("squeue", "");
  EXPECT_EQ(Status("a").state, State::kUnknown);
  EXPECT_TRUE(Submit("a").ok());
}

struct Refusal {
  const char* text;
  absl::StatusCode code;
  const char* message;
};

TEST_F(SlurmFaults, RefusalsContainAdvice) {
  using Code = absl::StatusCode;
  const Refusal refusals[] = {
      {"sbatch: error: Batch job submission failed: Invalid partition name specified", Code::kInvalidArgument,
       "change resources.partition"},
      {"sbatch: error: Batch job submission failed: Invalid account or account/partition combination "
       "specified",
       Code::kInvalidArgument, "sbatch_options.account"},
      {"sbatch: error: Batch job submission failed: Requested node configuration is not available",
       Code::kInvalidArgument, "1 node with 1 rank of 1 core"},
      {"sbatch: error: Batch job submission failed: User's group not permitted to use this partition",
       Code::kPermissionDenied, "ask the administrators"},
      {"sbatch: error: Batch job submission failed: Access/permission denied", Code::kPermissionDenied,
       "ask the administrators"},
      {"sbatch: error: QOSMaxSubmitJobPerUserLimit", Code::kResourceExhausted, "QOSMaxSubmitJobPerUserLimit"},
      {"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
       "user's "
       "size and/or time limits)",
       Code::kResourceExhausted, "job submit limit"},
      {"sbatch: error: Batch job submission failed: Resource temporarily unavailable",
       Code::kResourceExhausted, "temporarily"},
      {"sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
       Code::kUnavailable, "cannot be reached"},
  };
  int number = 0;
  for (const Refusal& refusal : refusals) {
    const std::string token = absl::StrCat("t", ++number);
    slurm_.Lie("sbatch", absl::StrCat("fail ", refusal.text));
    const absl::Status status = Submit(token).status();
    EXPECT_EQ(status.code(), refusal.code) << status;
    EXPECT_THAT(status.message(), HasSubstr(refusal.message));
    // A refused job certainly does not exist.
    EXPECT_EQ(Status(token).state, State::kUnknown) << status;
  }
  slurm_.Lie("sbatch", "fail sbatch: error: Something nobody has ever heard of");
  const absl::Status status = Submit("strange").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("Something nobody has ever heard of"));
  EXPECT_EQ(Status("strange").state, State::kPending);
}

TEST_F(SlurmFaults, RefusesMoreThanTheClusterHasWithoutSbatch) {
  JobRequest request = slurm_.Request("a");
  request.nodes = 3;
  slurm_.Write("slots", "64");
  const absl::Status status = slurm_.scheduler().Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("3 nodes with 1 rank"), HasSubstr("main has 1 node")));
  EXPECT_EQ(slurm_.Calls("sbatch"), 0);
}

// sinfo does not list cloud nodes that are powered down, so only Slurm knows whether a job fits.
TEST_F(SlurmFaults, SubmitsMoreThanSinfoListsIfNodesMayBePoweredDown) {
  struct Case {
    const char* resume_program;
    const char* private_data;
    bool hides_nodes;
  };
  for (const Case& c : {Case{"/usr/sbin/resume", "none", true}, Case{"/usr/sbin/resume", "jobs", true},
                        Case{"/usr/sbin/resume", "jobs,cloud", false}, Case{"(null)", "none", false}}) {
    slurm_.Write("resume", c.resume_program);
    slurm_.Write("private", c.private_data);
    Restart();
    EXPECT_EQ(slurm_.scheduler().capacity().slots, c.hides_nodes ? 0 : 64) << c.private_data;
    JobRequest request = slurm_.Request(absl::StrCat("a", slurm_.Calls("scontrol")));
    request.nodes = 3;
    EXPECT_EQ(slurm_.scheduler().Submit(request).ok(), c.hides_nodes) << c.private_data;
  }
}

// --- squeue

TEST_F(SlurmFaults, AnUnreachableControllerChangesNoJob) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Lie("squeue", "fail slurm_load_jobs error: Unable to contact slurm controller (connect failure)");
  EXPECT_EQ(PollError().code(), absl::StatusCode::kUnavailable);
  slurm_.Advance(absl::Seconds(75));
  EXPECT_THAT(PollError().message(), AllOf(HasSubstr("1m15s"), HasSubstr("connect failure")));
  slurm_.Lie("squeue", "");
  EXPECT_EQ(Status("a").state, State::kPending);
  EXPECT_EQ(Status("a").external_id, "1");
}

TEST_F(SlurmFaults, HangingOrMalformedOutputChangesNoJob) {
  ASSERT_TRUE(Submit("a").ok());
  LowerCommandTimeout();
  for (const char* lie : {"hang", "garbage", "half"}) {
    slurm_.Lie("squeue", lie);
    EXPECT_EQ(PollError().code(), absl::StatusCode::kUnavailable) << lie;
  }
  slurm_.Lie("squeue", "");
  EXPECT_EQ(Status("a").state, State::kPending);
}

TEST_F(SlurmFaults, OneEmptyAnswerEndsNoJob) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.set_field("1", "state", "RUNNING");
  EXPECT_EQ(Status("a").state, State::kRunning);
  slurm_.Lie("squeue", "empty");
  EXPECT_EQ(Status("a").state, State::kRunning);
  EXPECT_THAT(Status("a").reason, HasSubstr("does not list the job any more"));
  slurm_.Lie("squeue", "");
  slurm_.Advance(kSettle * 2);
  EXPECT_EQ(Status("a").state, State::kRunning);
  EXPECT_EQ(Status("a").reason, "");
  slurm_.Lie("squeue", "empty");
  EXPECT_EQ(Status("a").state, State::kRunning);
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kUnknown);
}

TEST_F(SlurmFaults, IgnoresAMalformedLine) {
  ASSERT_TRUE(Submit("a").ok());
  ASSERT_TRUE(Submit("b").ok());
  slurm_.Lie("squeue", "stray 77|x|\x1b[31mRUNNING|a job of another kind");
  EXPECT_EQ(Status("a").state, State::kPending);
  // A malformed line that contains the name of a job does not mean that the job is gone.
  slurm_.Forget("1");
  slurm_.Lie("squeue", "stray 1|x|RUNNING|a");
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle * 2);
  EXPECT_EQ(Status("a").state, State::kPending);
}

TEST_F(SlurmFaults, AnUnknownStateChangesNothing) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.set_field("1", "state", "RUNNING");
  EXPECT_EQ(Status("a").state, State::kRunning);
  slurm_.set_field("1", "state", "LEVITATING");
  EXPECT_EQ(Status("a").state, State::kRunning);
  EXPECT_THAT(Status("a").reason, HasSubstr("LEVITATING"));
}

TEST_F(SlurmFaults, IgnoresJobsOfOtherUsers) {
  slurm_.Lie("squeue", "stray 9|4242|RUNNING|None|0|N/A|0:01|1:00:00|node1|a");
  EXPECT_EQ(Status("a").external_id, "");
  // The new process does not report kUnknown before it is certain.
  EXPECT_EQ(Status("a").state, State::kPending);
}

TEST_F(SlurmFaults, AForgottenJobIsNotConfusedWithTheNextOneWithItsId) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Forget("1");
  slurm_.set_next_id(1);
  EXPECT_EQ(Submit("b").value_or("none"), "1");
  slurm_.set_field("1", "state", "COMPLETED");
  EXPECT_EQ(Status("a").state, State::kPending);
  EXPECT_EQ(Status("b").state, State::kCompleted);
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kUnknown);
  EXPECT_EQ(Submit("a").value_or("none"), "2");
}

TEST_F(SlurmFaults, KeepsTheRunningOneOfTwoJobsWithOneToken) {
  slurm_.Lie("sbatch", "late");
  Submit("a").IgnoreError();
  slurm_.Lie("sbatch", "");
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle);
  ASSERT_EQ(Status("a").state, State::kUnknown);
  ASSERT_EQ(Submit("a").value_or("none"), "2");
  slurm_.set_field("2", "state", "RUNNING");
  slurm_.set_field("2", "nodes", "node1");
  slurm_.Appear();  // later than `settle`
  const JobStatus status = Status("a");
  EXPECT_EQ(status.external_id, "2");
  EXPECT_EQ(status.state, State::kRunning);
  EXPECT_EQ(slurm_.Read("jobs/1/state"), "CANCELLED");
  // The status of the cancelled duplicate is ignored.
  EXPECT_EQ(Status("a").state, State::kRunning);
  slurm_.set_field("2", "state", "PREEMPTED");
  EXPECT_EQ(Status("a").state, State::kPreempted);
}

TEST_F(SlurmFaults, AfterARestartAMissingJobIsUnknownOnlyWhenCertain) {
  Restart();
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kUnknown);
}

TEST_F(SlurmFaults, AClockThatIsSetForwardsDoesNotMakeAJobCountAsGone) {
  slurm_.options().now = SlurmSchedulerOptions().now;
  Restart();
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Forget("1");
  EXPECT_EQ(Status("a").state, State::kPending);
  const WallClockShift shift(3600);
  EXPECT_EQ(Status("a").state, State::kPending);
}

TEST_F(SlurmFaults, ReadsTheEndOfAForgottenJobFromAccounting) {
  slurm_.Write("accounting", "slurmdbd");
  Restart();
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Forget("1");
  slurm_.Write("sacct.answer",
               absl::StrCat("1|", geteuid(), "|NODE_FAIL|None|1:0|1795279138|00:10:00|01:00:00|node1|a"));
  EXPECT_EQ(Status("a").state, State::kPending);
  EXPECT_EQ(slurm_.Calls("sacct"), 0);
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kNodeFail);
  EXPECT_EQ(Status("a").state, State::kNodeFail);
  EXPECT_EQ(slurm_.Calls("sacct"), 1);
}

// After a restart the coordinator cancels a job whose workers send no heartbeats. An administrator had
// cancelled it while the coordinator was stopped.
TEST_F(SlurmFaults, AccountingShowsWhetherWeCancelledAJob) {
  slurm_.Write("accounting", "slurmdbd");
  for (const bool before : {true, false}) {
    Restart();
    EXPECT_EQ(Status("a").state, State::kPending);
    slurm_.Advance(kSettle);
    ASSERT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
    const absl::Time end = slurm_.Now() + (before ? -2 * kSettle : absl::ZeroDuration());
    slurm_.Write("sacct.answer", absl::StrCat("1|", geteuid(), "|CANCELLED by 7|None|0:0|",
                                              absl::ToUnixSeconds(end), "|00:10:00|01:00:00|node1|a"));
    const JobStatus status = Status("a");
    EXPECT_EQ(status.state, State::kCancelled);
    EXPECT_EQ(status.from_outside, before);
    EXPECT_EQ(status.reason, before ? "cancelled by user id 7" : "cancelled by this service");
  }
}

TEST_F(SlurmFaults, DoesNotWaitForFailingAccounting) {
  slurm_.Write("accounting", "slurmdbd");
  slurm_.Lie("sacct", "fail sacct: error: Problem talking to the database: Connection refused");
  Restart();
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Forget("1");
  Status("a");
  slurm_.Advance(kSettle);
  EXPECT_EQ(Status("a").state, State::kUnknown);
}

TEST_F(SlurmFaults, AFailedJobIsReportedWhileTheFilesystemIsBroken) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.set_field("1", "state", "FAILED");
  EXPECT_THAT(Status("a").reason, HasSubstr("job.out, which does not exist"));
  const std::string allocation = slurm_.directory() + "/runs/allocations/a";
  std::filesystem::remove_all(allocation);
  std::filesystem::create_directory_symlink(allocation, allocation);  // each access now fails with ELOOP
  const JobStatus status = Status("a");
  EXPECT_EQ(status.state, State::kFailed);
  EXPECT_THAT(status.reason, AllOf(HasSubstr("job.out"), Not(HasSubstr("does not exist"))));
}

// --- scancel

TEST_F(SlurmFaults, AFailedCancelIsReportedAndCanBeRepeated) {
  ASSERT_TRUE(Submit("a").ok());
  slurm_.Lie("scancel",
             "fail scancel: error: Kill job error on job id 1: Unable to contact slurm controller");
  EXPECT_EQ(slurm_.scheduler().Cancel({"a"}).code(), absl::StatusCode::kUnavailable);
  slurm_.Lie("scancel",
             "fail scancel: error: Kill job error on job id 1: Job/step already completing or completed");
  EXPECT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
  slurm_.Lie("scancel", "");
  EXPECT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
  EXPECT_EQ(Status("a").state, State::kCancelled);
  EXPECT_EQ(Status("a").reason, "cancelled by this service");
}

TEST_F(SlurmFaults, CancelSelectsTheJobByNameAndUser) {
  ASSERT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
  EXPECT_THAT(slurm_.Read("calls"), HasSubstr(absl::StrCat("scancel --user=", geteuid(), " --name=a\n")));
  // An invalid name could be parsed as an option or as another job.
  ASSERT_TRUE(slurm_.scheduler().Cancel({"--state=RUNNING"}).ok());
  EXPECT_EQ(slurm_.Calls("scancel"), 1);
}

TEST_F(SlurmFaults, ACancelOfManyJobsEndsNoOtherJob) {
  for (const char* token : {"a", "b", "c"}) ASSERT_TRUE(Submit(token).ok());
  ASSERT_TRUE(slurm_.scheduler().Cancel({"a", "b"}).ok());
  EXPECT_EQ(slurm_.Calls("scancel"), 1);
  EXPECT_EQ(Status("a").state, State::kCancelled);
  EXPECT_EQ(Status("b").state, State::kCancelled);
  EXPECT_EQ(Status("c").state, State::kPending);
}

TEST_F(SlurmFaults, ReportsThatSomebodyElseCancelledAJob) {
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_EQ(Status("a").state, State::kPending);
  slurm_.set_field("1", "state", "CANCELLED");
  EXPECT_THAT(Status("a").reason, HasSubstr("from outside"));
}

// --- load and secrets

TEST_F(SlurmFaults, PollNeedsOneQueryForAnyNumberOfJobs) {
  std::vector<std::string> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back(absl::StrCat("token-", i));
  for (int i = 0; i < 2000; ++i) tokens.push_back(absl::StrCat("waits-", i));
  ASSERT_TRUE(Submit(tokens[0]).ok());
  const auto before = slurm_.Read("calls");
  const absl::StatusOr<std::vector<JobStatus>> statuses = slurm_.scheduler().Poll(tokens);
  ASSERT_TRUE(statuses.ok()) << statuses.status();
  EXPECT_EQ(statuses->size(), tokens.size());
  const std::string calls = slurm_.Read("calls").substr(before.size());
  EXPECT_THAT(calls, testing::StartsWith("squeue --all "));  // also jobs in hidden partitions
  EXPECT_EQ(std::count(calls.begin(), calls.end(), '\n'), 1) << calls;
  // Without tokens there is no query.
  ASSERT_TRUE(slurm_.scheduler().Poll({}).ok());
  EXPECT_EQ(slurm_.Read("calls"), before + calls);
}

TEST_F(SlurmFaults, TheSecretIsOnlyInTheEnvironment) {
  setenv("SCALELAB_CLIENT_SECRET", "client-secret", 1);
  Restart();
  ASSERT_TRUE(Submit("a").ok());
  EXPECT_THAT(slurm_.Read("calls"), Not(HasSubstr("secret-of-a")));
  EXPECT_THAT(slurm_.Read("jobs/1/script"), Not(HasSubstr("secret-of-a")));
  EXPECT_THAT(slurm_.Read("runs/allocations/a/job.sh"), Not(HasSubstr("secret-of-a")));
  // The environment of the job contains the secret, but no other variables of this process.
  EXPECT_THAT(slurm_.Read("jobs/1/exports"), HasSubstr("SCALELAB_ALLOCATION_SECRET=\"secret-of-a\""));
  EXPECT_THAT(slurm_.Read("jobs/1/exports"), Not(HasSubstr("client-secret")));
  unsetenv("SCALELAB_CLIENT_SECRET");
}

TEST_F(SlurmFaults, StartsWhileTheControllerIsUnreachable) {
  slurm_.Lie("sinfo", "fail slurm_load_partitions: Unable to contact slurm controller (connect failure)");
  slurm_.Lie("scontrol",
             "fail slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)");
  Restart();
  EXPECT_EQ(slurm_.scheduler().capacity().slots, 0);
  EXPECT_EQ(slurm_.scheduler().View().status().code(), absl::StatusCode::kUnavailable);
  slurm_.Lie("sinfo", "");
  slurm_.Lie("scontrol", "");
  slurm_.Write("slots", "64");
  EXPECT_TRUE(slurm_.scheduler().View().ok());
  EXPECT_EQ(slurm_.scheduler().capacity().slots, 64);
  EXPECT_TRUE(Submit("a").ok());
  EXPECT_TRUE(slurm_.scheduler().Cancel({"a"}).ok());
}

TEST(SlurmMissing, IsReportedWithThePackage) {
  const std::string path = getenv("PATH");
  const std::string empty = testing::TempDir();
  setenv("PATH", empty.c_str(), 1);
  const absl::Status status = NewSlurmScheduler({}).status();
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("sbatch"), HasSubstr("slurm-client")));
}

}  // namespace
}  // namespace scalelab::server
