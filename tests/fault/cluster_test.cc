// Kills parts of a Slurm cluster and of scalelab in the middle of a study. Each time the study must
// complete, no acknowledged point may be lost or duplicated, no run may have two live attempts, and nothing
// may be left behind.
//
// Prints each fault and finally the number of faults and violations. SCALELAB_FAULT_ROUNDS is the number of
// rounds of each fault (default 1). From 2 on it includes faults that take minutes (a link down for 60 s, the
// controller killed after 20 accepted submissions).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

constexpr int kNodes = 4;
constexpr int kTimedOut = 8;  // exit status of `study wait`

// Checks continuously, on all nodes, whether two attempts of one run have live ranks simultaneously.
class OneAttemptAtATime {
 public:
  explicit OneAttemptAtATime(std::string runs_dir)
      : runs_dir_(std::move(runs_dir)), thread_([this] { Look(); }) {}
  ~OneAttemptAtATime() {
    stop_ = true;
    thread_.join();
  }
  std::vector<std::string> Violations() {
    std::lock_guard lock(mutex_);
    return {violations_.begin(), violations_.end()};
  }

 private:
  void Look() {
    const std::string variable = "SCALELAB_ATTEMPT_DIR=" + runs_dir_ + "/";
    while (!stop_) {
      std::map<std::string, std::set<std::string>> attempts_of;  // run -> attempts with live ranks
      for (const pid_t pid : ProcessesInEnvironment(variable)) {
        if (!absl::StrContains(CommandLine(pid), "scalelab-trainer")) continue;
        const std::string environment = ReadFile(absl::StrCat("/proc/", pid, "/environ"));
        const size_t at = environment.find(variable);
        if (at == std::string::npos) continue;
        const std::string path =
            environment.substr(at + variable.size(), environment.find('\0', at) - at - variable.size());
        const size_t slash = path.rfind('/');
        attempts_of[path.substr(0, slash)].insert(path.substr(slash + 1));
      }
      std::lock_guard lock(mutex_);
      for (const auto& [run, attempts] : attempts_of) {
        if (attempts.size() > 1) {
          violations_.insert(
              absl::StrCat("run ", run, " has two live attempts: ", absl::StrJoin(attempts, " and ")));
        }
      }
      Pause(0.1);
    }
  }

  const std::string runs_dir_;
  std::mutex mutex_;
  std::set<std::string> violations_;  // guarded by mutex_
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class ClusterFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (std::getenv("SCALELAB_LONG_TESTS") != nullptr) rounds_ = 2;
    if (const char* rounds = std::getenv("SCALELAB_FAULT_ROUNDS")) rounds_ = std::max(1, std::atoi(rounds));
    ASSERT_EQ(cluster_.Start(), "");
    service_ = std::make_unique<SlurmService>(cluster_, std::vector<std::string>{"--worker-timeout", "15"});
    ASSERT_EQ(service_->Start(), "");
  }

  void Violation(const std::string& fault, const std::string& what) {
    ++violations_;
    ADD_FAILURE() << fault << ": " << what;
  }

  void Control(std::vector<std::string> words) {
    const Output output = cluster_.Control(words);
    EXPECT_EQ(output.code, 0) << absl::StrJoin(words, " ") << ": " << output.err;
  }
  void KillOn(int node, const std::string& program) {
    pid_t pid = 0;
    ASSERT_TRUE(Eventually([&] { return (pid = service_->FindOn(node, program)) != 0; }, 60))
        << "no " << program;
    cluster_.RunOn(node, {"kill", "-9", absl::StrCat(pid)});
  }

  // Waits for the study, and meanwhile does the work of an administrator: a controller that lost a job may
  // reuse its id for another job. Nodes that still have a record of the first job reject the second, and
  // Slurm drains these nodes.
  int WaitFor(const std::string& study, double seconds) {
    int code = -1;
    for (const double end = Now() + seconds; Now() < end;) {
      if ((code = service_->WaitFor(study, 5)) != kTimedOut) break;
      const std::string drained = cluster_.Run({"sinfo", "-h", "-N", "-t", "drain", "-o", "%N %E"}).out;
      for (const absl::string_view line : absl::StrSplit(drained, '\n', absl::SkipEmpty())) {
        if (!absl::StrContains(line, "Duplicate jobid")) continue;
        const std::string node(line.substr(0, line.find(' ')));
        std::printf("       (%s was drained by Slurm for a duplicate job id; resumed)\n", node.c_str());
        cluster_.Run({"scontrol", "update", "nodename=" + node, "state=resume"});
      }
    }
    return code;
  }

  // Runs a study over all nodes, injects the fault in the middle, and checks all requirements afterwards.
  void Try(const std::string& name, const std::function<void()>& fault) {
    const double begin = Now();
    ++faults_;
    const std::string study = service_->Submit(ClusterStudy(
        "ranks: [4, 2, 1]", 1, 25, "order: listed\nresources: {ranks_per_node: 1}\nretry: {max: 5}\n"));
    const std::string run = service_->WaitUntilTraining(study, 12);
    const auto attempt = static_cast<int>(service_->Attempts(run).size());
    const std::vector<std::string> acknowledged = service_->Points(run, attempt);
    fault();
    if (WaitFor(study, 300) != 0) {
      Violation(name, "the study did not complete\n" + service_->Run({"run", "list", study}).out +
                          service_->Run({"study", "explain", study}).out);
      service_->Run({"study", "cancel", study});
      service_->WaitFor(study, 60);
    }
    Check(name, study);
    std::vector<std::string> stored = service_->Points(run, attempt);
    std::sort(stored.begin(), stored.end());
    for (const std::string& point : acknowledged) {
      if (!std::binary_search(stored.begin(), stored.end(), point)) {
        Violation(name, "acknowledged and lost: " + point);
        break;
      }
    }
    size_t attempts = 0;
    for (const auto& one : service_->Runs(study)) attempts += service_->Attempts(one["name"]).size();
    std::printf("fault: %s: completed after %.0f s with %zu attempts of 3 runs\n", name.c_str(),
                Now() - begin, attempts);
    std::fflush(stdout);
  }

  void Check(const std::string& name, const std::string& study) {
    for (const std::string& wrong : LostOrDoubled(*service_, study)) Violation(name, wrong);
    if (const std::string left = service_->LeftBehind(kNodes, 90); !left.empty())
      Violation(name, "left behind:\n" + left);
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

  void Report(OneAttemptAtATime& watch) {
    for (const std::string& violation : watch.Violations()) Violation("all the time", violation);
    std::printf("faults: %d, violations: %d\n", faults_, violations_);
  }

  int rounds_ = 1;
  int faults_ = 0;
  int violations_ = 0;
  DevCluster cluster_{{"-n", absl::StrCat(kNodes)}};
  std::unique_ptr<SlurmService> service_;
};

TEST_F(ClusterFaults, NothingIsLostOrDoubledWhateverDies) {
  OneAttemptAtATime watch(service_->data() + "/runs");
  for (int round = 0; round < rounds_; ++round) {
    Try("kill -9 scalelabd", [&] {
      service_->Kill();
      ASSERT_EQ(service_->Start(), "");
    });
    Try("kill -9 of the first node's worker", [&] { KillOn(1, "scalelab-worker"); });
    Try("kill -9 of another node's worker", [&] { KillOn(3, "scalelab-worker"); });
    Try("kill -9 of a rank", [&] { KillOn(2, "scalelab-trainer"); });
    Try("kill -9 of a slurmd", [&] {
      Control({"node", "2", "kill-slurmd"});
      Pause(3);
      Control({"node", "2", "start-slurmd"});
    });
    Try("kill -9 of slurmctld", [&] {
      Control({"controller", "kill"});
      Pause(3);
      Control({"controller", "start"});
    });
    Try("SIGSTOP of scalelabd for 30 s", [&] {
      service_->daemon()->Signal(SIGSTOP);
      Pause(30);
      service_->daemon()->Signal(SIGCONT);
    });
    for (const int seconds : {1, 10, 60}) {
      if (seconds == 60 && rounds_ == 1) continue;
      Try(absl::StrCat("a node's link down for ", seconds, " s"), [&] {
        Control({"node", "4", "link-down"});
        Pause(seconds);
        Control({"node", "4", "link-up"});
      });
    }
  }
  Report(watch);
}

// slurmctld answers sbatch before it saves the job, so a crash within the next seconds may lose the job.
TEST_F(ClusterFaults, AControllerThatDiesRightAfterItTookAJob) {
  OneAttemptAtATime watch(service_->data() + "/runs");
  std::mt19937 random(20);
  const int kills = rounds_ == 1 ? 2 : 10 * rounds_;
  for (int kill = 0; kill < kills; ++kill) {
    ++faults_;
    const double begin = Now();
    const std::string study =
        service_->Submit(ClusterStudy("ranks: [1]", 1, 2, "resources: {ranks_per_node: 1}\n"));
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
    Control({"controller", "kill"});
    Control({"controller", "start"});
    const std::string name =
        absl::StrCat("slurmctld killed ", static_cast<int>(pause * 1000), " ms after an accepted sbatch");
    if (WaitFor(study, 240) != 0) {
      Violation(name, "the study did not complete\n" + service_->Run({"study", "explain", study}).out);
    }
    Check(name, study);
    std::printf("fault: %s: completed after %.0f s\n", name.c_str(), Now() - begin);
    std::fflush(stdout);
  }
  Report(watch);
}

}  // namespace
}  // namespace scalelab::e2e
