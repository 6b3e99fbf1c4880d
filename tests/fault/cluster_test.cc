// Kills parts of a Slurm cluster and of scalelab in the middle of a study. From two rounds on it includes faults that take
// minutes (a link down for 60 s, the controller killed after 20 accepted submissions).
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/fault/cluster_faults.h"

namespace scalelab::e2e {
namespace {

TEST_F(ClusterFaults, NothingIsLostOrDoubledWhateverDies) {
  OneAttemptAtATime watch(service_->data() + "/runs");
  for (int round = 0; round < rounds_; ++round) {
    Try("kill -9 scalelabd", [&] { KillDaemon(); });
    Try("kill -9 of the first node's worker", [&] { KillOn(1, "scalelab-worker"); });
    Try("kill -9 of another node's worker", [&] { KillOn(3, "scalelab-worker"); });
    Try("kill -9 of a rank", [&] { KillOn(2, "scalelab-trainer"); });
    Try("kill -9 of a slurmd", [&] { KillSlurmd(2); });
    Try("kill -9 of slurmctld", [&] { KillController(); });
    Try("SIGSTOP of scalelabd for 30 s", [&] { SuspendDaemon(30); });
    for (const int seconds : {1, 10, 60}) {
      if (seconds == 60 && rounds_ == 1) continue;
      Try(absl::StrCat("a node's link down for ", seconds, " s"), [&] { CutOff(4, seconds); });
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
    if (const std::string left = service_->LeftBehind(kNodes, 90); !left.empty())
      Violation(name, "left behind:\n" + left);
    std::printf("fault: %s: completed after %.0f s\n", name.c_str(), Now() - begin);
    std::fflush(stdout);
  }
  Report(watch);
}

}  // namespace
}  // namespace scalelab::e2e
