#include "server/scheduler/local_scheduler.h"

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/time/clock.h"
#include "files/lock_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduler/local_job.h"
#include "server/time/clock.h"
#include "tests/fakes/local_cluster.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::AllOf;
using testing::HasSubstr;

std::string Contents(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

void Submit(LocalCluster& cluster, const JobRequest& request) {
  const absl::StatusOr<std::string> id = cluster.scheduler().Submit(request);
  ASSERT_TRUE(id.ok()) << id.status();
}

TEST(LocalScheduler, PassesAddressAndIdentityToTheWorker) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  EXPECT_EQ(cluster.WaitForWorker().secret, "secret-of-job");
  cluster.scheduler().Cancel({"job"}).IgnoreError();
  cluster.WaitFor("job", State::kCancelled);
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  EXPECT_EQ(Contents(cluster.directory() + "/job/worker.log"),
            std::string("--server unix:/nowhere --allocation job --node ") + host +
                " --node-index 0 --lock " + cluster.directory() + "/job/lock\n");
  EXPECT_THAT(Contents(cluster.directory() + "/job/job.json"), testing::Not(HasSubstr("secret-of-job")));
}

TEST(LocalScheduler, StartsJobsInOrderEvenWhenALaterOneWouldFit) {
  LocalCluster cluster(/*slots=*/2);
  Submit(cluster, cluster.Request("first", 1));
  const pid_t first = cluster.WaitForWorker().pid;
  Submit(cluster, cluster.Request("wide", 2));
  Submit(cluster, cluster.Request("narrow", 1));
  EXPECT_THAT(cluster.Status("wide").reason, AllOf(HasSubstr("2 slots"), HasSubstr("1 free")));
  EXPECT_THAT(cluster.Status("narrow").reason, HasSubstr("behind 1 job"));
  kill(first, SIGTERM);
  const LocalCluster::WorkerReport wide = cluster.WaitForWorker();
  EXPECT_EQ(wide.secret, "secret-of-wide");
  EXPECT_EQ(cluster.Status("narrow").state, State::kPending);
  kill(wide.pid, SIGTERM);
  EXPECT_EQ(cluster.WaitForWorker().secret, "secret-of-narrow");
}

TEST(LocalScheduler, CoresOfARankCountAsSlots) {
  LocalCluster cluster(/*slots=*/4);
  JobRequest request = cluster.Request("job", 2);
  request.cpus_per_rank = 3;
  const absl::Status status = cluster.scheduler().Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("6 slots"), HasSubstr("this machine has 4"), HasSubstr("--local-slots")));
  EXPECT_EQ(cluster.scheduler().capacity().slots, 4);
}

TEST(LocalScheduler, RefusesMoreThanOneNode) {
  LocalCluster cluster;
  JobRequest request = cluster.Request("job");
  request.nodes = 2;
  const absl::Status status = cluster.scheduler().Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("requests 2 nodes, but the local scheduler has one"));
}

TEST(LocalScheduler, RefusesATokenThatIsAPath) {
  LocalCluster cluster;
  for (const char* token : {"", "..", "a/b"}) {
    EXPECT_EQ(cluster.scheduler().Submit(cluster.Request(token)).status().code(),
              absl::StatusCode::kInvalidArgument)
        << token;
  }
}

TEST(LocalScheduler, AnExclusiveJobUsesTheWholeMachine) {
  LocalCluster cluster(/*slots=*/2);
  JobRequest request = cluster.Request("alone", 1);
  request.exclusive = true;
  Submit(cluster, request);
  cluster.WaitForWorker();
  Submit(cluster, cluster.Request("other", 1));
  EXPECT_EQ(cluster.Status("other").state, State::kPending);
  cluster.scheduler().Cancel({"alone"}).IgnoreError();
  cluster.WaitForWorker();
  EXPECT_THAT(Contents(cluster.directory() + "/alone/worker.log"), HasSubstr(" --bind\n"));
  EXPECT_THAT(Contents(cluster.directory() + "/other/worker.log"), testing::Not(HasSubstr("--bind")));
}

TEST(LocalScheduler, GivesEachJobItsOwnGpus) {
  LocalCluster cluster(/*slots=*/4, /*gpus=*/3);
  JobRequest request = cluster.Request("pair", 2);
  request.gpus_per_rank = 1;
  Submit(cluster, request);
  EXPECT_EQ(cluster.WaitForWorker().devices, "0,1");
  request = cluster.Request("single", 1);
  request.gpus_per_rank = 1;
  Submit(cluster, request);
  EXPECT_EQ(cluster.WaitForWorker().devices, "2");
  request.token = "waits";
  Submit(cluster, request);
  EXPECT_EQ(cluster.Status("waits").state, State::kPending);
  request.token = "impossible";
  request.gpus_per_rank = 4;
  EXPECT_EQ(cluster.scheduler().Submit(request).status().code(), absl::StatusCode::kInvalidArgument);
  cluster.scheduler().Cancel({"pair"}).IgnoreError();
  EXPECT_EQ(cluster.WaitForWorker().devices, "0");
}

TEST(LocalScheduler, EndsAJobAtItsTimeLimit) {
  LocalCluster cluster;
  JobRequest request = cluster.Request("job");
  request.time_limit = absl::Milliseconds(50);
  Submit(cluster, request);
  EXPECT_EQ(cluster.WaitFor("job", State::kTimeout).reason,
            "its time limit of 0:00:00 was reached; raise resources.time");
}

TEST(TimeLimitReason, NamesTheLimitAndTheKey) {
  EXPECT_EQ(TimeLimitReason(absl::Hours(30) + absl::Seconds(61)),
            "its time limit of 30:01:01 was reached; raise resources.time");
  EXPECT_EQ(TimeLimitReason(absl::InfiniteDuration()), "its time limit was reached; raise resources.time");
}

TEST(LocalScheduler, KeepsTheTimeLimitAfterARestart) {
  LocalCluster cluster;
  JobRequest request = cluster.Request("job");
  request.time_limit = absl::Milliseconds(1100);
  Submit(cluster, request);
  cluster.WaitForWorker();
  cluster.Restart();
  EXPECT_EQ(cluster.WaitFor("job", State::kTimeout).reason,
            "its time limit of 0:00:01 was reached; raise resources.time");
}

TEST(LocalScheduler, AClockThatIsSetForwardsEndsNoJob) {
  LocalCluster cluster(/*slots=*/2);
  JobRequest request = cluster.Request("job");
  request.time_limit = absl::Hours(1);
  Submit(cluster, request);
  cluster.WaitForWorker();
  const WallClockShift shift(5 * 3600);
  // The scheduler checks its jobs before it starts the next one.
  Submit(cluster, cluster.Request("next"));
  cluster.WaitForWorker();
  ASSERT_TRUE(cluster.scheduler().Cancel({"next"}).ok());
  cluster.WaitFor("next", State::kCancelled);
  EXPECT_EQ(cluster.Status("job").state, State::kRunning);
}

TEST(LocalScheduler, AClockThatIsSetBackDelaysNeitherTheTimeLimitNorSigkill) {
  LocalCluster cluster;
  cluster.set_mode("stubborn");
  JobRequest request = cluster.Request("job");
  request.time_limit = absl::Milliseconds(500);
  Submit(cluster, request);
  cluster.WaitForWorker();
  const WallClockShift shift(-3600);
  cluster.WaitFor("job", State::kTimeout);
}

TEST(LocalScheduler, KillsAWorkerThatIgnoresSigterm) {
  LocalCluster cluster;
  cluster.set_mode("stubborn");
  Submit(cluster, cluster.Request("job"));
  cluster.WaitForWorker();
  ASSERT_TRUE(cluster.scheduler().Cancel({"job"}).ok());
  cluster.WaitFor("job", State::kCancelled);
}

TEST(LocalScheduler, ReportsTheSignalThatKilledAWorker) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  kill(cluster.WaitForWorker().pid, SIGKILL);
  EXPECT_THAT(cluster.WaitFor("job", State::kFailed).reason,
              AllOf(HasSubstr("signal 9"), HasSubstr("job/worker.log")));
}

TEST(LocalScheduler, AJobEndsWhenItsLastProcessReleasesTheLock) {
  LocalCluster cluster(/*slots=*/1);
  cluster.set_mode("lingering");
  Submit(cluster, cluster.Request("job"));
  const LocalCluster::WorkerReport worker = cluster.WaitForWorker();
  cluster.set_mode("");
  Submit(cluster, cluster.Request("next"));
  kill(worker.pid, SIGKILL);
  // Any Cancel makes the scheduler check its jobs. The worker has certainly ended, but its slot must
  // still be reserved.
  while (OpenWorker(cluster.directory() + "/job", worker.pid) >= 0) {
  }
  ASSERT_TRUE(cluster.scheduler().Cancel({"nobody"}).ok());
  EXPECT_EQ(cluster.Status("job").state, State::kRunning);
  EXPECT_EQ(cluster.Status("next").state, State::kPending);
  kill(worker.child, SIGUSR2);
  cluster.WaitFor("job", State::kFailed);
  cluster.WaitFor("next", State::kRunning);
}

TEST(LocalScheduler, AMissingWorkerProgramIsABootFailure) {
  LocalCluster cluster;
  LocalSchedulerOptions options = cluster.options();
  options.worker_program = "/no/such/program";
  std::atomic<bool> changed = false;
  options.changed = [&] {
    changed = true;
    changed.notify_all();
  };
  const auto scheduler = NewLocalScheduler(options);
  ASSERT_TRUE(scheduler.ok());
  ASSERT_TRUE((*scheduler)->Submit(cluster.Request("job")).ok());
  changed.wait(false);
  const auto statuses = (*scheduler)->Poll({"job"});
  EXPECT_EQ(statuses->front().state, State::kBootFail);
  EXPECT_THAT(statuses->front().reason, AllOf(HasSubstr("/no/such/program"), HasSubstr("No such file")));
}

TEST(LocalScheduler, AWorkerThatEndsBeforeItTakesItsLockIsABootFailure) {
  LocalCluster cluster;
  cluster.set_mode("no-lock");
  Submit(cluster, cluster.Request("job"));
  EXPECT_THAT(cluster.WaitFor("job", State::kBootFail).reason, HasSubstr("status 4"));
}

TEST(LocalScheduler, CountsTheSlotsOfJobsFoundAfterARestart) {
  LocalCluster cluster(/*slots=*/2);
  Submit(cluster, cluster.Request("wide", 2));
  const pid_t wide = cluster.WaitForWorker().pid;
  cluster.Restart();
  Submit(cluster, cluster.Request("next", 1));
  EXPECT_THAT(cluster.Status("next").reason, HasSubstr("0 free"));
  kill(wide, SIGTERM);
  cluster.WaitFor("next", State::kRunning);
}

TEST(LocalScheduler, DetectsTheEndOfAJobFoundAfterARestart) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  const pid_t pid = cluster.WaitForWorker().pid;
  cluster.Restart();
  EXPECT_EQ(cluster.Status("job").state, State::kRunning);
  kill(pid, SIGUSR1);
  cluster.WaitUntil("job", IsOver);
}

TEST(LocalScheduler, AStartReadsNoRecordsOfEndedJobs) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("ended"));
  cluster.WaitForWorker();
  ASSERT_TRUE(cluster.scheduler().Cancel({"ended"}).ok());
  cluster.WaitFor("ended", State::kCancelled);
  Submit(cluster, cluster.Request("alive"));
  cluster.WaitForWorker();
  const std::string record = cluster.directory() + "/ended/job.json";
  std::filesystem::remove(record);
  std::filesystem::create_symlink(record, record);  // reading it fails
  cluster.Restart();
  EXPECT_EQ(cluster.Status("alive").state, State::kRunning);
}

TEST(LocalScheduler, FindsLiveJobsOfAVersionThatDidNotMarkThem) {
  LocalCluster cluster(/*slots=*/2);
  Submit(cluster, cluster.Request("job", 2));
  const pid_t pid = cluster.WaitForWorker().pid;
  cluster.Stop();
  std::filesystem::remove_all(cluster.directory() + "/.live");
  cluster.Restart();
  Submit(cluster, cluster.Request("next"));
  EXPECT_THAT(cluster.Status("next").reason, HasSubstr("0 free"));
  kill(pid, SIGTERM);
  cluster.WaitForWorker();
}

TEST(LocalScheduler, AJobThatEndedWithoutASchedulerHasFailed) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  const pid_t pid = cluster.WaitForWorker().pid;
  cluster.Stop();
  kill(pid, SIGKILL);
  while (FindLockHolder(LockOf(cluster.directory() + "/job"))->held) {
  }
  cluster.Restart();
  const JobStatus status = cluster.Status("job");
  EXPECT_EQ(status.state, State::kFailed);
  EXPECT_THAT(status.reason, HasSubstr("while the coordinator was stopped"));
}

TEST(LocalScheduler, AJobOfAnEarlierBootIsANodeFailure) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  const pid_t pid = cluster.WaitForWorker().pid;
  cluster.Stop();
  kill(pid, SIGKILL);
  while (FindLockHolder(LockOf(cluster.directory() + "/job"))->held) {
  }
  JobRecord record = **ReadJobRecord(cluster.directory() + "/job");
  record.boot_id = "another";
  ASSERT_TRUE(WriteJobRecord(cluster.directory() + "/job", record).ok());
  cluster.Restart();
  EXPECT_EQ(cluster.Status("job").state, State::kNodeFail);
}

TEST(LocalScheduler, AJobWhoseWorkerNeverTookItsLockIsUnknownAndCanBeResubmitted) {
  LocalCluster cluster;
  ASSERT_TRUE(WriteJobRecord(cluster.directory() + "/job", JobRecord{})
                  .ok());  // a crash after writing job.json and before starting the worker
  EXPECT_EQ(cluster.Status("job").state, State::kUnknown);
  Submit(cluster, cluster.Request("job"));
  cluster.WaitForWorker();
  EXPECT_EQ(cluster.Status("job").state, State::kRunning);
}

TEST(LocalScheduler, APendingJobIsUnknownAfterARestart) {
  LocalCluster cluster(/*slots=*/1);
  Submit(cluster, cluster.Request("job"));
  cluster.WaitForWorker();
  Submit(cluster, cluster.Request("waits"));
  cluster.Restart();
  EXPECT_EQ(cluster.Status("waits").state, State::kUnknown);
}

// A second worker for the same token, as after a crash between starting a worker and its lock.
TEST(LocalScheduler, FollowsTheWorkerThatHoldsTheLockWhenAnotherOneLostIt) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  const pid_t pid = cluster.WaitForWorker().pid;
  cluster.Stop();
  const std::string directory = cluster.directory() + "/job";
  // Without the record the next scheduler does not find the job.
  std::filesystem::remove(directory + "/job.json");
  cluster.Restart();
  Submit(cluster, cluster.Request("job"));
  cluster.WaitFor("job", State::kRunning);
  // The second worker exits with status 5 because the lock is held; the first one continues the job.
  ASSERT_TRUE(cluster.scheduler().Cancel({"job"}).ok());
  cluster.WaitFor("job", State::kCancelled);
  EXPECT_LT(OpenWorker(directory, pid), 0);
}

TEST(LocalScheduler, RejectsAnUnrelatedProcessAsWorker) {
  LocalCluster cluster;
  Submit(cluster, cluster.Request("job"));
  const pid_t pid = cluster.WaitForWorker().pid;
  const int worker = OpenWorker(cluster.directory() + "/job", pid);
  EXPECT_GE(worker, 0);
  close(worker);
  EXPECT_LT(OpenWorker(cluster.directory() + "/job", getpid()), 0);
  EXPECT_LT(OpenWorker(cluster.directory() + "/job", 0), 0);
}

TEST(JobRecord, ReadsBackWhatWasWritten) {
  const std::string directory = testing::TempDir() + "job-record";
  JobRecord record;
  record.slots = 3;
  record.gpus = {"1", "GPU-5"};
  record.time_limit = absl::Hours(2);
  record.deadline = absl::Hours(100);
  record.boot_id = "boot";
  record.state = State::kTimeout;
  record.reason = "why";
  ASSERT_TRUE(WriteJobRecord(directory, record).ok());
  const JobRecord read = **ReadJobRecord(directory);
  EXPECT_EQ(read.slots, 3);
  EXPECT_EQ(read.gpus, record.gpus);
  EXPECT_EQ(read.time_limit, record.time_limit);
  EXPECT_EQ(read.deadline, record.deadline);
  EXPECT_EQ(read.boot_id, "boot");
  EXPECT_EQ(read.state, State::kTimeout);
  EXPECT_EQ(read.reason, "why");
  std::ofstream(directory + "/job.json")  // as an earlier version wrote it
      << R"({"deadline": )" << absl::ToUnixMicros(absl::Now() + absl::Hours(1)) << "}";
  EXPECT_NEAR(absl::ToDoubleSeconds((*ReadJobRecord(directory))->deadline - Clock::System().Steady()), 3600,
              10);
  EXPECT_EQ((*ReadJobRecord(directory))->time_limit, absl::InfiniteDuration());
  std::ofstream(directory + "/job.json")
      << "{\"slots\": ";  // a partial file, as after a crash of the machine
  EXPECT_EQ((*ReadJobRecord(directory))->state, State::kRunning);
  std::filesystem::remove_all(directory);
  EXPECT_FALSE(ReadJobRecord(directory)->has_value());
}

}  // namespace
}  // namespace scalelab::server
