// The ways in which a Slurm job can end or fail to start, and the coordinator's reaction to each, on
// a real cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class SlurmEnds : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cluster_.Start(), "");
    service_ = std::make_unique<SlurmService>(cluster_);
    ASSERT_EQ(service_->Start(), "");
  }

  // Returns a study of one run on two nodes that trains for `steps` steps.
  std::string Train(int steps, const std::string& more = "") {
    return service_->Submit(ClusterStudy("ranks: [2]", 1, steps, "resources: {ranks_per_node: 1}\n" + more));
  }
  nlohmann::json TheRun(const std::string& study) { return service_->Runs(study).at(0); }
  nlohmann::json Attempts(const std::string& study) { return service_->Attempts(TheRun(study)["name"]); }
  std::string Explain(const std::string& study) { return service_->Run({"study", "explain", study}).out; }

  // A step takes as long as the gradients need on the network, on fast and on slow processors.
  DevCluster cluster_{{"-n", "2", "--rate", "10mbit"}};
  std::unique_ptr<SlurmService> service_;
};

TEST_F(SlurmEnds, APreemptedRunIsTriedAgainWhenThereIsRoom) {
  const std::string study = Train(60);
  service_->WaitUntilTraining(study);
  const std::string urgent =
      cluster_.Submit({"--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 5"});
  ASSERT_EQ(service_->WaitFor(study, 180), 0) << service_->Run({"run", "list", study}).out;
  EXPECT_EQ(cluster_.JobState(urgent), "COMPLETED");
  const auto attempts = Attempts(study);
  ASSERT_THAT(attempts, SizeIs(2));
  EXPECT_EQ(attempts[0]["cause"], "PREEMPTED") << attempts[0].dump();
  EXPECT_EQ(attempts[1]["state"], "SUCCEEDED");
  EXPECT_THAT(LostOrDoubled(*service_, study), testing::IsEmpty());
  EXPECT_EQ(service_->LeftBehind(2), "");
}

TEST_F(SlurmEnds, ARunPastItsTimeLimitHasTimedOutAndIsNotTriedAgain) {
  const std::string study = service_->Submit(
      ClusterStudy("ranks: [2]", 1, 1'000'000, "resources: {ranks_per_node: 1, time: \"00:01:00\"}\n"));
  EXPECT_EQ(service_->WaitFor(study, 120), 5);
  EXPECT_EQ(TheRun(study)["cause"], "TIMEOUT") << TheRun(study).dump();
  EXPECT_THAT(Attempts(study), SizeIs(1));
  EXPECT_EQ(service_->LeftBehind(2), "");
}

TEST_F(SlurmEnds, ARunOutOfMemorySaysSo) {
  if (!absl::StrContains(cluster_.Run({"scontrol", "show", "config"}).out, "task/cgroup")) {
    GTEST_SKIP() << "memory is not limited here: there is no memory control group that Slurm could use";
  }
  const std::string study = service_->Submit(
      "study: greedy\n"
      "fixed: {engine: custom, command: [python3, -c, \"a = bytearray(10**9); print(len(a))\"]}\n"
      "matrix: {ranks: [1]}\nresources: {memory_mib: 200}\n");
  EXPECT_EQ(service_->WaitFor(study, 60), 5);
  EXPECT_EQ(TheRun(study)["cause"], "OUT_OF_MEMORY") << TheRun(study).dump();
  EXPECT_THAT(Attempts(study), SizeIs(1)) << "more memory does not come from another try";
}

TEST_F(SlurmEnds, AJobThatAnAdministratorCancelledIsNotAskedForAgain) {
  const std::string study = Train(1'000'000);
  service_->WaitUntilTraining(study);
  const auto jobs = service_->LiveJobs();
  ASSERT_THAT(jobs, SizeIs(1));
  ASSERT_EQ(cluster_.Run({"scancel", jobs[0]}).code, 0);
  EXPECT_EQ(service_->WaitFor(study, 60), 5);
  EXPECT_EQ(TheRun(study)["cause"], "ALLOCATION_CANCELLED") << TheRun(study).dump();
  EXPECT_THAT(Attempts(study), SizeIs(1));
  EXPECT_EQ(service_->LeftBehind(2), "");
}

TEST_F(SlurmEnds, ANodeThatFailsEndsTheAttemptAndTheRunIsTriedAgainWhenItIsBack) {
  const std::string study = Train(60);
  service_->WaitUntilTraining(study);
  ASSERT_EQ(cluster_.Control({"node", "2", "link-down"}).code, 0);
  EXPECT_TRUE(Eventually([&] { return Attempts(study)[0]["state"] == "FAILED"; }, 90));
  EXPECT_EQ(Attempts(study)[0]["cause"], "NODE_FAIL") << Attempts(study)[0].dump();
  ASSERT_EQ(cluster_.Control({"node", "2", "link-up"}).code, 0);
  ASSERT_EQ(service_->WaitFor(study, 180), 0) << Explain(study);
  EXPECT_THAT(LostOrDoubled(*service_, study), testing::IsEmpty());
  EXPECT_EQ(service_->LeftBehind(2), "");
}

// The site saves power: the node is off, and the job waits until it is on (CONFIGURING).
TEST_F(SlurmEnds, ANodeThatDoesNotBootDelaysTheStudyWhichSaysWhy) {
  WriteFile(cluster_.dir() + "/etc/slurm.conf",
            absl::StrCat(ReadFile(cluster_.dir() + "/etc/slurm.conf"),
                         "\nSuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=86400\n"
                         "SuspendTimeout=1\nResumeTimeout=5\n"));
  ASSERT_EQ(cluster_.Run({"scontrol", "reconfigure"}).code, 0);
  ASSERT_TRUE(Eventually([&] {
    return cluster_.Run({"scontrol", "update", "nodename=" + cluster_.Node(2), "state=power_down_force"})
               .code == 0;
  }));
  ASSERT_EQ(cluster_.Control({"node", "2", "kill-slurmd"}).code, 0);
  ASSERT_TRUE(Eventually([&] {
    const std::string off = cluster_.Run({"sinfo", "-h", "-N", "-n", cluster_.Node(2), "-o", "%T"}).out;
    return absl::StrContains(off, "idle~");
  })) << cluster_.Run({"sinfo", "-N"}).out;

  const std::string study = Train(5);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Explain(study), "CONFIGURING"); })) << Explain(study);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Explain(study), "NODE_FAIL"); }, 60))
      << Explain(study);
  EXPECT_THAT(service_->Runs(study), SizeIs(1));
  EXPECT_EQ(TheRun(study)["state"], "QUEUED") << TheRun(study).dump();
  ASSERT_EQ(cluster_.Control({"node", "2", "start-slurmd"}).code, 0);
  EXPECT_EQ(service_->WaitFor(study, 120), 0) << Explain(study);
  EXPECT_THAT(Attempts(study), SizeIs(1)) << "no attempt has begun without the node";
  EXPECT_EQ(service_->LeftBehind(2), "");
}

TEST_F(SlurmEnds, AStudyWaitsForADrainedNodeAndSaysWhy) {
  const std::string node = cluster_.Node(2);
  ASSERT_EQ(cluster_.Run({"scontrol", "update", "nodename=" + node, "state=drain", "reason=new disks"}).code,
            0);
  const std::string study = Train(5);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Explain(study), "DRAINED"); }, 60)) << Explain(study);
  EXPECT_EQ(service_->Json({"study", "explain", study})["reasons"][0]["kind"], "SCHEDULER_PENDING");
  EXPECT_THAT(service_->Run({"cluster"}).out, HasSubstr("new disks"));
  ASSERT_EQ(cluster_.Run({"scontrol", "update", "nodename=" + node, "state=resume"}).code, 0);
  EXPECT_EQ(service_->WaitFor(study, 120), 0) << Explain(study);
}

TEST_F(SlurmEnds, ANodeDrainedUnderARunningJobLetsItEnd) {
  const std::string study = Train(40);
  service_->WaitUntilTraining(study);
  ASSERT_EQ(
      cluster_.Run({"scontrol", "update", "nodename=" + cluster_.Node(2), "state=drain", "reason=x"}).code,
      0);
  EXPECT_EQ(service_->WaitFor(study, 120), 0) << Explain(study);
  EXPECT_THAT(Attempts(study), SizeIs(1));
}

TEST_F(SlurmEnds, WithoutItsControllerEverythingWaitsSaysSoAndGoesOn) {
  ASSERT_EQ(service_->Stop(), 0);
  ASSERT_EQ(cluster_.Control({"controller", "kill"}).code, 0);
  ASSERT_EQ(service_->Start(), "") << "a controller that is away is no reason not to serve";
  const std::string study = Train(5);
  EXPECT_TRUE(Eventually(
      [&] {
        const auto reasons = service_->Json({"study", "explain", study})["reasons"];
        return !reasons.empty() && reasons[0]["kind"] == "SCHEDULER_AWAY";
      },
      90))
      << Explain(study);
  EXPECT_THAT(service_->Run({"cluster"}).out + service_->Run({"cluster"}).err,
              HasSubstr("Unable to contact slurm controller"));
  ASSERT_EQ(cluster_.Control({"controller", "start"}).code, 0);
  EXPECT_EQ(service_->WaitFor(study, 180), 0) << Explain(study);
}

TEST(SlurmAbsent, IsSaidInASentence) {
  Service service({"--scheduler", "slurm", "--worker-server", "login:7000"}, {{"PATH", "/nowhere"}});
  const std::string said = service.Start();
  EXPECT_THAT(said, HasSubstr("slurm-client"));
}

}  // namespace
}  // namespace scalelab::e2e
