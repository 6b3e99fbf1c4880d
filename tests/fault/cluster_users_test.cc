// Kills parts of a Slurm cluster and of scalelab while jobs run under the accounts of three users, whose
// agents submit them, and the coordinator has an account without privileges. The short form kills the parts
// that are different with agents. From two rounds on, all faults of cluster_test.cc are included.
#include <signal.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/e2e/users_service.h"
#include "tests/fault/cluster_faults.h"

namespace scalelab::e2e {
namespace {

constexpr char kProgram[] = "fault-rank";

// A rank that reports a step every 0.1 s until its gate is open, but at least twenty.
constexpr char kRank[] = R"(echo '{"time":1,"event":"start"}' >>"$SCALELAB_EVENTS"
i=0
until [ -e "$1" ] && [ $i -ge 20 ]; do
  echo '{"time":1,"event":"step","step":'$i',"metrics":{"step/total_s":0.1}}' >>"$SCALELAB_EVENTS"
  i=$((i + 1))
  sleep 0.1
done
echo '{"time":1,"event":"finish","metrics":{}}' >>"$SCALELAB_EVENTS"
)";

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

  // One study for each user. Together the studies use all nodes, and they train until the fault is over.
  std::vector<std::string> SubmitStudies() override {
    gate_ = absl::StrCat(service_->dir(), "/gate-", faults_);
    std::vector<std::string> studies;
    for (const std::string& user : UsersService::Users())
      studies.push_back(SubmitOf(user, studies.empty() ? "[2, 1]" : "[1]"));
    return studies;
  }
  // A study of another user each time. Its gate is open from the start.
  std::string SubmitShortStudy() override {
    gate_ = absl::StrCat(service_->dir(), "/gate-", faults_);
    WriteFile(gate_, "");
    const std::vector<std::string>& users = UsersService::Users();
    return SubmitOf(users[static_cast<size_t>(faults_) % users.size()], "[1]");
  }
  void AfterFault() override { WriteFile(gate_, ""); }
  // Also checks that each job of the study has run under the account of its owner.
  void Check(const std::string& name, const std::string& study) override {
    ClusterFaults::Check(name, study);
    // A controller that is killed may forget a job that it started shortly before.
    std::vector<std::string> records = jobs_before_;
    std::ranges::copy(service_->JobRecords(), std::back_inserter(records));
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
  // Submits a study of the user whose ranks train until their gate is open.
  std::string SubmitOf(const std::string& user, const std::string& ranks) {
    const std::string script = service_->File("rank.sh", kRank);
    const std::string study = users_->SubmitAs(
        user, absl::StrCat("study: users\nfixed: {engine: custom, command: [bash, -c, \"exec -a ", kProgram,
                           " bash ", script, " ", gate_, "\"]}\nmatrix: {ranks: ", ranks,
                           "}\norder: listed\nresources: {ranks_per_node: 1, exclusive: true}\n"
                           "retry: {max: 5}\n"));
    owner_[study] = user;
    return study;
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
  std::string gate_;                          // the gate of the ranks of the last fault
};

TEST_F(ClusterFaultsOfUsers, NothingIsLostOrDoubledWhateverDies) {
  OneAttemptAtATime watch(users_->RunsDir(), kProgram);
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
    Try("kill -9 of a rank", [&] { KillOn(2, kProgram); });
    Try("kill -9 of a slurmd", [&] { KillSlurmd(2); });
    Try("SIGSTOP of scalelabd for 30 s", [&] { SuspendDaemon(30); });
    for (const int seconds : {1, 10, 60})
      Try(absl::StrCat("a node's link down for ", seconds, " s"), [&] { CutOff(4, seconds); });
  }
  Report(watch);
}

// The agent of the user has submitted the job, and the coordinator has its id.
TEST_F(ClusterFaultsOfUsers, AControllerThatDiesRightAfterItTookAJob) {
  OneAttemptAtATime watch(users_->RunsDir(), kProgram);
  KillControllerAfterSubmissions();
  Report(watch);
}

}  // namespace
}  // namespace scalelab::e2e
