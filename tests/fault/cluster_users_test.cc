// Kills parts of a Slurm cluster and of scalelab while jobs run under the accounts of three users, whose agents submit them, and
// the coordinator has an account without privileges. The short form kills what is different with agents; from two rounds on, all
// faults of cluster_test.cc are included.
#include <signal.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/e2e/users_service.h"
#include "tests/fault/cluster_faults.h"

namespace scalelab::e2e {
namespace {

class ClusterFaultsOfUsers : public ClusterFaults {
 protected:
  std::string Unavailable() override { return UsersService::Unavailable(); }
  std::unique_ptr<SlurmService> MakeService() override {
    auto service =
        std::make_unique<UsersService>(cluster_, std::vector<std::string>{"--worker-timeout", "15"});
    users_ = service.get();
    return service;
  }
  void SetUp() override {
    ClusterFaults::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (const std::string& user : UsersService::Users()) {
      agents_[user] = users_->StartAgent(user);
      ASSERT_TRUE(users_->AgentConnects(user));
    }
  }
  ~ClusterFaultsOfUsers() override { agents_.clear(); }

  // One study of each user. Together they take all nodes. Their steps are small, because all nodes share the processors.
  std::vector<std::string> SubmitStudies() override {
    std::vector<std::string> studies;
    for (const std::string& user : UsersService::Users()) {
      const std::string yaml = absl::StrCat(
          "study: users\nfixed: {model: resnet20, dataset: cifar10, data_dir: ", ShippedData(),
          ", epochs: 1000, max_steps: 60}\nmatrix: {ranks: ", studies.empty() ? "[2, 1]" : "[1]",
          "}\nscaling: {mode: strong, global_batch: 4}\nmeasure: {evaluate: false}\norder: listed\n"
          "resources: {ranks_per_node: 1}\nretry: {max: 5}\n");
      studies.push_back(users_->SubmitAs(user, yaml));
      owner_[studies.back()] = user;
    }
    return studies;
  }
  // Also checks that each job of the study has run under the account of its owner.
  void Check(const std::string& name, const std::string& study) override {
    ClusterFaults::Check(name, study);
    const std::vector<std::string> records = service_->JobRecords();
    int own = 0;
    for (const auto& run : service_->Runs(study)) {
      for (const auto& attempt : service_->Attempts(run["name"])) {
        const std::string allocation = attempt["allocation"];
        const std::string token = absl::StrCat(" Name=", absl::StripPrefix(allocation, "allocations/"), " ");
        const std::string account = absl::StrCat(" UserId=", owner_[study], "(");
        for (const std::string& record : records) {
          if (!absl::StrContains(record, token)) continue;
          ++own;
          if (!absl::StrContains(record, account))
            Violation(name, absl::StrCat("a job of ", owner_[study], " ran as another: ", record));
        }
      }
    }
    if (own == 0) Violation(name, absl::StrCat("Slurm has no record of a job of ", study));
  }
  // Kills the agent of a user, and starts another one after some seconds.
  void KillAgent(const std::string& user, double seconds) {
    agents_[user]->Signal(SIGKILL);
    agents_[user]->Wait();
    Pause(seconds);
    agents_[user] = users_->StartAgent(user);
  }

  UsersService* users_ = nullptr;  // `service_`
  std::map<std::string, std::unique_ptr<Background>> agents_;
  std::map<std::string, std::string> owner_;  // of each study
};

TEST_F(ClusterFaultsOfUsers, NothingIsLostOrDoubledWhateverDies) {
  OneAttemptAtATime watch(users_->RunsDir());
  const std::string first = UsersService::Users().front();
  for (int round = 0; round < rounds_; ++round) {
    Try("kill -9 scalelabd", [&] { KillDaemon(); });
    Try("kill -9 of an agent", [&] { KillAgent(first, 3); });
    Try("kill -9 of a worker while its agent is away", [&] {
      KillOn(1, "scalelab-worker");
      for (const std::string& user : UsersService::Users()) KillAgent(user, 3);
    });
    Try("kill -9 of slurmctld", [&] { KillController(); });
    Try("kill -9 of scalelabd and an agent", [&] {
      service_->Kill();
      KillAgent(first, 0);
      ASSERT_EQ(service_->Start(), "");
    });
    if (rounds_ == 1) continue;
    Try("kill -9 of another node's worker", [&] { KillOn(3, "scalelab-worker"); });
    Try("kill -9 of a rank", [&] { KillOn(2, "scalelab-trainer"); });
    Try("kill -9 of a slurmd", [&] { KillSlurmd(2); });
    Try("SIGSTOP of scalelabd for 30 s", [&] { SuspendDaemon(30); });
    for (const int seconds : {1, 10, 60})
      Try(absl::StrCat("a node's link down for ", seconds, " s"), [&] { CutOff(4, seconds); });
  }
  Report(watch);
}

}  // namespace
}  // namespace scalelab::e2e
