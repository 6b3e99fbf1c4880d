#include "tests/fault/cluster_faults.h"

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace scalelab::e2e {
namespace {

constexpr int kTimedOut = 8;  // exit status of `study wait`

// A run of a study that trained before the fault.
struct Trained {
  std::string study, run;
  int attempt = 0;
  std::vector<std::string> acknowledged;  // points that were stored before the fault
};

}  // namespace

OneAttemptAtATime::OneAttemptAtATime(std::string runs_dir, std::string program)
    : runs_dir_(std::move(runs_dir)), program_(std::move(program)), thread_([this] { Look(); }) {}

OneAttemptAtATime::~OneAttemptAtATime() {
  stop_ = true;
  thread_.join();
}

std::vector<std::string> OneAttemptAtATime::Violations() {
  std::lock_guard lock(mutex_);
  return {violations_.begin(), violations_.end()};
}

void OneAttemptAtATime::Look() {
  const std::string variable = "SCALELAB_ATTEMPT_DIR=" + runs_dir_ + "/";
  while (!stop_) {
    std::map<std::string, std::set<std::string>> attempts_of;  // run -> attempts with live ranks
    for (const pid_t pid : ProcessesInEnvironment(variable)) {
      if (!absl::StrContains(CommandLine(pid), program_)) continue;
      const std::string environment = ReadFile(absl::StrCat("/proc/", pid, "/environ"));
      const size_t at = environment.find(variable);
      if (at == std::string::npos) continue;
      const std::string path =
          environment.substr(at + variable.size(), environment.find('\0', at) - at - variable.size());
      const size_t slash = path.rfind('/');
      attempts_of[path.substr(0, slash)].insert(path.substr(slash + 1));
    }
    {
      std::lock_guard lock(mutex_);
      for (const auto& [run, attempts] : attempts_of) {
        if (attempts.size() > 1) {
          violations_.insert(
              absl::StrCat("run ", run, " has two live attempts: ", absl::StrJoin(attempts, " and ")));
        }
      }
    }
    Pause(0.1);
  }
}

void ClusterFaults::SetUp() {
  if (const std::string why = Unavailable(); !why.empty()) GTEST_SKIP() << why;
  if (std::getenv("SCALELAB_LONG_TESTS") != nullptr) rounds_ = 2;
  if (const char* rounds = std::getenv("SCALELAB_FAULT_ROUNDS")) rounds_ = std::max(1, std::atoi(rounds));
  ASSERT_EQ(cluster_.Start(), "");
  service_ = MakeService();
  ASSERT_EQ(service_->Start(), "");
}

std::unique_ptr<SlurmService> ClusterFaults::MakeService() {
  return std::make_unique<SlurmService>(cluster_, std::vector<std::string>{"--worker-timeout", "15"});
}

std::vector<std::string> ClusterFaults::SubmitStudies() {
  const std::string study = ClusterStudy("ranks: [4, 2]", 1, 25,
                                         "order: listed\nresources: {ranks_per_node: 1}\nretry: {max: 5}\n");
  // The slow network limits the rate of steps, so small batches save processor time only.
  return {service_->Submit(absl::StrReplaceAll(study, {{"global_batch: 32", "global_batch: 8"}}))};
}

std::string ClusterFaults::SubmitShortStudy() {
  return service_->Submit(ClusterStudy("ranks: [1]", 1, 2, "resources: {ranks_per_node: 1}\n"));
}

void ClusterFaults::Violation(const std::string& fault, const std::string& what) {
  ++violations_;
  ADD_FAILURE() << fault << ": " << what;
}

void ClusterFaults::Control(std::vector<std::string> words) {
  const Output output = cluster_.Control(words);
  EXPECT_EQ(output.code, 0) << absl::StrJoin(words, " ") << ": " << output.err;
}

void ClusterFaults::KillOn(int node, const std::string& program) {
  pid_t pid = 0;
  ASSERT_TRUE(Eventually([&] { return (pid = service_->FindOn(node, program)) != 0; }, 60))
      << "no " << program;
  cluster_.RunOn(node, {"kill", "-9", absl::StrCat(pid)});
}

// A controller that lost a job may reuse its id for another job. Nodes that still have a record of the first job reject the
// second, and Slurm drains these nodes until an administrator resumes them.
void ClusterFaults::ResumeNodesWithDuplicates() {
  const std::string drained = cluster_.Run({"sinfo", "-h", "-N", "-t", "drain", "-o", "%N %E"}).out;
  for (const absl::string_view line : absl::StrSplit(drained, '\n', absl::SkipEmpty())) {
    if (!absl::StrContains(line, "Duplicate jobid")) continue;
    const std::string node(line.substr(0, line.find(' ')));
    std::printf("       (%s was drained by Slurm for a duplicate job id; resumed)\n", node.c_str());
    cluster_.Run({"scontrol", "update", "nodename=" + node, "state=resume"});
  }
}

int ClusterFaults::WaitFor(const std::string& study, double seconds) {
  int code = -1;
  for (const double end = Now() + seconds; Now() < end;) {
    if ((code = service_->WaitFor(study, 5)) != kTimedOut) break;
    ResumeNodesWithDuplicates();
  }
  return code;
}

std::string ClusterFaults::WaitUntilTraining(const std::string& study, int steps, double seconds) {
  double looked = Now();
  std::string run = service_->WaitUntilTraining(study, steps, seconds, [&] {
    if (Now() - looked < 5) return;
    looked = Now();
    ResumeNodesWithDuplicates();
  });
  if (run.empty()) {
    ADD_FAILURE() << cluster_.Run({"sinfo", "-N", "-o", "%N %T %E"}).out
                  << cluster_.Run({"squeue", "-o", "%i %u %T %r %N"}).out;
  }
  return run;
}

void ClusterFaults::Try(const std::string& name, const std::function<void()>& fault) {
  const double begin = Now();
  ++faults_;
  std::vector<Trained> all;
  for (const std::string& study : SubmitStudies()) all.push_back({study, "", 0, {}});
  for (Trained& one : all) {
    one.run = WaitUntilTraining(one.study, 12, 180);
    if (one.run.empty()) {  // reported as a failure
      for (const Trained& other : all) service_->Run({"study", "cancel", other.study});
      return;
    }
    one.attempt = static_cast<int>(service_->Attempts(one.run).size());
    one.acknowledged = service_->Points(one.run, one.attempt);
  }
  jobs_before_ = service_->LiveJobRecords();
  fault();
  AfterFault();
  size_t runs = 0, attempts = 0;
  for (const Trained& one : all) {
    if (WaitFor(one.study, 300) != 0) {
      Violation(name, "the study did not complete\n" + service_->Run({"run", "list", one.study}).out +
                          service_->Run({"study", "explain", one.study}).out);
      service_->Run({"study", "cancel", one.study});
      service_->WaitFor(one.study, 60);
    }
    Check(name, one.study);
    std::vector<std::string> stored = service_->Points(one.run, one.attempt);
    std::sort(stored.begin(), stored.end());
    for (const std::string& point : one.acknowledged) {
      if (!std::binary_search(stored.begin(), stored.end(), point)) {
        Violation(name, "acknowledged and lost: " + point);
        break;
      }
    }
    for (const auto& run : service_->Runs(one.study)) {
      ++runs;
      attempts += service_->Attempts(run["name"]).size();
    }
  }
  if (const std::string left = service_->LeftBehind(kNodes, 90); !left.empty())
    Violation(name, "left behind:\n" + left);
  std::printf("fault: %s: completed after %.0f s with %zu attempts of %zu runs\n", name.c_str(),
              Now() - begin, attempts, runs);
  std::fflush(stdout);
}

void ClusterFaults::KillControllerAfterSubmissions() {
  std::mt19937 random(20);
  const int kills = rounds_ == 1 ? 2 : 10 * rounds_;
  for (int kill = 0; kill < kills; ++kill) {
    ++faults_;
    const double begin = Now();
    const std::string study = SubmitShortStudy();
    // The job was accepted if the coordinator has its id, or if the job has already ended.
    EXPECT_TRUE(Eventually([&] {
      const auto cluster = service_->Json({"cluster"});
      for (const auto& allocation : cluster.value("allocations", nlohmann::json::array())) {
        if (allocation.value("study", "") == study && !allocation.value("external_id", "").empty())
          return true;
      }
      return service_->WaitFor(study, 1) == 0;
    }));
    const double pause = std::uniform_real_distribution<double>(0, 6)(random);
    Pause(pause);
    jobs_before_ = service_->LiveJobRecords();
    Control({"controller", "kill"});
    Control({"controller", "start"});
    const std::string name =
        absl::StrCat("slurmctld killed ", static_cast<int>(pause * 1000), " ms after an accepted sbatch");
    if (WaitFor(study, 240) != 0) {
      Violation(name, "the study did not complete\n" + service_->Run({"study", "explain", study}).out);
    }
    // Slurm records a job at its end, so wait for that before Check.
    if (const std::string left = service_->LeftBehind(kNodes, 90); !left.empty())
      Violation(name, "left behind:\n" + left);
    Check(name, study);
    std::printf("fault: %s: completed after %.0f s\n", name.c_str(), Now() - begin);
    std::fflush(stdout);
  }
}

void ClusterFaults::Check(const std::string& name, const std::string& study) {
  for (const std::string& wrong : LostOrDoubled(*service_, study)) Violation(name, wrong);
  // After a crash, the controller may restore a job from an older state: the job may end, or even run, a
  // second time with the same id, but the coordinator rejects its workers. Two ids for one allocation mean
  // two submissions, which is a violation.
  std::map<std::string, std::set<std::string>> ran;  // ids of jobs that ran, by token
  for (const std::string& record : service_->JobRecords()) {
    const std::vector<std::string> words = absl::StrSplit(record, ' ');
    const auto token =
        std::ranges::find_if(words, [](const auto& w) { return absl::StartsWith(w, "Name="); });
    if (token == words.end() || absl::StrContains(record, "JobState=CANCELLED")) continue;
    ran[*token].insert(words[0]);
    if (ran[*token].size() > 1) Violation(name, absl::StrCat("two jobs ran for allocation ", *token));
  }
}

void ClusterFaults::Report(OneAttemptAtATime& watch) {
  for (const std::string& violation : watch.Violations()) Violation("all the time", violation);
  std::printf("faults: %d, violations: %d\n", faults_, violations_);
}

void ClusterFaults::KillDaemon() {
  service_->Kill();
  ASSERT_EQ(service_->Start(), "");
}

void ClusterFaults::KillSlurmd(int node) {
  Control({"node", absl::StrCat(node), "kill-slurmd"});
  Pause(3);
  Control({"node", absl::StrCat(node), "start-slurmd"});
}

void ClusterFaults::KillController() {
  Control({"controller", "kill"});
  Pause(3);
  Control({"controller", "start"});
}

void ClusterFaults::SuspendDaemon(double seconds) {
  service_->daemon()->Signal(SIGSTOP);
  Pause(seconds);
  service_->daemon()->Signal(SIGCONT);
}

void ClusterFaults::CutOff(int node, double seconds) {
  Control({"node", absl::StrCat(node), "link-down"});
  Pause(seconds);
  Control({"node", absl::StrCat(node), "link-up"});
}

}  // namespace scalelab::e2e
