// Tests of the scheduler that runs jobs through agents, with agents that are not connected, are killed, hang
// and are replaced. No job may run twice, none may be lost, and no user may delay another one.
#include "server/scheduler/agent/agent_scheduler.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/loopback_agent.h"
#include "tests/fakes/slurm_standins.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kSettle = absl::Seconds(30);

class AgentFaults : public testing::Test {
 protected:
  AgentFaults() {
    slurm_.Write("slots", "64");
    std::filesystem::create_directory(slurm_.directory() + "/runs");
  }
  ~AgentFaults() override {
    hub_.Stop();
    scheduler_.reset();
  }

  // Makes a scheduler without the state of an older one. The node of the cluster gets no jobs, so that all stay pending.
  void Start() {
    scheduler_.reset();
    AgentSchedulerOptions options;
    options.slurm = slurm_.options();
    options.slurm.settle = kSettle;
    options.patience = patience_;
    options.uid_of = [this](const std::string& user) -> absl::StatusOr<std::optional<uid_t>> {
      absl::MutexLock lock(&mutex_);
      ++lookups_;
      mutex_.Await(absl::Condition(
          +[](bool* hang) { return !*hang; }, &lookups_hang_));
      if (lookups_fail_) return absl::UnavailableError("the accounts cannot be looked up");
      return user == "nobody" ? std::nullopt : std::optional<uid_t>(geteuid());
    };
    options.users_of_jobs = [this] { return users_; };
    auto scheduler = NewAgentScheduler(std::move(options), hub_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    slurm_.Write("slots", "0");
  }
  std::unique_ptr<LoopbackAgent> Agent(const std::string& user) {
    return std::make_unique<LoopbackAgent>(hub_, user, DirectoryOfUser(slurm_.directory() + "/runs", user));
  }
  absl::StatusOr<std::string> Submit(const std::string& user, const std::string& token) {
    JobRequest request = slurm_.Request(token);
    request.user = user;
    users_[token] = user;
    return scheduler_->Submit(request);
  }
  std::vector<JobStatus> Poll(const std::vector<std::string>& tokens) {
    const auto statuses = scheduler_->Poll(tokens);
    EXPECT_TRUE(statuses.ok()) << statuses.status();
    return statuses.value_or(std::vector<JobStatus>());
  }
  void FailLookups(bool fail) {
    absl::MutexLock lock(&mutex_);
    lookups_fail_ = fail;
  }
  void HangLookups(bool hang) {
    absl::MutexLock lock(&mutex_);
    lookups_hang_ = hang;
  }
  int lookups() {
    absl::MutexLock lock(&mutex_);
    return lookups_;
  }
  // Returns the number of jobs of each name that Slurm has accepted.
  std::map<std::string, int> JobsByName() const {
    std::map<std::string, int> names;
    std::error_code error;
    for (const auto& job : std::filesystem::directory_iterator(slurm_.directory() + "/jobs", error))
      ++names[slurm_.Read("jobs/" + job.path().filename().string() + "/name")];
    return names;
  }

  SlurmStandins slurm_;
  AgentHub hub_;
  std::map<std::string, std::string> users_;
  absl::Duration patience_ = absl::Seconds(30);  // a busy machine
  absl::Mutex mutex_;
  bool lookups_fail_ ABSL_GUARDED_BY(mutex_) = false;
  bool lookups_hang_ ABSL_GUARDED_BY(mutex_) = false;
  int lookups_ ABSL_GUARDED_BY(mutex_) = 0;  // of accounts
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(AgentFaults, AJobWaitsForTheAgentOfItsUser) {
  Start();
  const auto bob = Agent("bob");
  const absl::Status refused = Submit("alice", "a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("the agent of alice is not connected"), HasSubstr("scalelab agent --detach")));
  EXPECT_EQ(slurm_.Calls("sbatch"), 0);
  EXPECT_EQ(Poll({"a"})[0].state, State::kUnknown);
  const auto alice = Agent("alice");
  EXPECT_EQ(Submit("alice", "a").value_or("none"), "1");
}

TEST_F(AgentFaults, AUserWithoutAnAccountGetsNoJob) {
  Start();
  const absl::Status refused = Submit("nobody", "a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("no account nobody"));
}

TEST_F(AgentFaults, TheJobAndItsFilesAreInTheDirectoryOfTheUser) {
  Start();
  const auto alice = Agent("alice");
  ASSERT_TRUE(Submit("alice", "a").ok());
  const std::string directory = slurm_.directory() + "/runs/alice/allocations/a";
  EXPECT_THAT(slurm_.Read("calls"), HasSubstr("--chdir=" + directory));
  EXPECT_THAT(slurm_.Read("runs/alice/allocations/a/job.sh"), HasSubstr("#SBATCH --output=" + directory));
  const auto mode = std::filesystem::status(slurm_.directory() + "/runs/alice").permissions();
  EXPECT_EQ(mode, std::filesystem::perms::owner_all);
}

TEST_F(AgentFaults, OneQueryReturnsTheJobsOfAllUsers) {
  Start();
  const auto alice = Agent("alice"), bob = Agent("bob"), carol = Agent("carol");
  ASSERT_TRUE(Submit("alice", "a").ok());
  ASSERT_TRUE(Submit("bob", "b").ok());
  ASSERT_TRUE(Submit("carol", "c").ok());
  const int before = slurm_.Calls("squeue");
  EXPECT_THAT(Poll({"a", "b", "c"}), SizeIs(3));
  EXPECT_EQ(slurm_.Calls("squeue"), before + 1);
}

TEST_F(AgentFaults, AJobNameWithLineBreaksIsNotReadAsJobsOfOtherUsers) {
  Start();
  const auto alice = Agent("alice"), bob = Agent("bob");
  ASSERT_TRUE(Submit("alice", "a").ok());
  ASSERT_TRUE(Submit("alice", "a2").ok());
  ASSERT_TRUE(Submit("bob", "b").ok());
  ASSERT_TRUE(Submit("bob", "mine").ok());
  // Bob renames a job. The second line looks like a job of alice that has ended. The third one is malformed.
  slurm_.set_field(
      "4", "name",
      absl::StrCat("mine\n1|", geteuid(), "|COMPLETED|None|0|N/A|0:01|1:00:00|node1|a\n2|x|RUNNING|a2"));
  slurm_.Forget("2");
  slurm_.Advance(2 * kSettle);
  Poll({"a", "a2", "b"});
  slurm_.Advance(2 * kSettle);
  const std::vector<JobStatus> statuses = Poll({"a", "a2", "b"});
  ASSERT_THAT(statuses, SizeIs(3));
  EXPECT_EQ(statuses[0].state, State::kPending);
  EXPECT_EQ(statuses[1].state, State::kUnknown) << "Slurm has forgotten the job";
  EXPECT_EQ(statuses[2].state, State::kPending);
  EXPECT_EQ(slurm_.Calls("scancel"), 0);
}

TEST_F(AgentFaults, JobsAreFollowedWhileTheAgentOfTheirUserIsAway) {
  Start();
  {
    const auto alice = Agent("alice");
    ASSERT_TRUE(Submit("alice", "a").ok());
  }
  EXPECT_EQ(Poll({"a"})[0].state, State::kPending);
  slurm_.set_field("1", "state", "RUNNING");
  EXPECT_EQ(Poll({"a"})[0].state, State::kRunning);
  slurm_.set_field("1", "state", "COMPLETED");
  EXPECT_EQ(Poll({"a"})[0].state, State::kCompleted);
}

TEST_F(AgentFaults, PrivateJobsAreUnknownWhileTheAgentOfTheirUserIsAway) {
  slurm_.Write("private", "accounts,jobs");
  Start();
  auto alice = Agent("alice");
  const auto bob = Agent("bob");
  ASSERT_TRUE(Submit("alice", "a").ok());
  ASSERT_TRUE(Submit("bob", "b").ok());
  alice.reset();
  slurm_.Advance(2 * kSettle);
  std::vector<JobStatus> statuses = Poll({"a", "b"});
  ASSERT_THAT(statuses, SizeIs(1));
  EXPECT_EQ(statuses[0].token, "b");
  alice = Agent("alice");
  statuses = Poll({"a", "b"});
  ASSERT_THAT(statuses, SizeIs(2));
  EXPECT_EQ(statuses[0].state, State::kPending);
}

TEST_F(AgentFaults, AfterARestartTheUsersOfJobsAreAsked) {
  Start();
  const auto alice = Agent("alice");
  ASSERT_TRUE(Submit("alice", "a").ok());
  Start();
  EXPECT_EQ(Poll({"a"})[0].state, State::kPending);
  EXPECT_EQ(Submit("alice", "a").value_or("none"), "1");
  EXPECT_TRUE(scheduler_->Cancel({"a"}).ok());
  EXPECT_EQ(Poll({"a"})[0].state, State::kCancelled);
}

TEST_F(AgentFaults, CancellingWaitsForTheAgent) {
  Start();
  auto alice = Agent("alice");
  ASSERT_TRUE(Submit("alice", "a").ok());
  alice.reset();
  EXPECT_EQ(scheduler_->Cancel({"a"}).code(), absl::StatusCode::kUnavailable);
  alice = Agent("alice");
  EXPECT_TRUE(scheduler_->Cancel({"a"}).ok());
  EXPECT_EQ(Poll({"a"})[0].state, State::kCancelled);
}

TEST_F(AgentFaults, AnAgentThatHangsDelaysNobodyElse) {
  patience_ = absl::Milliseconds(300);
  Start();
  const auto alice = Agent("alice");
  alice->Suspend();
  EXPECT_THAT(Submit("alice", "a").status().message(), HasSubstr("has not answered for 300ms"));
  EXPECT_THAT(Submit("alice", "a2").status().message(), HasSubstr("earlier command"));
  const auto bob = Agent("bob");
  // On a busy machine, the first call may take longer than the scheduler waits for the agent. The job
  // is found afterwards.
  absl::StatusOr<std::string> id = Submit("bob", "b");
  for (int i = 0; i < 100 && !id.ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(50));
    id = Submit("bob", "b");
  }
  EXPECT_EQ(id.value_or("none"), "1");
  EXPECT_EQ(slurm_.Jobs(), 1);
}

TEST_F(AgentFaults, AnAgentThatDoesNotAnswerInTimeIsDisconnected) {
  slurm_.options().command_timeout = absl::Seconds(1);
  Start();
  const auto alice = Agent("alice");
  alice->Suspend();
  const absl::Status status = Submit("alice", "a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("unknown whether Slurm accepted the job"));
  EXPECT_EQ(alice->ended().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Submit("alice", "a2").status().message(), HasSubstr("not connected"));
}

TEST_F(AgentFaults, ANewerAgentReplacesTheOlderOne) {
  Start();
  const auto old = Agent("alice");
  const auto fresh = Agent("alice");
  EXPECT_EQ(old->ended().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(Submit("alice", "a").ok());
  EXPECT_EQ(old->requests(), 0);
  EXPECT_GT(fresh->requests(), 0);
}

TEST_F(AgentFaults, AJobWhoseAgentDiedAfterTheSubmissionIsFound) {
  Start();
  slurm_.Lie("sbatch", "take-hang");
  slurm_.options().command_timeout = absl::Seconds(20);
  auto alice = Agent("alice");
  std::thread killer([&] {
    alice->WaitForRequests(1);
    while (slurm_.Jobs() == 0) absl::SleepFor(absl::Milliseconds(10));
    alice->Kill();
  });
  const absl::Status status = Submit("alice", "a").status();
  killer.join();
  EXPECT_THAT(status.message(), HasSubstr("its agent ended before it answered"));
  slurm_.Lie("sbatch", "");
  const auto next = Agent("alice");
  EXPECT_EQ(Submit("alice", "a").value_or("none"), "1");
  EXPECT_EQ(slurm_.Jobs(), 1);
}

TEST_F(AgentFaults, FiftyAgentsThatDieInMidSubmissionLoseNoJobAndDoubleNone) {
  Start();
  slurm_.Write("slots", "64");  // this test reads the view of the cluster again
  std::mt19937 random(7);
  constexpr int kJobs = 50;
  int killed_before_answer = 0;
  for (int i = 0; i < kJobs; ++i) {
    const std::string token = absl::StrCat("job-", i);
    auto agent = Agent("alice");
    const auto delay = absl::Milliseconds(std::uniform_int_distribution<>(0, 60)(random));
    std::thread killer([&] {
      absl::SleepFor(delay);
      agent->Kill();
    });
    absl::StatusOr<std::string> id = Submit("alice", token);
    killer.join();
    if (!id.ok()) ++killed_before_answer;
    // sbatch may still run: the next agent must not submit the job again.
    const auto next = Agent("alice");
    if (!id.ok()) id = Submit("alice", token);
    agent.reset();  // its sbatch has ended
    slurm_.Advance(kSettle + absl::Seconds(1));
    Poll({token});
    slurm_.Advance(kSettle + absl::Seconds(1));
    if (!id.ok()) id = Submit("alice", token);
    ASSERT_TRUE(id.ok()) << token << ": " << id.status();
  }
  EXPECT_GT(killed_before_answer, 0) << "no agent died in time";
  const std::map<std::string, int> jobs = JobsByName();
  EXPECT_THAT(jobs, SizeIs(kJobs));
  for (const auto& [name, count] : jobs) EXPECT_EQ(count, 1) << name;
}

TEST_F(AgentFaults, AJobIsNotGivenUpWhileItsAccountCannotBeLookedUp) {
  Start();
  const auto alice = Agent("alice");
  ASSERT_TRUE(Submit("alice", "a").ok());
  Start();  // without the users that were looked up before
  FailLookups(true);
  EXPECT_EQ(scheduler_->Cancel({"a"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Poll({"a"}), IsEmpty()) << "nothing is known about the job";
  FailLookups(false);
  slurm_.Advance(absl::Seconds(6));  // the pause after a failed lookup
  EXPECT_TRUE(scheduler_->Cancel({"a"}).ok());
  EXPECT_EQ(Poll({"a"})[0].state, State::kCancelled);
}

TEST_F(AgentFaults, AnAccountIsLookedUpOnceForAllJobsOfItsUser) {
  Start();
  users_ = {{"a", "alice"}, {"a2", "alice"}, {"a3", "alice"}};
  FailLookups(true);
  EXPECT_THAT(Poll({"a", "a2", "a3"}), IsEmpty());
  EXPECT_EQ(lookups(), 1);
  EXPECT_EQ(scheduler_->Cancel({"a", "a2", "a3"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lookups(), 1) << "some seconds are between a failed lookup and the next one";
  slurm_.Advance(absl::Seconds(6));
  Poll({"a", "a2", "a3"});
  EXPECT_EQ(lookups(), 2);
}

TEST_F(AgentFaults, AUserDirectoryThatHangsDelaysNoOtherUser) {
  Start();
  const auto alice = Agent("alice");
  ASSERT_TRUE(Submit("alice", "a").ok());
  HangLookups(true);
  users_["b"] = "bob";
  patience_ = absl::Milliseconds(300);
  Start();  // without the users that were looked up before
  EXPECT_THAT(Poll({"a", "b"}), IsEmpty());
  EXPECT_EQ(scheduler_->Cancel({"b"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Submit("carol", "c").status().message(),
              HasSubstr("the account carol cannot be looked up now"));
  HangLookups(false);
  // The lookups in flight end soon. Nothing reports their end.
  for (const char* user : {"alice", "bob", "carol"}) {
    while (absl::StrContains(Submit(user, absl::StrCat("new-", user)).status().message(), "looked up now"))
      absl::SleepFor(absl::Milliseconds(5));
  }
}

TEST_F(AgentFaults, ACancelledJobOfAUserWithoutAnAccountIsUnknown) {
  Start();
  ASSERT_FALSE(Submit("nobody", "a").ok());
  EXPECT_THAT(Poll({"a"}), IsEmpty());
  ASSERT_TRUE(scheduler_->Cancel({"a"}).ok());
  const std::vector<JobStatus> jobs = Poll({"a"});
  ASSERT_THAT(jobs, SizeIs(1));
  EXPECT_EQ(jobs[0].state, State::kUnknown);
}

}  // namespace
}  // namespace scalelab::server
