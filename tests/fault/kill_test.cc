// kill -9 of the coordinator, of workers and of ranks during training. SCALELAB_KILLS sets how often the
// coordinator is killed (default 5).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

// `more` are further keys, each after a comma.
std::string Study(const std::string& ranks, int repeats, int steps, const std::string& more = "") {
  return absl::StrCat("study: faults\nfixed: {model: resnet8, dataset: cifar10, data_dir: ", ShippedData(),
                      ", epochs: 100, max_steps: ", steps, more, "}\nmatrix: {ranks: ", ranks,
                      "}\nrepeats: ", repeats,
                      "\nscaling: {mode: strong, global_batch: 32}\nmeasure: {evaluate: false}\n");
}

void ExpectNothingLostOrDoubled(const Service& service, const std::string& study) {
  EXPECT_THAT(LostOrDoubled(service, study), testing::IsEmpty());
}

TEST(KillNine, OfTheCoordinatorLosesAndDoublesNothing) {
  const char* asked = std::getenv("SCALELAB_KILLS");
  const int usual = std::getenv("SCALELAB_LONG_TESTS") != nullptr ? 20 : 5;
  const int kills = asked != nullptr ? std::atoi(asked) : usual;
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(Study("[1, 2]", 2, 100));
  service.WaitUntilTraining(study, 10);
  for (int k = 0; k < kills; ++k) {
    service.Kill();
    ASSERT_EQ(service.Start(), "") << "restart " << k;
    // Wait until the workers are back and new points are stored, or until the study is finished.
    const auto points = [&] {
      size_t n = 0;
      for (const auto& run : service.Runs(study)) n += service.Points(run["name"]).size();
      return n;
    };
    const size_t before = points();
    EXPECT_TRUE(Eventually([&] { return points() > before || service.WaitFor(study, 1) == 0; }, 60));
  }
  ASSERT_EQ(service.WaitFor(study, 300), 0) << service.Run({"run", "list", study}).out << service.log();
  for (const auto& run : service.Runs(study)) {
    EXPECT_EQ(service.Attempts(run["name"]).size(), 1u) << "training goes on while the coordinator is away";
  }
  ExpectNothingLostOrDoubled(service, study);
  EXPECT_TRUE(Eventually([&] { return service.Processes().empty(); }));
}

TEST(KillNine, OfAWorkerEndsItsAttemptAndTheRunIsTriedAgain) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(Study("[2]", 1, 100));
  const std::string run = service.WaitUntilTraining(study, 10);
  const std::vector<pid_t> workers = service.Workers(), ranks = service.Ranks();
  ASSERT_FALSE(workers.empty());
  ASSERT_EQ(ranks.size(), 2u);
  // The worker has the lowest process id and is named in the lock file; the other process supervises
  // the worker's children.
  pid_t worker = *std::min_element(workers.begin(), workers.end());
  kill(worker, SIGKILL);
  EXPECT_TRUE(Eventually(
      [&] {
        const std::vector<pid_t> now = service.Ranks();
        return std::none_of(ranks.begin(), ranks.end(),
                            [&](pid_t old) { return std::find(now.begin(), now.end(), old) != now.end(); });
      },
      10))
      << "ranks outlived their worker";
  ASSERT_EQ(service.WaitFor(study, 120), 0) << service.Run({"run", "show", run}).out << service.log();
  const auto attempts = service.Attempts(run);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[0]["state"], "FAILED");
  EXPECT_EQ(attempts[0]["cause"], "WORKER_LOST");
  EXPECT_EQ(attempts[1]["state"], "SUCCEEDED");
  EXPECT_NE(attempts[0]["name"], attempts[1]["name"]);
  ExpectNothingLostOrDoubled(service, study);
  EXPECT_TRUE(Eventually([&] { return service.Processes().empty(); }));
}

// A run of two ranks that is interrupted after some steps and continues from a checkpoint.
class CheckpointedRun {
 public:
  explicit CheckpointedRun(const std::string& keys) {
    EXPECT_EQ(service.Start(), "");
    study = service.Submit(Study("[2]", 1, kSteps, keys));
    run = service.WaitUntilTraining(study, 100);
  }
  // Signals the worker, which has the lowest process id of its processes.
  void SignalWorker(int signal) const {
    const std::vector<pid_t> workers = service.Workers();
    ASSERT_FALSE(workers.empty());
    kill(*std::min_element(workers.begin(), workers.end()), signal);
  }
  // Returns the number of steps in a member of an attempt, by index; 0 if it is absent.
  int64_t Steps(size_t attempt, const char* member) const {
    const nlohmann::json attempts = service.Attempts(run);
    if (attempt >= attempts.size() || !attempts[attempt].contains(member)) return 0;
    const nlohmann::json& steps = attempts[attempt][member];
    return steps.is_string() ? std::stoll(steps.get<std::string>()) : steps.get<int64_t>();
  }
  // Waits for the end and checks that a second attempt has continued.
  void ExpectContinued() {
    ASSERT_EQ(service.WaitFor(study, 300), 0) << service.Run({"run", "show", run}).out << service.log();
    const auto attempts = service.Attempts(run);
    ASSERT_EQ(attempts.size(), 2u) << service.Run({"run", "show", run}).out;
    EXPECT_EQ(attempts[1]["state"], "SUCCEEDED");
    EXPECT_GT(Steps(1, "resumed_step"), 0);
    EXPECT_EQ(Steps(1, "resumed_step"), Steps(0, "checkpoint_step"));
    std::vector<int64_t> steps;
    for (const std::string& line : service.Points(run)) {
      const std::vector<std::string> f = absl::StrSplit(line, ',');
      if (f.size() == 5 && f[3] == "train/loss" && f[0] == "0") steps.push_back(std::stoll(f[1]));
    }
    std::vector<int64_t> all(kSteps);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(steps, all) << "each step once";
    const std::string directory = attempts[0]["directory"];
    EXPECT_FALSE(std::filesystem::exists(directory.substr(0, directory.rfind('/')) + "/checkpoints"));
    EXPECT_THAT(service.Run({"run", "show", run}).out, testing::HasSubstr("run/lost_seconds"));
    ExpectNothingLostOrDoubled(service, study);
  }

  static constexpr int kSteps = 100;
  Service service{{"--local-slots", "2"}};
  std::string study, run;
};

TEST(KillNine, OfARankMakesTheNextAttemptContinueFromTheLastCheckpoint) {
  CheckpointedRun test(", checkpoint_every_steps: 4");
  ASSERT_TRUE(Eventually([&] { return test.Steps(0, "checkpoint_step") > 0; }, 60));
  kill(test.service.Ranks().front(), SIGKILL);
  test.ExpectContinued();
  EXPECT_EQ(test.service.Attempts(test.run)[0]["cause"], "RANK_KILLED");
}

TEST(KillNine, OfAWorkerMakesTheNextAttemptContinueFromTheLastCheckpoint) {
  CheckpointedRun test(", checkpoint_every_steps: 20");
  ASSERT_TRUE(Eventually([&] { return test.Steps(0, "checkpoint_step") > 0; }, 60));
  test.SignalWorker(SIGKILL);
  test.ExpectContinued();
  EXPECT_EQ(test.service.Attempts(test.run)[0]["cause"], "WORKER_LOST");
}

TEST(Sigterm, OfAWorkerMakesItsRanksWriteACheckpointFirst) {
  CheckpointedRun test(", checkpoint_every_minutes: 1000");
  test.SignalWorker(SIGTERM);
  test.ExpectContinued();
}

// A run whose rank writes a step every 20 ms, and a finish event when the test opens its gate.
class GatedRun {
 public:
  GatedRun() : gate_(service.dir() + "/gate") {
    EXPECT_EQ(service.Start(), "");
    const std::string script = service.File(
        "rank.sh",
        absl::StrCat("i=0\necho '{\"time\":1,\"event\":\"start\"}' >>$SCALELAB_EVENTS\nwhile [ ! -e ", gate_,
                     " ]; do\n  echo "
                     "\"{\\\"time\\\":1,\\\"event\\\":\\\"step\\\",\\\"step\\\":$i,\\\"metrics\\\":{\\\"step/"
                     "total_s\\\":$i}}\" >>$SCALELAB_EVENTS\n  i=$((i+1))\n  sleep 0.02\ndone\necho "
                     "'{\"time\":1,\"event\":\"finish\",\"metrics\":{}}' >>$SCALELAB_EVENTS\n"));
    study = service.Submit(
        absl::StrCat("study: gated\nfixed: {engine: custom, ranks: 1, command: [sh, ", script, "]}\n"));
    run = service.WaitUntilTraining(study, 5);
    directory = service.Attempts(run)[0]["directory"];
    const std::vector<pid_t> workers = service.Workers();
    worker_ = *std::min_element(workers.begin(), workers.end());
  }
  void OpenGate() { WriteFile(gate_, ""); }
  size_t Written() const { return StepsOfEventFile(directory + "/events-0.jsonl", 0).size(); }
  // Kills the worker and waits until its ranks are gone too.
  void KillTheWorker() {
    const std::vector<pid_t> before = service.Processes();
    kill(worker_, SIGKILL);
    EXPECT_TRUE(Eventually([&] {
      const std::vector<pid_t> now = service.Processes();
      return std::none_of(before.begin(), before.end(),
                          [&](pid_t old) { return std::find(now.begin(), now.end(), old) != now.end(); });
    }));
  }
  // Returns the number of stored steps of the first attempt.
  size_t Stored() const {
    size_t steps = 0;
    for (const std::string& point : service.Points(run, 1))
      steps += absl::StrContains(point, ",step/total_s,");
    return steps;
  }

  Service service{{"--local-slots", "1"}};
  std::string study, run, directory;

 private:
  const std::string gate_;
  pid_t worker_ = 0;
};

TEST(KillNine, OfAWorkerWhileTheCoordinatorIsAwayDoesNotRepeatARunThatFinished) {
  GatedRun test;
  Service& service = test.service;
  service.Kill();
  test.OpenGate();
  ASSERT_TRUE(Eventually([&] { return !ReadFile(test.directory + "/exit.json").empty(); }));
  test.KillTheWorker();
  ASSERT_EQ(service.Start(), "");
  ASSERT_EQ(service.WaitFor(test.study, 60), 0)
      << service.Run({"run", "show", test.run}).out << service.log();
  const auto attempts = service.Attempts(test.run);
  ASSERT_EQ(attempts.size(), 1u) << attempts;
  EXPECT_EQ(attempts[0]["state"], "SUCCEEDED");
  EXPECT_EQ(test.Stored(), test.Written());
}

TEST(KillNine, OfAWorkerLosesNoPointThatItsRankHasWritten) {
  for (const bool away : {false, true}) {
    GatedRun test;
    Service& service = test.service;
    if (away) service.Kill();
    const size_t before = test.Written();
    ASSERT_TRUE(Eventually([&] { return test.Written() > before + 10; }));
    test.KillTheWorker();
    test.OpenGate();
    const size_t written = test.Written();
    if (away) {
      ASSERT_EQ(service.Start(), "");
    }
    ASSERT_EQ(service.WaitFor(test.study, 60), 0)
        << service.Run({"run", "show", test.run}).out << service.log();
    const auto attempts = service.Attempts(test.run);
    ASSERT_EQ(attempts.size(), 2u) << attempts;
    EXPECT_EQ(attempts[0]["cause"], "WORKER_LOST");
    EXPECT_EQ(test.Stored(), written);
  }
}

TEST(KillNine, OfOneRankEndsItsAttemptAndTheRunIsTriedAgain) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(Study("[2]", 1, 100));
  const std::string run = service.WaitUntilTraining(study, 10);
  const std::vector<pid_t> ranks = service.Ranks();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  ASSERT_EQ(service.WaitFor(study, 120), 0) << service.Run({"run", "show", run}).out << service.log();
  const auto attempts = service.Attempts(run);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[0]["cause"], "RANK_KILLED") << attempts[0].dump();
  EXPECT_EQ(attempts[1]["state"], "SUCCEEDED");
  ExpectNothingLostOrDoubled(service, study);
  EXPECT_TRUE(Eventually([&] { return service.Processes().empty(); }));
}

}  // namespace
}  // namespace scalelab::e2e
