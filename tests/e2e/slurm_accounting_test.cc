// A cluster with slurmdbd: accounts, QOS and limits, and jobs that only the accounting
// database still contains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class SlurmAccounting : public testing::Test {
 protected:
  // All tests share one cluster. No test depends on changes that another test has made.
  static void SetUpTestSuite() {
    unavailable_ = DevCluster::Unavailable({"--accounting"});
    if (!unavailable_.empty()) return;
    cluster_ = std::make_unique<DevCluster>(std::vector<std::string>{"-n", "3", "--accounting"});
    failed_ = cluster_->Start();
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  void SetUp() override {
    if (!unavailable_.empty()) GTEST_SKIP() << unavailable_;
    ASSERT_EQ(failed_, "");
  }

  void Serve(std::vector<std::string> flags = {}) {
    service_ = std::make_unique<SlurmService>(*cluster_, std::move(flags));
    ASSERT_EQ(service_->Start(), "");
  }

  // Runs `sacctmgr WORDS`, for example "modify account lab set grpjobs=1".
  static void Sacctmgr(const std::string& words) {
    std::vector<std::string> argv = absl::StrSplit(words, ' ');
    argv.insert(argv.begin(), {"sacctmgr", "--immediate"});
    const Output output = cluster_->Run(argv);
    EXPECT_EQ(output.code, 0) << words << ": " << output.out << output.err;
  }

  // Submits a study of one run, with one rank on each of `nodes` nodes, that ends when its gate is opened.
  std::string Wait(const std::string& name, int nodes = 1, const std::string& more = "") {
    return service_->Submit(
        absl::StrCat("study: ", name, "\nfixed: {engine: custom, command: [sh, -c, 'until [ -e ", Gate(name),
                     " ]; do sleep 0.1; done; echo "
                     "\"{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\",\\\"metrics\\\":{}}\" >> "
                     "$SCALELAB_EVENTS']}\nmatrix: {ranks: [",
                     nodes, "]}\nresources: {ranks_per_node: 1}\n", more));
  }
  std::string Gate(const std::string& name) { return absl::StrCat(service_->dir(), "/", name, ".gate"); }
  void Open(const std::string& name) { WriteFile(Gate(name), ""); }

  nlohmann::json TheRun(const std::string& study) { return service_->Runs(study).at(0); }
  nlohmann::json Attempts(const std::string& study) { return service_->Attempts(TheRun(study)["name"]); }
  bool Runs(const std::string& study) {
    return Eventually([&] { return TheRun(study)["state"] == "RUNNING"; }, 60);
  }
  std::string Explain(const std::string& study) { return service_->Run({"study", "explain", study}).out; }
  bool Says(const std::string& study, const std::string& words) {
    return Eventually([&] { return absl::StrContains(Explain(study), words); }, 40);
  }

  // Returns the token of an attempt's allocation, which is the job's name.
  static std::string Token(const nlohmann::json& attempt) {
    return std::string(absl::StripPrefix(attempt["allocation"].get<std::string>(), "allocations/"));
  }
  static std::string JobOf(const nlohmann::json& attempt) {
    return std::string(absl::StripAsciiWhitespace(
        cluster_->Run({"squeue", "-h", "--states=all", "-o", "%i", "--name", Token(attempt)}).out));
  }
  // Waits until the accounting database has exactly one job for the attempt, with "State|Account|QOS".
  static testing::AssertionResult AccountedAs(const nlohmann::json& attempt, const std::string& record) {
    std::string records;
    const bool found = Eventually([&] {
      records = cluster_
                    ->Run({"sacct", "--allocations", "--noheader", "--parsable2",
                           "--format=State,Account,QOS", "--name", Token(attempt)})
                    .out;
      return records == record + "\n";
    });
    return found ? testing::AssertionSuccess() : testing::AssertionFailure() << "accounting has: " << records;
  }

  static std::string unavailable_, failed_;
  static std::unique_ptr<DevCluster> cluster_;
  std::unique_ptr<SlurmService> service_;
};

std::string SlurmAccounting::unavailable_, SlurmAccounting::failed_;
std::unique_ptr<DevCluster> SlurmAccounting::cluster_;

TEST_F(SlurmAccounting, AStudyRunsInItsAccountAndQos) {
  Sacctmgr("add account physics");
  Sacctmgr("add user root account=physics");
  Sacctmgr("add qos quick");
  Sacctmgr("modify user root where account=physics set qos+=quick");
  Serve({"--sbatch-option", "account=physics"});
  const std::string study = service_->Submit(ClusterStudy(
      "ranks: [1, 2]", 2, 8, "resources: {ranks_per_node: 1}\nslurm: {sbatch_options: {qos: quick}}\n"));
  ASSERT_EQ(service_->WaitFor(study, 120), 0) << service_->Run({"run", "list", study}).out;
  EXPECT_THAT(LostOrDoubled(*service_, study), IsEmpty());
  EXPECT_EQ(service_->LeftBehind(3), "");
  const auto attempt = Attempts(study).at(0);
  EXPECT_TRUE(AccountedAs(attempt, "COMPLETED|physics|quick"));
}

TEST_F(SlurmAccounting, HowAJobEndedThatSlurmHasForgottenIsKnownFromAccounting) {
  // Slurm removes ended jobs from its memory after two seconds here; a large site removes them after minutes.
  ASSERT_EQ(
      cluster_->Run({"sed", "-i", "s/^MinJobAge=.*/MinJobAge=2/", cluster_->dir() + "/etc/slurm.conf"}).code,
      0);
  ASSERT_EQ(cluster_->Run({"scontrol", "reconfigure"}).err, "");
  Serve();
  const std::string cancelled = Wait("cancelled"), late = Wait("late"), left = Wait("left");
  for (const std::string& study : {cancelled, late, left}) ASSERT_TRUE(Runs(study)) << Explain(study);
  const std::string jobs[] = {JobOf(Attempts(cancelled)[0]), JobOf(Attempts(late)[0]),
                              JobOf(Attempts(left)[0])};
  ASSERT_EQ(service_->Stop(), 0);
  EXPECT_EQ(cluster_->Run({"scancel", jobs[0]}).err, "");
  EXPECT_EQ(cluster_->Run({"scontrol", "update", "jobid=" + jobs[1], "endtime=now+2"}).err, "");
  EXPECT_EQ(cluster_->Run({"scancel", "--batch", "--signal=TERM", jobs[2]}).err, "");
  EXPECT_TRUE(Eventually(
      [&] {
        return cluster_->Run({"squeue", "-h", "--states=all", "-o", "%i"}).out.empty();
      },
      90))
      << cluster_->Run({"squeue", "--states=all"}).out;
  ASSERT_EQ(service_->Start(), "");
  EXPECT_EQ(service_->WaitFor(cancelled, 90), 5);
  EXPECT_EQ(TheRun(cancelled)["cause"], "ALLOCATION_CANCELLED") << TheRun(cancelled).dump(1);
  EXPECT_THAT(Attempts(cancelled), SizeIs(1)) << "a run is not retried after a user cancelled its job";
  EXPECT_EQ(service_->WaitFor(late, 90), 5);
  EXPECT_EQ(TheRun(late)["cause"], "TIMEOUT") << TheRun(late).dump(1);
  EXPECT_THAT(Attempts(late), SizeIs(1)) << "the same time would not be enough again";
  ASSERT_TRUE(Eventually([&] { return Attempts(left).size() == 2; }, 90)) << Explain(left);
  EXPECT_EQ(Attempts(left)[0]["cause"], "WORKER_LOST") << Attempts(left)[0].dump(1);
  Open("left");
  EXPECT_EQ(service_->WaitFor(left, 60), 0) << Explain(left);
  EXPECT_EQ(service_->LeftBehind(3), "");
}

TEST_F(SlurmAccounting, AStudyWaitsForALimitSaysWhichAndGoesOnWhenItIsLifted) {
  Serve();
  Sacctmgr("modify account lab set grptres=cpu=1");
  const std::string grown = Wait("grown", 2);
  EXPECT_TRUE(Says(grown, "waits for a limit that all jobs of its account share (AssocGrpCpuLimit)"))
      << Explain(grown);
  EXPECT_EQ(service_->Json({"study", "explain", grown})["reasons"][0]["kind"], "SCHEDULER_PENDING");
  Sacctmgr("modify account lab set grptres=cpu=-1");
  EXPECT_TRUE(Runs(grown)) << Explain(grown);

  Sacctmgr("add qos single");
  Sacctmgr("modify qos single set maxjobsperuser=1");
  Sacctmgr("modify user root where account=lab set qos+=single");
  const std::string qos = "slurm: {sbatch_options: {qos: single}}\n";
  const std::string first = Wait("first", 1, qos);
  ASSERT_TRUE(Runs(first)) << Explain(first);
  const std::string second = Wait("second", 1, qos);
  EXPECT_TRUE(Says(second, "waits for a limit on running jobs of its QOS (QOSMaxJobsPerUserLimit)"))
      << Explain(second);
  Open("first");
  EXPECT_TRUE(Runs(second)) << Explain(second);
  for (const char* name : {"second", "grown"}) Open(name);
  for (const std::string& study : {grown, first, second}) {
    EXPECT_EQ(service_->WaitFor(study, 60), 0) << Explain(study);
    EXPECT_THAT(Attempts(study), SizeIs(1));
  }
}

TEST_F(SlurmAccounting, ALimitOnSubmittedJobsIsWaitedForToo) {
  Serve();
  Sacctmgr("modify user root where account=lab set maxsubmitjobs=0");
  const std::string study = Wait("study");
  EXPECT_TRUE(Says(study, "AssocMaxSubmitJobLimit")) << Explain(study);
  EXPECT_EQ(service_->Json({"study", "explain", study})["reasons"][0]["kind"], "SCHEDULER_REFUSED");
  Sacctmgr("modify user root where account=lab set maxsubmitjobs=-1");
  EXPECT_TRUE(Runs(study)) << Explain(study);
  Open("study");
  EXPECT_EQ(service_->WaitFor(study, 60), 0) << Explain(study);
  EXPECT_THAT(Attempts(study), SizeIs(1));
}

TEST_F(SlurmAccounting, WhatAJobMayNeverHaveIsRefusedWithTheReason) {
  Serve();
  Sacctmgr("add qos strict");
  Sacctmgr("modify qos strict set maxwall=10 flags=DenyOnLimit");
  Sacctmgr("modify user root where account=lab set qos+=strict");
  const struct {
    std::string name, more, field;
  } cases[] = {
      {"account", "slurm: {sbatch_options: {account: nobody}}\n", "change sbatch_options.account"},
      {"qos", "slurm: {sbatch_options: {qos: gold}}\n", "change sbatch_options.qos"},
      {"time", "slurm: {sbatch_options: {qos: strict}}\n", "shorten resources.time"},
  };
  for (const auto& refused : cases) {
    const std::string study = Wait(refused.name, 1, refused.more);
    EXPECT_EQ(service_->WaitFor(study, 60), 5) << Explain(study);
    EXPECT_EQ(TheRun(study)["cause"], "LAUNCH_ERROR");
    EXPECT_THAT(TheRun(study)["message"].get<std::string>(), HasSubstr(refused.field));
  }
}

TEST_F(SlurmAccounting, WithoutSlurmdbdAStudyGoesOn) {
  Serve();
  const std::string study =
      service_->Submit(ClusterStudy("ranks: [2]", 2, 60, "resources: {ranks_per_node: 1}\n"));
  service_->WaitUntilTraining(study);
  ASSERT_EQ(cluster_->Control({"accounting", "kill"}).err, "");
  EXPECT_THAT(cluster_->Control({"status"}).out, HasSubstr("slurmdbd down"));
  const std::string other = Wait("other");
  EXPECT_TRUE(Runs(other)) << "a job that begins without it: " << Explain(other);
  Open("other");
  EXPECT_EQ(service_->WaitFor(other, 60), 0) << Explain(other);
  EXPECT_EQ(service_->WaitFor(study, 120), 0) << Explain(study);
  EXPECT_THAT(LostOrDoubled(*service_, study), IsEmpty());
  EXPECT_EQ(service_->LeftBehind(3), "");
  ASSERT_EQ(cluster_->Control({"accounting", "start"}).err, "");
  // The database receives the records that it missed.
  for (const std::string& each : {study, other}) {
    const auto attempts = Attempts(each);
    ASSERT_THAT(attempts, SizeIs(1));
    EXPECT_TRUE(AccountedAs(attempts[0], "COMPLETED|lab|normal"));
  }
}

}  // namespace
}  // namespace scalelab::e2e
