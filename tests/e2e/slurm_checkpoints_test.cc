// Tests runs with checkpoints on a real cluster. Their allocations end before the runs do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// Number of steps that does not fit into an allocation of one minute.
constexpr int kSteps = 120;

// The cluster has two nodes for each of two studies. On its slow network, a step of two ranks takes about
// half a second, but little CPU time.
class SlurmCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cluster_.Start(), "");
    // As on real clusters, ranks have 30 s after SIGTERM.
    const std::string conf = cluster_.dir() + "/etc/slurm.conf";
    WriteFile(conf, absl::StrReplaceAll(ReadFile(conf), {{"KillWait=2\n", "KillWait=30\n"}}));
    ASSERT_EQ(cluster_.Run({"scontrol", "reconfigure"}).code, 0);
    const Output grace = cluster_.Run({"scontrol", "update", "partitionname=main", "gracetime=30"});
    ASSERT_EQ(grace.code, 0) << grace.err;
    service_ = std::make_unique<SlurmService>(cluster_);
    ASSERT_EQ(service_->Start(), "");
  }

  // Submits a study of one run. Without retries, only an attempt that made progress is followed by another one.
  std::string Train(const std::string& limit) {
    return service_->Submit(absl::StrCat(
        "study: continued\nfixed: {model: resnet20, dataset: cifar10, data_dir: ", ShippedData(),
        ", epochs: 1000, max_steps: ", kSteps,
        ", checkpoint_every_steps: 1000, save_parameters: true}\nmatrix: {ranks: [2]}\nseed: 11\n"
        "scaling: {mode: strong, global_batch: 8}\nmeasure: {evaluate: false}\nretry: {max: 0}\n"
        "resources: {ranks_per_node: 1, exclusive: true, time: \"",
        limit, "\"}\n"));
  }
  std::string TheRun(const std::string& study) { return service_->Runs(study).at(0)["name"]; }
  // Returns "rank,step" -> loss of the whole run. The test fails if a step occurs twice.
  std::map<std::string, std::string> LossesOf(const std::string& run) {
    std::map<std::string, std::string> losses;
    for (const std::string& line : service_->Points(run)) {
      const std::vector<std::string> f = absl::StrSplit(line, ',');
      if (f.size() != 5 || f[3] != "train/loss") continue;
      EXPECT_TRUE(losses.emplace(absl::StrCat(f[0], ",", f[1]), f[4]).second)
          << run << " has twice: " << line;
    }
    return losses;
  }
  static std::string ParametersOf(const nlohmann::json& attempt) {
    return ReadFile(attempt["directory"].get<std::string>() + "/parameters.safetensors");
  }

  DevCluster cluster_{{"-n", "4", "--rate", "20mbit"}};
  std::unique_ptr<SlurmService> service_;
};

TEST_F(SlurmCheckpoints, ARunContinuesAfterAPreemptionAndAfterATimeLimitAndEndsWithTheSameBits) {
  const std::string whole = Train("00:30:00");
  service_->WaitUntilTraining(whole);
  const std::string cut = Train("00:01:00");
  service_->WaitUntilTraining(cut, 10);
  const auto jobs = service_->LiveJobs();
  ASSERT_THAT(jobs, SizeIs(2));
  const std::string nodes(
      absl::StripAsciiWhitespace(cluster_.Run({"squeue", "-h", "-j", jobs[1], "-o", "%N"}).out));
  const std::string urgent = cluster_.Submit(
      {"--partition=urgent", "--nodes=2", "--nodelist=" + nodes, "--exclusive", "--wrap=true"});

  EXPECT_TRUE(cluster_.WaitForState(urgent, "COMPLETED", 120));
  ASSERT_EQ(service_->WaitFor(cut, 800), 0) << service_->Run({"run", "list", cut}).out;
  ASSERT_EQ(service_->WaitFor(whole, 800), 0) << service_->Run({"run", "list", whole}).out;
  const auto uncut = service_->Attempts(TheRun(whole)), attempts = service_->Attempts(TheRun(cut));
  ASSERT_THAT(uncut, SizeIs(1));
  ASSERT_GE(attempts.size(), 3u) << attempts.dump(1);
  EXPECT_EQ(attempts[0]["cause"], "PREEMPTED") << attempts[0].dump(1);
  EXPECT_EQ(attempts[1]["cause"], "TIMEOUT") << attempts[1].dump(1);
  EXPECT_EQ(attempts.back()["state"], "SUCCEEDED") << attempts.back().dump(1);
  for (size_t i = 1; i < attempts.size(); ++i)
    EXPECT_EQ(attempts[i]["resumed_step"], attempts[i - 1]["checkpoint_step"]) << attempts.dump(1);

  EXPECT_FALSE(ParametersOf(uncut[0]).empty());
  EXPECT_TRUE(ParametersOf(attempts.back()) == ParametersOf(uncut[0])) << "the parameters differ";
  const auto losses = LossesOf(TheRun(cut));
  EXPECT_THAT(losses, SizeIs(2 * kSteps));
  EXPECT_EQ(losses, LossesOf(TheRun(whole)));
  EXPECT_THAT(LostOrDoubled(*service_, cut), IsEmpty());
  EXPECT_EQ(service_->LeftBehind(4), "");
}

}  // namespace
}  // namespace scalelab::e2e
