// The contract of Scheduler, tested with every implementation.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduler/agent/agent_scheduler.h"
#include "tests/fakes/local_cluster.h"
#include "tests/fakes/loopback_agent.h"
#include "tests/fakes/slurm_standins.h"

namespace scalelab::server {
namespace {

using State = JobStatus::State;
using testing::HasSubstr;
using testing::Not;

// A scheduler with slots for two one-rank jobs, with access to its jobs from outside.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual Scheduler& scheduler() = 0;
  virtual JobRequest Request(const std::string& token, int ranks) = 0;
  virtual JobStatus Status(const std::string& token) = 0;
  virtual JobStatus WaitFor(const std::string& token, State state) = 0;
  // Waits until the worker of the job started last runs.
  virtual void WaitForWorker() = 0;
  // Ends that worker, with status 0 if `success`.
  virtual void EndWorker(bool success) = 0;
  // Destroys the Scheduler and creates a new one, as a restart of the coordinator does.
  virtual void Restart() = 0;
};

void EndProcess(pid_t worker, bool success) {
  ASSERT_GT(worker, 0);  // kill(0, ...) would signal this process and its children
  kill(worker, success ? SIGTERM : SIGUSR1);
}

class LocalHarness : public Harness {
 public:
  Scheduler& scheduler() override { return cluster_.scheduler(); }
  JobRequest Request(const std::string& token, int ranks) override { return cluster_.Request(token, ranks); }
  JobStatus Status(const std::string& token) override { return cluster_.Status(token); }
  JobStatus WaitFor(const std::string& token, State state) override { return cluster_.WaitFor(token, state); }
  void WaitForWorker() override { worker_ = cluster_.WaitForWorker().pid; }
  void EndWorker(bool success) override { EndProcess(worker_, success); }
  void Restart() override { cluster_.Restart(); }

 private:
  LocalCluster cluster_{/*slots=*/2};
  pid_t worker_ = 0;
};

// Returns a unique prefix for the names of the jobs of the test with this directory.
std::string Prefix(const std::string& directory) {
  return directory.substr(directory.find_last_of('/') + 1) + "-";
}

// The FIFO in which fake workers report that they hold their lock.
class Reports {
 public:
  explicit Reports(const std::string& path) {
    mkfifo(path.c_str(), 0666);
    fd_ = open(path.c_str(),
               O_RDWR | O_CLOEXEC);  // opened for writing too, so that reads never return end of file
  }
  ~Reports() { close(fd_); }
  // Returns the process id of the next worker that reports; 0 after a timeout.
  pid_t Next() {
    std::string line;
    for (char c = 0; c != '\n'; line += c) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, 30'000) != 1 || read(fd_, &c, 1) != 1) {
        ADD_FAILURE() << "no worker took its lock";
        return 0;
      }
    }
    return atoi(line.c_str());
  }

 private:
  int fd_;
};

class SlurmHarness : public Harness {
 public:
  JobRequest Request(const std::string& token, int ranks) override {
    JobRequest request;
    request.token = token;
    request.secret = "secret-of-" + token;
    request.study = "a-study";
    request.ranks_per_node = ranks;
    return request;
  }
  JobStatus Status(const std::string& token) override {
    const absl::StatusOr<std::vector<JobStatus>> statuses = scheduler().Poll({token});
    if (!statuses.ok() || statuses->size() != 1) {
      ADD_FAILURE() << statuses.status();
      return {};
    }
    return statuses->front();
  }
  // There is no pause between the polls, because each poll starts a program.
  JobStatus WaitFor(const std::string& token, State state) override {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    JobStatus status = Status(token);
    while (status.state != state && !IsOver(status.state) && absl::Now() < give_up) status = Status(token);
    EXPECT_EQ(status.state, state) << token << ": " << status.reason;
    return status;
  }
};

// Adds a unique prefix to the names of jobs, because a real Slurm remembers them and the locks of all workers
// are in one directory. The destructor removes the locks.
class Renaming final : public Scheduler {
 public:
  Renaming(Scheduler& inner, std::string prefix) : inner_(inner), prefix_(std::move(prefix)) {}
  ~Renaming() override {
    std::error_code error;
    for (const auto& lock :
         std::filesystem::directory_iterator(absl::StrCat("/tmp/scalelab-", geteuid()), error)) {
      if (absl::StartsWith(lock.path().filename().string(), prefix_)) std::filesystem::remove(lock, error);
    }
  }
  std::string name() const override { return inner_.name(); }
  Capacity capacity() const override { return inner_.capacity(); }
  std::string Script(const JobRequest& request) const override { return inner_.Script(Renamed(request)); }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    return inner_.Submit(Renamed(request));
  }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    std::vector<std::string> names;
    for (const std::string& token : tokens) names.push_back(prefix_ + token);
    absl::StatusOr<std::vector<JobStatus>> statuses = inner_.Poll(names);
    if (!statuses.ok()) return statuses;
    for (JobStatus& status : *statuses) status.token = status.token.substr(prefix_.size());
    return statuses;
  }
  absl::StatusOr<ClusterView> View() override { return inner_.View(); }
  absl::Status Cancel(const std::vector<std::string>& tokens) override {
    std::vector<std::string> names;
    for (const std::string& token : tokens) names.push_back(prefix_ + token);
    return inner_.Cancel(names);
  }

 private:
  JobRequest Renamed(JobRequest request) const {
    request.token = prefix_ + request.token;
    return request;
  }
  Scheduler& inner_;
  const std::string prefix_;
};

// Runs the Slurm scheduler with stand-ins for Slurm's programs that work correctly.
// slurm_standins_test covers faults.
class StandinHarness final : public SlurmHarness {
 public:
  StandinHarness() {
    standins_.Write("environment", "FAKE_WORKER_REPORT=" + standins_.directory() + "/report");
    standins_.options().settle = absl::ZeroDuration();  // the stand-ins do not forget jobs
    Restart();
  }
  Scheduler& scheduler() override { return *renaming_; }
  void WaitForWorker() override { worker_ = reports_.Next(); }
  void EndWorker(bool success) override { EndProcess(worker_, success); }
  void Restart() override {
    standins_.Restart();
    renaming_ = std::make_unique<Renaming>(standins_.scheduler(), Prefix(standins_.directory()));
  }

 private:
  std::unique_ptr<Renaming> renaming_;  // destroyed last: removes the locks when no worker runs
  SlurmStandins standins_{/*slots=*/2};
  Reports reports_{standins_.directory() + "/report"};
  pid_t worker_ = 0;
};

// Runs the same programs through the agent of a user. `private_jobs`: squeue shows users only their own jobs,
// so the agent must query them.
class AgentHarness final : public SlurmHarness {
 public:
  explicit AgentHarness(bool private_jobs) {
    standins_.Write("environment", "FAKE_WORKER_REPORT=" + standins_.directory() + "/report");
    if (private_jobs) standins_.Write("private", "jobs");
    standins_.options().settle = absl::ZeroDuration();
    std::filesystem::create_directory(standins_.directory() + "/runs");
    Restart();
  }
  ~AgentHarness() override {
    hub_->Stop();
    renaming_.reset();
    scheduler_.reset();
  }
  JobRequest Request(const std::string& token, int ranks) override {
    JobRequest request = SlurmHarness::Request(token, ranks);
    request.user = "alice";
    return request;
  }
  Scheduler& scheduler() override { return *renaming_; }
  void WaitForWorker() override { worker_ = reports_.Next(); }
  void EndWorker(bool success) override { EndProcess(worker_, success); }
  void Restart() override {
    if (hub_ != nullptr) hub_->Stop();
    renaming_.reset();
    scheduler_.reset();
    agent_.reset();
    hub_ = std::make_unique<AgentHub>();
    agent_ = std::make_unique<LoopbackAgent>(*hub_, "alice",
                                             DirectoryOfUser(standins_.directory() + "/runs", "alice"));
    AgentSchedulerOptions options;
    options.slurm = standins_.options();
    options.patience = absl::Seconds(60);  // a busy machine
    options.uid_of = [](const std::string&) { return geteuid(); };
    options.users_of_jobs = [this] {
      std::map<std::string, std::string> users;
      for (const char* token : {"a", "b", "big", "huge", "nobody"})
        users[Prefix(standins_.directory()) + token] = "alice";
      return users;
    };
    auto scheduler = NewAgentScheduler(std::move(options), *hub_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    renaming_ = std::make_unique<Renaming>(*scheduler_, Prefix(standins_.directory()));
  }

 private:
  SlurmStandins standins_{/*slots=*/2};
  Reports reports_{standins_.directory() + "/report"};
  std::unique_ptr<AgentHub> hub_;
  std::unique_ptr<LoopbackAgent> agent_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Renaming> renaming_;
  pid_t worker_ = 0;
};

// Runs the Slurm scheduler with the idle Slurm cluster on PATH, as set by `eval "$(deploy/dev-cluster env)"`.
// Its nodes share this machine's files. Two jobs of one rank fill its first node.
class ClusterHarness final : public SlurmHarness {
 public:
  ClusterHarness() {
    const std::string directory = MakeDirectory();
    reports_ = std::make_unique<Reports>(directory + "/report");
    worker_program_ = directory + "/worker";
    std::ofstream(worker_program_) << "#!/bin/sh\necho $SLURM_JOB_ID >" << directory
                                   << "/job\nFAKE_WORKER_REPORT=" << directory << "/report exec "
                                   << FAKE_WORKER_PROGRAM << " \"$@\"\n";
    chmod(worker_program_.c_str(), 0755);
    options_.script = {directory + "/runs", worker_program_, "login:50051", {}};
    options_.settle = absl::ZeroDuration();
    Restart();
    const absl::StatusOr<ClusterView> view = scheduler().View();
    EXPECT_TRUE(view.ok() && !view->nodes.empty()) << view.status();
    if (!view.ok() || view->nodes.empty()) return;
    node_ = view->nodes.front();
  }
  ~ClusterHarness() override {
    for (const std::string& name : names_) EXPECT_TRUE(scheduler().Cancel({name}).ok());
    for (const std::string& name : names_) {
      const absl::Time give_up = absl::Now() + absl::Seconds(30);
      State state = Status(name).state;
      while (!IsOver(state) && state != State::kUnknown && absl::Now() < give_up) state = Status(name).state;
      EXPECT_TRUE(IsOver(state) || state == State::kUnknown) << name;
    }
    std::filesystem::remove_all(directory_);
  }
  Scheduler& scheduler() override { return *renaming_; }
  JobRequest Request(const std::string& token, int ranks) override {
    JobRequest request = SlurmHarness::Request(token, ranks);
    request.cpus_per_rank = std::max(1, node_.cpus / 2);
    request.time_limit = absl::Minutes(2);
    request.options = {{"nodelist", node_.name}};
    names_.push_back(token);
    return request;
  }
  void WaitForWorker() override { EXPECT_GT(reports_->Next(), 0); }
  // Signals the step of the worker through Slurm, because a node may be in another PID namespace. Ignores the
  // status of scancel: under load, scancel sometimes reports that the step is unknown, because the signal has
  // already ended it. Every test waits for the end of the job anyway.
  void EndWorker(bool success) override {
    std::string job;
    std::ifstream(directory_ + "/job") >> job;
    const std::string command = absl::StrCat("scancel --signal=", success ? "TERM" : "USR1", " ", job, ".0");
    if (system(command.c_str()) != 0) printf("refused: %s\n", command.c_str());
  }
  void Restart() override {
    absl::StatusOr<std::unique_ptr<Scheduler>> scheduler = NewSlurmScheduler(options_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    renaming_ = std::make_unique<Renaming>(*scheduler_, Prefix(directory_));
  }

 private:
  std::string MakeDirectory() {
    std::string directory = testing::TempDir() + "slurm-XXXXXX";
    if (mkdtemp(directory.data()) == nullptr) ADD_FAILURE() << "cannot make " << directory;
    directory_ = directory;
    return directory;
  }

  std::string directory_, worker_program_;
  std::unique_ptr<Reports> reports_;
  SlurmSchedulerOptions options_;
  ClusterView::Node node_;
  std::vector<std::string> names_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Renaming> renaming_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Harness>()> make;
  // Names the case in ctest. By default the name contains the bytes of the object, which differ between runs.
  friend void PrintTo(const Kind& value, std::ostream* out) { *out << value.name; }
};

class SchedulerContract : public testing::TestWithParam<Kind> {
 protected:
  std::string Submit(const std::string& token, int ranks = 1) {
    const absl::StatusOr<std::string> id = scheduler().Submit(harness_->Request(token, ranks));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  // Submits a job of one rank and waits until its worker runs.
  void Run(const std::string& token) {
    Submit(token);
    harness_->WaitFor(token, State::kRunning);
    harness_->WaitForWorker();
  }
  Scheduler& scheduler() { return harness_->scheduler(); }

  std::unique_ptr<Harness> harness_ = GetParam().make();
};

TEST_P(SchedulerContract, AJobThatWasNotSubmittedIsUnknown) {
  EXPECT_EQ(harness_->Status("nobody").state, State::kUnknown);
}

TEST_P(SchedulerContract, AJobRunsAndCompletes) {
  EXPECT_THAT(Submit("a"), Not(testing::IsEmpty()));
  harness_->WaitForWorker();
  EXPECT_EQ(harness_->Status("a").state, State::kRunning);
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
}

TEST_P(SchedulerContract, AJobWhoseWorkerFailsHasFailedWithAReason) {
  Run("a");
  harness_->EndWorker(false);
  EXPECT_THAT(harness_->WaitFor("a", State::kFailed).reason, HasSubstr("status 3"));
}

TEST_P(SchedulerContract, PollRepeatsHowAJobEnded) {
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
  // If a second job existed, it would have taken the other slot.
  Run("b");
}

TEST_P(SchedulerContract, AJobThatIsOverIsNotStartedAgain) {
  Run("a");
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
  Submit("a");
  EXPECT_EQ(harness_->Status("a").state, State::kCompleted);
}

TEST_P(SchedulerContract, PollReturnsOneStatusPerTokenInOrder) {
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

TEST_P(SchedulerContract, AJobIsPendingUntilSlotsAreFree) {
  Run("a");
  Submit("big", 2);
  EXPECT_EQ(harness_->Status("big").state, State::kPending);
  harness_->EndWorker(true);
  harness_->WaitFor("big", State::kRunning);
}

TEST_P(SchedulerContract, CancelEndsARunningJob) {
  Run("a");
  EXPECT_TRUE(scheduler().Cancel({"a"}).ok());
  harness_->WaitFor("a", State::kCancelled);
}

TEST_P(SchedulerContract, CancelEndsAPendingJob) {
  Run("a");
  Submit("big", 2);
  EXPECT_TRUE(scheduler().Cancel({"big"}).ok());
  harness_->WaitFor("big", State::kCancelled);
  EXPECT_EQ(harness_->Status("a").state, State::kRunning);
}

TEST_P(SchedulerContract, CancelIsIdempotent) {
  EXPECT_TRUE(scheduler().Cancel({"nobody"}).ok());
  Run("a");
  harness_->EndWorker(true);
  harness_->WaitFor("a", State::kCompleted);
  EXPECT_TRUE(scheduler().Cancel({"a"}).ok());
  EXPECT_EQ(harness_->Status("a").state, State::kCompleted);
}

TEST_P(SchedulerContract, RefusesAJobThatNoNodeCouldRun) {
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
  Run("b");  // the other slot is free, so "a" was not started twice
  EXPECT_TRUE(scheduler().Cancel({"a"}).ok());
  harness_->WaitFor("a", State::kCancelled);
}

TEST_P(SchedulerContract, TheScriptDoesNotContainTheSecret) {
  JobRequest request = harness_->Request("a", 1);
  request.secret = "a-very-secret-word";
  EXPECT_THAT(scheduler().Script(request), Not(HasSubstr("a-very-secret-word")));
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"local", [] { return std::make_unique<LocalHarness>(); }},
                             {"slurm_standins", [] { return std::make_unique<StandinHarness>(); }},
                             {"agent", [] { return std::make_unique<AgentHarness>(false); }},
                             {"agent_private_jobs", [] { return std::make_unique<AgentHarness>(true); }}};
  if (getenv("SCALELAB_CLUSTER_NAME") != nullptr)
    kinds.push_back({"slurm_cluster", [] { return std::make_unique<ClusterHarness>(); }});
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerContract, testing::ValuesIn(Kinds()),
                         [](const testing::TestParamInfo<Kind>& info) { return info.param.name; });

}  // namespace
}  // namespace scalelab::server
