// Tests that runs continue from checkpoints, with real processes that are interrupted at any point.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "tests/unit/trainer/trainer_program.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;

bool IsLong() { return std::getenv("SCALELAB_LONG_TESTS") != nullptr; }

// Returns the number of random points of interruption in a test.
int Interruptions() { return IsLong() ? 20 : 3; }

// Steps of a run for each signal, so that all signals come before its end, however late they are sent.
constexpr int kStepsOfASignal = 60;

class Checkpoints : public Trainer {
 protected:
  Checkpoints() { setenv("SCALELAB_CHECKPOINT_DIR", Directory().c_str(), 1); }
  ~Checkpoints() override { unsetenv("SCALELAB_CHECKPOINT_DIR"); }

  std::string Directory() const { return dir_ + "/checkpoints"; }

  static json WithCheckpoints(int ranks, json more = json::object()) {
    json spec = Spec(ranks, {{"max_steps", "24"},
                             {"epochs", 6},
                             {"train_samples", "80"},
                             {"global_batch", 16},
                             {"augment", true},
                             {"warmup_steps", 2},
                             {"lr_schedule", "cosine"},
                             {"checkpoint_every_steps", "3"}});
    Shrink(spec, 16);
    spec.update(more);
    return spec;
  }
  // The parameters of the network, and therefore the checkpoints, do not depend on the size of the images. The long form has images
  // of the usual 32 x 32 pixels.
  static void Shrink(json& spec, int side) {
    if (!IsLong()) spec["image_size"] = side;
  }
  // Returns a run with enough steps for Interruptions() at random steps.
  static json ToInterrupt(int ranks, const json& more = json::object()) {
    json spec = WithCheckpoints(ranks, more);
    spec.update(IsLong() ? json{{"max_steps", "60"}, {"epochs", 12}}
                         : json{{"max_steps", "36"}, {"epochs", 8}});
    Shrink(spec, 8);
    return spec;
  }

  // Starts the run, calls `interrupt` with the id of the launcher (of the rank, if there is only one) when rank 0 has reported
  // step `step`, and waits for the end. Returns the wait status.
  template <typename Interrupt>
  int RunUntil(const json& spec, int ranks, int step, Interrupt interrupt) {
    const std::string command = "exec " + Command({spec}, ranks) + " >" + dir_ + "/out 2>" + dir_ + "/err";
    const pid_t launcher = fork();
    if (launcher == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    const std::string wanted = "\"step\":" + std::to_string(step) + ",";
    int status = 0;
    bool interrupted = false;
    while (waitpid(launcher, &status, WNOHANG) == 0) {
      if (!interrupted && ReadAll(EventsPath(0)).find("\"event\":\"step\"") != std::string::npos &&
          ReadAll(EventsPath(0)).find(wanted) != std::string::npos) {
        interrupted = true;
        interrupt(launcher);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return status;
  }

  // Returns the processes whose parent is `parent` and that run the trainer.
  static std::vector<pid_t> RanksOf(pid_t parent) {
    std::vector<pid_t> ranks;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::istringstream stat(ReadAll(entry.path().string() + "/stat"));
      std::string id, program, state;
      pid_t of = 0;
      stat >> id >> program >> state >> of;
      if (of == parent && program.find("scalelab-train") != std::string::npos)
        ranks.push_back(std::stoi(name));
    }
    return ranks;
  }

  // Returns the directory of the newest complete checkpoint.
  std::string Newest() const {
    std::string newest;
    for (const auto& entry : std::filesystem::directory_iterator(Directory())) {
      if (std::filesystem::exists(entry.path() / "manifest.json"))
        newest = std::max(newest, entry.path().string());
    }
    return newest;
  }

  // Returns the number of steps in the newest complete checkpoint; 0 if there is none.
  int NewestStep() const {
    const std::string newest = std::filesystem::exists(Directory()) ? Newest() : "";
    return newest.empty() ? 0 : std::stoi(newest.substr(newest.rfind('-') + 1));
  }

  // The events of all attempts so far, by rank. For each step, only the events of the last attempt
  // that made it.
  void Collect(int ranks) {
    losses_.resize(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      std::ifstream file(EventsPath(rank));
      for (std::string line; std::getline(file, line);) {
        const json event = json::parse(line, nullptr, false);
        if (event.is_object() && event["event"] == "step")
          losses_[rank][event["step"]] = event["metrics"]["train/loss"];
      }
    }
  }

  // Interrupts a run at random points until it finishes. Returns the result of the last attempt.
  template <typename Interrupt>
  Result FinishWithInterruptions(const json& spec, int ranks, int points, Interrupt interrupt) {
    std::mt19937 random(static_cast<unsigned>(points * 31 + ranks));
    // After this step there is no interruption, so that a signal comes before the end of the run.
    const int steps = std::stoi(spec["max_steps"].get<std::string>()), last = steps - (IsLong() ? 4 : 12);
    const unsigned apart = std::max(1, (IsLong() ? steps : last) / points);
    // On a busy machine, a run may end before the signal. It has removed its checkpoints then, so start from the beginning.
    for (int tries = 0; tries < 5; ++tries) {
      losses_.clear();
      bool ended = false;
      int step = 0;
      for (int i = 0; i < points && !ended; ++i) {
        // An attempt makes a few more steps before the signal arrives.
        step = std::max(step, NewestStep()) + 1 + static_cast<int>(random() % apart);
        if (step > last) break;
        ended = RunUntil(spec, ranks, step, interrupt) == 0;
        Collect(ranks);
      }
      if (ended) continue;
      Result last = Run({spec}, ranks);
      Collect(ranks);
      return last;
    }
    ADD_FAILURE() << "in five tries, a run ended before it was interrupted";
    return {};
  }

  // Sends a signal to the last rank.
  static void Signal(pid_t launcher, int ranks, int number) {
    const std::vector<pid_t> all = ranks == 1 ? std::vector{launcher} : RanksOf(launcher);
    ASSERT_EQ(all.size(), static_cast<size_t>(ranks));
    kill(all.back(), number);
  }

  // Returns a run of `steps` steps in which only signals write checkpoints.
  static json ToSignal(json spec, int steps) {
    spec.update({{"checkpoint_every_steps", "0"},
                 {"checkpoint_every_minutes", 1000},
                 {"max_steps", std::to_string(steps)},
                 {"epochs", steps / 5}});
    Shrink(spec, 8);
    return spec;
  }

  // Checks that a run that gets SIGTERM Interruptions() times ends like a run without interruptions.
  void ExpectLikeAfterSigterm(const json& engine, int ranks) {
    const json spec = ToSignal(engine, kStepsOfASignal * Interruptions());
    const Result whole = Run({spec}, ranks);
    ASSERT_EQ(whole.status, 0);
    losses_.clear();
    for (int i = 0; i < Interruptions(); ++i) {
      const int before = NewestStep();
      RunUntil(spec, ranks, before + 1 + i % 3, [&](pid_t launcher) { Signal(launcher, ranks, SIGTERM); });
      Collect(ranks);
      ASSERT_GT(NewestStep(), before)
          << "no checkpoint after signal " << i + 1 << ": " << ReadAll(dir_ + "/err");
    }
    const Result last = Run({spec}, ranks);
    Collect(ranks);
    ExpectLike(whole, last);
  }

  // Checks that the last attempt ended like a run without interruptions, and that the losses of all attempts
  // equal those of that run.
  void ExpectLike(const Result& whole, const Result& last) {
    ASSERT_EQ(last.status, 0);
    EXPECT_GT(last.Of(0, "start").at(0).value("resumed_step", 0), 0);
    for (int rank = 0; rank < static_cast<int>(whole.events.size()); ++rank) {
      EXPECT_EQ(last.hash(rank), whole.hash(rank));
      for (const json& step : whole.Of(rank, "step"))
        EXPECT_EQ(losses_[rank][step["step"]], step["metrics"]["train/loss"]) << "step " << step["step"];
    }
  }

  std::vector<std::map<int64_t, double>> losses_;
};

class Interrupted : public Checkpoints, public testing::WithParamInterface<int> {};

TEST_P(Interrupted, ByKillEndsWithTheSameParametersAndLossesBitForBit) {
  const int ranks = GetParam();
  const json spec = ToInterrupt(ranks);
  const Result whole = Run({spec}, ranks);
  ASSERT_EQ(whole.status, 0);
  EXPECT_FALSE(std::filesystem::exists(Directory())) << "a run that has finished needs no checkpoints";
  const Result last =
      FinishWithInterruptions(spec, ranks, Interruptions(), [](pid_t launcher) { kill(launcher, SIGKILL); });
  ExpectLike(whole, last);
  const auto start = last.Of(0, "start");
  ASSERT_EQ(start.size(), 1u);
  EXPECT_EQ(last.Of(0, "step").at(0)["step"], start[0]["resumed_step"]);
  const json metrics = last.Of(0, "finish").at(0)["metrics"];
  EXPECT_EQ(metrics["run/steps"], whole.Of(0, "step").size());
  EXPECT_GT(metrics["run/lost_seconds"], 0);
  EXPECT_GT(metrics["run/seconds"], metrics["run/lost_seconds"]);
  EXPECT_EQ(last.Of(0, "epoch").back()["metrics"]["epoch/train_loss"],
            whole.Of(0, "epoch").back()["metrics"]["epoch/train_loss"])
      << "also of the epoch that was interrupted";
}

TEST_P(Interrupted, BySignalStopsAllRanksAtOneStepWithACheckpoint) {
  const int ranks = GetParam();
  std::vector<int> stops = {2, 5, 7};  // steps from the last checkpoint to a signal
  int steps = 240;
  if (IsLong()) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    stops.resize(2 * Interruptions());  // half of the signals are SIGTERM
    for (int& stop : stops) stop = 1 + static_cast<int>(random() % 20);
    steps = kStepsOfASignal * static_cast<int>(stops.size());
  }
  const json spec = ToSignal(WithCheckpoints(ranks), steps);
  const Result whole = Run({spec}, ranks);
  ASSERT_EQ(whole.status, 0);
  int number = SIGTERM;
  const auto signal_one_rank = [&](pid_t launcher) {
    Signal(launcher, ranks, number);
    number = number == SIGTERM ? SIGUSR1 : SIGTERM;
  };
  int64_t resumed = 0;
  for (const int more : stops) {
    const int status = RunUntil(spec, ranks, static_cast<int>(resumed) + more, signal_one_rank);
    EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "it has not finished";
    Collect(ranks);
    std::vector<int64_t> last_steps;
    for (int rank = 0; rank < ranks; ++rank) last_steps.push_back(losses_[rank].rbegin()->first);
    EXPECT_THAT(last_steps, testing::Each(last_steps[0])) << "all ranks stop after the same step";
    std::ifstream file(EventsPath(0));
    json checkpoint;
    for (std::string line; std::getline(file, line);) {
      if (const json event = json::parse(line); event["event"] == "checkpoint") checkpoint = event;
    }
    ASSERT_TRUE(checkpoint.is_object()) << ReadAll(dir_ + "/err");
    EXPECT_EQ(checkpoint["step"], last_steps[0] + 1);
    EXPECT_GT(checkpoint["step"], resumed);
    EXPECT_GT(checkpoint["metrics"]["checkpoint/bytes"], 270'000 * 8);
    resumed = checkpoint["step"];
  }
  const Result last = Run({spec}, ranks);
  ASSERT_EQ(last.status, 0);
  EXPECT_EQ(last.Of(0, "start").at(0)["resumed_step"], resumed);
  EXPECT_EQ(last.hash(0), whole.hash(0));
}

INSTANTIATE_TEST_SUITE_P(OnRanks, Interrupted, testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

struct Engine {
  const char* name;
  int ranks;
  json keys;
};
void PrintTo(const Engine& engine, std::ostream* out) { *out << engine.name; }

std::vector<Engine> StatefulEngines() {
  const auto compressed = [](const char* form) {
    return json{{"gradient_compression", form}, {"powersgd_rank", 2}, {"compression_start_step", "2"}};
  };
  return {{"zero1", 2, {{"engine", "native/zero1"}}},
          {"zero2", 4, {{"engine", "native/zero2"}, {"bucket_cap_mib", 1}}},
          {"zero3", 4, {{"engine", "native/zero3"}, {"bucket_cap_mib", 1}}},
          {"local_sgd",
           4,
           {{"engine", "native/local-sgd"},
            {"local_steps", 4},
            {"local_start_step", "4"},
            {"slow_momentum", 0.5}}},
          {"powersgd", 4, compressed("powersgd")},
          {"top_k", 2, compressed("top-k")},
          {"onebit", 2, compressed("onebit")}};
}

class InterruptedEngine : public Checkpoints, public testing::WithParamInterface<Engine> {};

TEST_P(InterruptedEngine, EndsWithTheSameParametersAndLossesBitForBit) {
  const int ranks = GetParam().ranks;
  const json spec = ToInterrupt(ranks, GetParam().keys);
  const Result whole = Run({spec}, ranks);
  ASSERT_EQ(whole.status, 0);
  const Result last =
      FinishWithInterruptions(spec, ranks, Interruptions(), [](pid_t launcher) { kill(launcher, SIGKILL); });
  ExpectLike(whole, last);
}

// Engines whose ranks have different parts of the model. divided_checkpoint_test.cc changes the number of ranks.
class InterruptedDividedEngine : public Checkpoints, public testing::WithParamInterface<Engine> {};

TEST_P(InterruptedDividedEngine, GoesOnAfterAKillADamagedCheckpointAndASignal) {
  const int ranks = GetParam().ranks;
  json spec = WithCheckpoints(ranks, GetParam().keys);
  // Long enough that a signal comes before its end.
  spec.update(IsLong() ? json{{"max_steps", "60"}, {"epochs", 12}}
                       : json{{"max_steps", "120"}, {"epochs", 24}});
  Shrink(spec, 8);
  const Result whole = Run({spec}, ranks);
  ASSERT_EQ(whole.status, 0);
  RunUntil(spec, ranks, 7, [](pid_t launcher) { kill(launcher, SIGKILL); });
  Collect(ranks);
  const std::string newest = Newest();
  const int step = NewestStep();
  std::filesystem::resize_file(newest + "/rank-" + std::to_string(ranks - 1) + ".safetensors", 1000);
  RunUntil(spec, ranks, step + 2, [&](pid_t launcher) { Signal(launcher, ranks, SIGTERM); });
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("checkpoint after step " + std::to_string(step) +
                                                " is damaged, the one before it is used: "));
  Collect(ranks);
  const Result last = Run({spec}, ranks);
  Collect(ranks);
  ExpectLike(whole, last);
  EXPECT_GT(last.Of(0, "start").at(0)["resumed_step"], step);
  if (!IsLong()) return;
  losses_.clear();
  ExpectLike(whole, FinishWithInterruptions(spec, ranks, Interruptions(),
                                            [](pid_t launcher) { kill(launcher, SIGKILL); }));
  ExpectLikeAfterSigterm(spec, ranks);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, InterruptedDividedEngine,
    testing::Values(Engine{"pipeline", 2, {{"engine", "native/pipeline"}, {"accumulation_steps", 2}}},
                    Engine{"tensor", 2, {{"engine", "native/tensor"}}},
                    Engine{"data_parallel", 1, {{"engine", "native/data-parallel"}, {"cpus_per_rank", 2}}},
                    Engine{
                        "parameter_server",
                        3,
                        {{"engine", "native/parameter-server"}, {"server_ranks", 1}, {"global_batch", 12}}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(Checkpoints, OfReplicasWithDropoutEndWithTheSameParametersAndLossesBitForBit) {
  const json spec = WithCheckpoints(
      1, {{"engine", "native/data-parallel"}, {"cpus_per_rank", 2}, {"model", "mobilenet_v2"}});
  const Result whole = Run({spec});
  ASSERT_EQ(whole.status, 0);
  RunUntil(spec, 1, 7, [](pid_t rank) { kill(rank, SIGKILL); });
  Collect(1);
  const Result last = Run({spec});
  Collect(1);
  ExpectLike(whole, last);
}

class SignalledEngine : public InterruptedEngine {};

TEST_P(SignalledEngine, EndsWithTheSameParametersAndLossesBitForBit) {
  if (!IsLong()) GTEST_SKIP() << "only with SCALELAB_LONG_TESTS=1";
  ExpectLikeAfterSigterm(WithCheckpoints(GetParam().ranks, GetParam().keys), GetParam().ranks);
}

class ContinuedEngine : public InterruptedEngine {};

// With local SGD and compressed gradients, each rank's steps depend on its own samples.
TEST_P(ContinuedEngine, TrainsOnWithHalfAndWithDoubleTheRanks) {
  const std::string engine = GetParam().keys.value("engine", "native/ddp");
  const double tolerance = engine.starts_with("native/zero") ? 2e-3 : 5e-2;
  json more = GetParam().keys;
  more.update({{"batch_norm", engine == "native/local-sgd" ? "eval" : "sync"}, {"learning_rate", 0.005}});
  if (engine == "native/local-sgd") more["learning_rate"] = 0.001;
  // The other engines train differently on other numbers of ranks. Their tolerance is for images of the usual size.
  if (!engine.starts_with("native/zero")) more["image_size"] = 32;
  const std::vector<double> expected = Run({WithCheckpoints(2, more)}, 2).Losses();
  ASSERT_EQ(expected.size(), 24u);
  for (const int ranks : {1, 4}) {
    RunUntil(WithCheckpoints(2, more), 2, 10, [](pid_t launcher) { kill(launcher, SIGKILL); });
    const Result other = Run({WithCheckpoints(ranks, more)}, ranks);
    ASSERT_EQ(other.status, 0);
    const int64_t resumed = other.Of(0, "start").at(0).value("resumed_step", 0);
    ASSERT_GE(resumed, 9);
    losses_.clear();
    Collect(ranks);
    double deviation = 0;
    for (int64_t step = resumed; step < 24; ++step) {
      double loss = 0;
      for (auto& of_rank : losses_) loss += of_rank.at(step) / ranks;
      deviation = std::max(deviation, std::abs(loss / expected[step] - 1));
    }
    std::printf("%s of 2 ranks, continued on %d after step %lld: largest relative deviation of a loss %.2e\n",
                GetParam().name, ranks, static_cast<long long>(resumed), deviation);
    EXPECT_LT(deviation, tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, InterruptedEngine, testing::ValuesIn(StatefulEngines()),
                         [](const auto& info) { return std::string(info.param.name); });
// The three forms of compression have the same kind of state.
INSTANTIATE_TEST_SUITE_P(Engines, SignalledEngine,
                         testing::Values(StatefulEngines()[0], StatefulEngines()[1], StatefulEngines()[2],
                                         StatefulEngines()[3], StatefulEngines()[4]),
                         [](const auto& info) { return std::string(info.param.name); });
// run_state_test.cc tests all engines.
INSTANTIATE_TEST_SUITE_P(Engines, ContinuedEngine,
                         testing::Values(StatefulEngines()[2], StatefulEngines()[3], StatefulEngines()[4]),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Checkpoints, ADamagedShardIsReportedAndTheCheckpointBeforeItIsUsed) {
  const json spec = WithCheckpoints(2, {{"engine", "native/zero3"}});
  const Result whole = Run({spec}, 2);
  RunUntil(spec, 2, 10, [](pid_t launcher) { kill(launcher, SIGKILL); });
  const std::string newest = Newest();
  const int step = NewestStep();
  std::filesystem::resize_file(newest + "/rank-1.safetensors", 1000);
  const Result last = Run({spec}, 2);
  EXPECT_EQ(last.status, 0);
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("checkpoint after step " + std::to_string(step) +
                                                " is damaged, the one before it is used: "));
  EXPECT_EQ(last.Of(0, "start").at(0)["resumed_step"], step - 3);
  EXPECT_EQ(last.hash(1), whole.hash(1));
}

// Additions have another order on another number of ranks, and each step amplifies the rounding of the ones before.
TEST_F(Checkpoints, ContinueOnHalfAndOnDoubleTheRanks) {
  constexpr double kTolerance = 2e-3;
  const json more = {{"batch_norm", "sync"}, {"learning_rate", 0.005}};
  const std::vector<double> expected = Run({WithCheckpoints(2, more)}, 2).Losses();
  ASSERT_EQ(expected.size(), 24u);
  for (const int ranks : {1, 4}) {
    RunUntil(WithCheckpoints(2, more), 2, 10, [](pid_t launcher) { kill(launcher, SIGKILL); });
    const Result other = Run({WithCheckpoints(ranks, more)}, ranks);
    ASSERT_EQ(other.status, 0);
    const int64_t resumed = other.Of(0, "start").at(0).value("resumed_step", 0);
    ASSERT_GE(resumed, 9);
    losses_.clear();
    Collect(ranks);
    double deviation = 0;
    for (int64_t step = resumed; step < 24; ++step) {
      double loss = 0;
      for (auto& of_rank : losses_) loss += of_rank.at(step) / ranks;
      deviation = std::max(deviation, std::abs(loss / expected[step] - 1));
    }
    std::printf("2 ranks, continued on %d after step %lld: largest relative deviation of a loss %.2e\n",
                ranks, static_cast<long long>(resumed), deviation);
    EXPECT_LT(deviation, kTolerance);
    EXPECT_FALSE(std::filesystem::exists(Directory()));
  }
}

TEST_F(Checkpoints, ADamagedOneIsReportedAndTheOneBeforeItIsUsed) {
  const json spec = WithCheckpoints(1);
  const Result whole = Run({spec});
  RunUntil(spec, 1, 10, [](pid_t rank) { kill(rank, SIGKILL); });
  const std::string newest = Newest();
  const int step = NewestStep();
  std::filesystem::resize_file(newest + "/shared.safetensors", 1000);
  const Result last = Run({spec});
  EXPECT_EQ(last.status, 0);
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("checkpoint after step " + std::to_string(step) +
                                                " is damaged, the one before it is used: "));
  EXPECT_EQ(last.Of(0, "start").at(0)["resumed_step"], step - 3);
  EXPECT_EQ(last.hash(0), whole.hash(0));
}

TEST_F(Checkpoints, OfAnotherRecipeAreRefused) {
  RunUntil(WithCheckpoints(1), 1, 6, [](pid_t rank) { kill(rank, SIGKILL); });
  const Result other = Run({WithCheckpoints(1, {{"learning_rate", 0.5}})});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.Of(0, "error").at(0)["message"].get<std::string>(),
              HasSubstr("was written with learning_rate 0.01, this run has 0.5"));
}

TEST_F(Checkpoints, NeedADirectory) {
  unsetenv("SCALELAB_CHECKPOINT_DIR");
  const Result run = Run({WithCheckpoints(1)});
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.Of(0, "error").at(0)["message"].get<std::string>(),
              HasSubstr("set SCALELAB_CHECKPOINT_DIR"));
}

TEST_F(Checkpoints, ThatCannotBeWrittenDoNotEndTheRun) {
  std::ofstream(Directory()) << "a file";
  const Result run = Run({WithCheckpoints(2)}, 2);
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(ReadAll(dir_ + "/err"), HasSubstr("no checkpoint after step 3: "));
  EXPECT_TRUE(run.Of(0, "checkpoint").empty());
}

}  // namespace
}  // namespace scalelab::trainer
