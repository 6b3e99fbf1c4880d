// Kills parts of a Slurm cluster and of scalelab in the middle of a study. From two rounds on it includes faults that take
// minutes (a link down for 60 s, the controller killed after 20 accepted submissions).
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

TEST_F(ClusterFaults, AControllerThatDiesRightAfterItTookAJob) {
  OneAttemptAtATime watch(service_->data() + "/runs");
  KillControllerAfterSubmissions();
  Report(watch);
}

}  // namespace
}  // namespace scalelab::e2e
