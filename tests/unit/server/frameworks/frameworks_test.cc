// Tests of Frameworks with environments whose Python is a shell script.
#include "server/frameworks/frameworks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class FrameworksTest : public testing::Test {
 protected:
  FrameworksTest() {
    std::string pattern = testing::TempDir() + "frameworks-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    options_.directory = directory_;
    options_.probe.adapters = directory_ + "/adapters";
    options_.probe.trainer = directory_ + "/scalelab-trainer";
    Program("adapters/probe.py", "");
  }
  ~FrameworksTest() override { std::filesystem::remove_all(directory_); }

  void Program(const std::string& name, const std::string& script) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    // Replaces the file, because a program that is running cannot be overwritten.
    std::filesystem::remove(path);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0755);
  }
  // Creates an environment whose Python logs each call and then runs `script`.
  void Environment(const std::string& name, const std::string& script) {
    Program(name + "/bin/python", absl::StrCat("echo \"$2\" >> ", directory_, "/calls\n", script));
  }
  void Works(const std::string& name, const std::string& version = "torch 1.13.1") {
    Environment(name,
                absl::StrCat("echo noise; echo '{\"engine\":\"'$2'\",\"usable\":true,\"version\":\"", version,
                             "\",\"versions\":{\"torch\":\"1.13.1\"},\"reason\":\"\",\"fix\":\"\"}'"));
  }
  int Calls() const {
    std::ifstream calls(directory_ + "/calls");
    int lines = 0;
    for (std::string line; std::getline(calls, line);) ++lines;
    return lines;
  }

  static FrameworkStates Ask(Frameworks& frameworks, const std::vector<std::string>& engines) {
    std::promise<FrameworkStates> answer;
    frameworks.Ask(engines, [&](absl::StatusOr<FrameworkStates> states) {
      EXPECT_TRUE(states.ok()) << states.status();
      answer.set_value(states.ok() ? *std::move(states) : FrameworkStates());
    });
    return answer.get_future().get();
  }
  v1::Framework One(Frameworks& frameworks, const std::string& engine) {
    return Ask(frameworks, {engine})[engine];
  }

  std::string directory_;
  FrameworksOptions options_;
};

TEST_F(FrameworksTest, AMissingEngineIsReportedWithTheCommandThatInstallsIt) {
  Frameworks frameworks(options_);
  const v1::Framework state = One(frameworks, "pytorch/ddp");
  EXPECT_FALSE(state.usable());
  EXPECT_EQ(state.engine(), "pytorch/ddp");
  EXPECT_EQ(state.reason(),
            absl::StrCat("'", directory_, "/pytorch/bin/python' does not exist or is not executable"));
  EXPECT_EQ(state.fix(), "deploy/frameworks pytorch");
  EXPECT_EQ(state.environment(), directory_ + "/pytorch");
}

TEST_F(FrameworksTest, APositiveResultIsCachedUntilTheEnvironmentChanges) {
  Works("pytorch");
  Frameworks frameworks(options_);
  v1::Framework state = One(frameworks, "pytorch/ddp");
  EXPECT_TRUE(state.usable()) << state.reason();
  EXPECT_EQ(state.version(), "torch 1.13.1");
  EXPECT_EQ(frameworks.EnvironmentOf("pytorch/ddp")->versions().at("torch"), "1.13.1");
  One(frameworks, "pytorch/ddp");
  EXPECT_EQ(Calls(), 1);
  // Another build with the same name, as deploy/frameworks makes it.
  std::filesystem::rename(directory_ + "/pytorch", directory_ + "/pytorch-old");
  Works("pytorch-new", "torch 2.0.0");
  std::filesystem::create_symlink("pytorch-new", directory_ + "/pytorch");
  EXPECT_EQ(One(frameworks, "pytorch/ddp").version(), "torch 2.0.0");
  EXPECT_EQ(Calls(), 2);
}

TEST_F(FrameworksTest, ListsAnEngineOnGpusIfItHasAnEnvironmentForThem) {
  Works("pytorch-cuda", "torch 2.11.0");
  Works("mxnet-cuda", "mxnet 1.9.1");
  Frameworks frameworks(options_);
  const std::vector<std::string> names = frameworks.Listed();
  EXPECT_EQ(std::ranges::count(names, "native/ddp on GPUs"), 0);
  EXPECT_EQ(std::ranges::count(names, "pytorch/fsdp on GPUs"), 0) << "its environment is pytorch2-cuda";
  EXPECT_EQ(std::ranges::count(names, "mxnet/kvstore on GPUs"), 0) << "it trains on CPUs only";
  const auto ddp = std::ranges::find(names, "pytorch/ddp");
  ASSERT_NE(ddp, names.end());
  EXPECT_EQ(*std::next(ddp), "pytorch/ddp on GPUs");
  FrameworkStates states = Ask(frameworks, names);
  EXPECT_FALSE(states["pytorch/ddp"].usable());
  EXPECT_EQ(states["pytorch/ddp on GPUs"].version(), "torch 2.11.0");
  // An environment that the configuration names is for both.
  options_.environments = {{"pytorch/*", directory_ + "/pytorch-cuda", {}, ""}};
  Frameworks configured(options_);
  EXPECT_EQ(std::ranges::count(configured.Listed(), "pytorch/ddp on GPUs"), 0);
}

TEST_F(FrameworksTest, KnowsAPathThatItReadsForEngines) {
  options_.environments = {{"pytorch/fsdp", "", {}, "/images/torch.sif"},
                           {"pytorch/zero1", "", {"torch"}, ""}};
  const Frameworks frameworks(options_);
  EXPECT_EQ(frameworks.PathFor({"native/ddp", "pytorch/ddp"}), options_.directory + "/pytorch");
  EXPECT_EQ(frameworks.PathFor({"pytorch/fsdp"}), "/images/torch.sif");
  EXPECT_EQ(frameworks.PathFor({"pytorch/zero1", "native/ddp", "unknown"}), options_.directory)
      << "modules have no path";
  EXPECT_EQ(frameworks.PathFor({}), options_.directory);
}

TEST_F(FrameworksTest, ANegativeResultIsNotCached) {
  Environment(
      "pytorch",
      "echo '{\"usable\":false,\"reason\":\"cannot import torch\",\"fix\":\"deploy/frameworks pytorch\"}'");
  Frameworks frameworks(options_);
  EXPECT_EQ(One(frameworks, "pytorch/ddp").reason(), "cannot import torch");
  Works("pytorch");
  EXPECT_TRUE(One(frameworks, "pytorch/ddp").usable());
}

TEST_F(FrameworksTest, ReportsTheErrorOfAFailedProbe) {
  Environment("pytorch", "echo 'ImportError: libgomp.so.1' >&2; exit 3");
  Environment("mxnet", "echo nothing useful");
  Environment("keras-jax", "kill -9 $$");
  Frameworks frameworks(options_);
  EXPECT_EQ(One(frameworks, "pytorch/ddp").reason(),
            "'python' ended with status 3: ImportError: libgomp.so.1");
  EXPECT_EQ(One(frameworks, "mxnet/kvstore").reason(), "'python' ended with status 0 and printed no error");
  EXPECT_EQ(One(frameworks, "keras/jax").reason(), "'python' was killed by signal 9 and printed no error");
}

TEST_F(FrameworksTest, AProbeHasATimeout) {
  Environment("pytorch", "exec sleep 1000");
  options_.probe.timeout = absl::Milliseconds(200);
  Frameworks frameworks(options_);
  EXPECT_EQ(One(frameworks, "pytorch/ddp").reason(), "the probe of the framework did not end within 200ms");
}

TEST_F(FrameworksTest, StopEndsProbesAndAnswersPendingCalls) {
  Environment("pytorch", "exec sleep 1000");
  Frameworks frameworks(options_);
  absl::Status answer;
  frameworks.Ask({"pytorch/ddp"}, [&](absl::StatusOr<FrameworkStates> states) { answer = states.status(); });
  frameworks.Stop();
  EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable);
  frameworks.Ask({"pytorch/ddp"}, [&](absl::StatusOr<FrameworkStates> states) { answer = states.status(); });
  EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable);
}

TEST_F(FrameworksTest, CallsForTheSameEngineShareOneProbe) {
  ASSERT_EQ(mkfifo((directory_ + "/go").c_str(), 0600), 0);
  Environment("pytorch",
              absl::StrCat("read -r go < ", directory_, "/go; echo '{\"usable\":true,\"version\":\"x\"}'"));
  Frameworks frameworks(options_);
  std::promise<void> both[2];
  for (auto& one : both) {
    frameworks.Ask({"pytorch/ddp", "custom"}, [&](absl::StatusOr<FrameworkStates> states) {
      EXPECT_EQ(states->size(), 2u);
      one.set_value();
    });
  }
  std::ofstream(directory_ + "/go") << "on\n";
  for (auto& one : both) one.get_future().get();
  EXPECT_EQ(Calls(), 1);
}

TEST_F(FrameworksTest, AtMostTwoProbesRunAtOnce) {
  // Each probe logs how many are in flight.
  const std::string count =
      absl::StrCat("mkdir ", directory_, "/busy-$$; ls -d ", directory_, "/busy-* | wc -l >> ", directory_,
                   "/seen; rmdir ", directory_, "/busy-$$; echo '{\"usable\":true,\"version\":\"x\"}'");
  std::vector<std::string> engines;
  for (absl::string_view name : EnvironmentNames()) Environment(std::string(name), count);
  for (const Engine& engine : Engines()) {
    if (engine.program == Engine::Program::kAdapter) engines.emplace_back(engine.name);
  }
  Frameworks frameworks(options_);
  for (const auto& [name, state] : Ask(frameworks, engines))
    EXPECT_TRUE(state.usable()) << name << state.reason();
  std::ifstream seen(directory_ + "/seen");
  int probes = 0;
  for (int busy; seen >> busy; ++probes) EXPECT_LE(busy, 2);
  EXPECT_EQ(probes, static_cast<int>(engines.size()));
}

TEST_F(FrameworksTest, NativeEnginesAreProbedWithTheTrainer) {
  Frameworks frameworks(options_);
  EXPECT_EQ(
      One(frameworks, "native/ddp").reason(),
      absl::StrCat("the trainer '", directory_, "/scalelab-trainer' does not exist or is not executable"));
  Program("scalelab-trainer",
          "echo '{\"name\":\"scalelab-trainer\",\"version\":\"0.1.0\",\"libtorch\":\"1.13.1\"}'");
  const v1::Framework state = One(frameworks, "native/ddp");
  EXPECT_TRUE(state.usable()) << state.reason();
  EXPECT_EQ(state.version(), "scalelab 0.1.0, libtorch 1.13.1");
  EXPECT_TRUE(One(frameworks, "custom").usable());
}

TEST_F(FrameworksTest, NativeEnginesShareTheProbesInFlight) {
  Program("scalelab-trainer",
          absl::StrCat("echo >> ", directory_, "/probes; while [ ! -e ", directory_,
                       "/go ]; do sleep 0.01; done; echo '{\"version\":\"0.1.0\",\"libtorch\":\"1.13.1\"}'"));
  std::vector<std::string> engines;
  for (const Engine& engine : Engines()) {
    if (engine.program == Engine::Program::kTrainer) engines.emplace_back(engine.name);
  }
  Frameworks frameworks(options_);
  std::promise<FrameworkStates> answer;
  frameworks.Ask(engines, [&](absl::StatusOr<FrameworkStates> states) { answer.set_value(*states); });
  std::ofstream(directory_ + "/go") << "on\n";
  const FrameworkStates states = answer.get_future().get();
  ASSERT_EQ(states.size(), engines.size());
  for (const auto& [name, state] : states) {
    EXPECT_TRUE(state.usable()) << name << state.reason();
    EXPECT_EQ(state.engine(), name);
  }
  std::ifstream probes(directory_ + "/probes");
  EXPECT_LE(std::count(std::istreambuf_iterator<char>(probes), {}, '\n'), 2) << "one on each thread";
}

TEST_F(FrameworksTest, AnEnvironmentOfTheEngineTakesPrecedence) {
  options_.environments = {{"pytorch/*", "/lab/torch", {}, ""},
                           {"pytorch/ddp", std::nullopt, {"cuda/12"}, ""},
                           {"tensorflow/*", std::nullopt, {}, "/images/tf.sif"}};
  Frameworks frameworks(options_);
  EXPECT_EQ(frameworks.EnvironmentOf("pytorch/fsdp")->venv(), "/lab/torch");
  EXPECT_EQ(frameworks.EnvironmentOf("pytorch/ddp")->venv(), directory_ + "/pytorch");
  EXPECT_EQ(frameworks.EnvironmentOf("pytorch/ddp")->modules(0), "cuda/12");
  EXPECT_EQ(frameworks.EnvironmentOf("tensorflow/mirrored")->venv(), "");
  EXPECT_EQ(frameworks.EnvironmentOf("tensorflow/mirrored")->container(), "/images/tf.sif");
  EXPECT_EQ(frameworks.EnvironmentOf("keras/jax")->venv(), directory_ + "/keras-jax");
  EXPECT_FALSE(frameworks.EnvironmentOf("native/ddp").has_value());
  EXPECT_FALSE(frameworks.EnvironmentOf("custom").has_value());
}

TEST_F(FrameworksTest, AnEngineOnGpusHasTheEnvironmentForGpus) {
  Works("pytorch");
  options_.environments = {{"tensorflow/*", "/lab/tf", {}, ""}};
  Frameworks frameworks(options_);
  EXPECT_EQ(frameworks.EnvironmentOf("pytorch/ddp on GPUs")->venv(), directory_ + "/pytorch-cuda");
  EXPECT_EQ(frameworks.EnvironmentOf("tensorflow/mirrored on GPUs")->venv(), "/lab/tf");

  // An environment for CPUs does not replace it.
  const std::string name = "pytorch/ddp on GPUs";
  FrameworkStates states = Ask(frameworks, {"pytorch/ddp", name});
  EXPECT_TRUE(states["pytorch/ddp"].usable()) << states["pytorch/ddp"].reason();
  EXPECT_EQ(states[name].engine(), "pytorch/ddp");
  EXPECT_EQ(states[name].reason(),
            absl::StrCat("'", directory_, "/pytorch-cuda/bin/python' does not exist or is not executable"));
  EXPECT_EQ(states[name].fix(), "deploy/frameworks --cuda pytorch");

  Environment(
      "pytorch-cuda",
      "echo '{\"usable\":false,\"reason\":\"cannot import torch\",\"fix\":\"deploy/frameworks pytorch\"}'");
  EXPECT_EQ(One(frameworks, name).fix(), "deploy/frameworks --cuda pytorch");

  Works("pytorch-cuda", "torch 2.11.0");
  EXPECT_EQ(One(frameworks, name).version(), "torch 2.11.0");
  EXPECT_EQ(One(frameworks, "pytorch/ddp").version(), "torch 1.13.1");
}

TEST_F(FrameworksTest, WithNodesElsewhereThisMachineNeedsNoGpus) {
  Environment("pytorch",
              "[ \"$2\" = pytorch/dp ] && { echo '{\"usable\":false,\"reason\":\"needs a GPU\",\"fix\":\"a "
              "GPU\"}'; exit; }; "
              "echo '{\"usable\":true,\"version\":\"torch\"}'");
  Frameworks here(options_);
  EXPECT_FALSE(One(here, "pytorch/dp").usable());
  options_.nodes_are_here = false;
  Frameworks elsewhere(options_);
  const v1::Framework state = One(elsewhere, "pytorch/dp");
  EXPECT_TRUE(state.usable()) << state.reason();
  EXPECT_EQ(state.engine(), "pytorch/dp");
}

TEST_F(FrameworksTest, ReportsModulesThatCannotBeLoaded) {
  Works("pytorch");
  options_.environments = {{"pytorch/ddp", std::nullopt, {"no-such-module/1"}, ""}};
  Frameworks frameworks(options_);
  EXPECT_THAT(One(frameworks, "pytorch/ddp").reason(), HasSubstr("no-such-module/1"));
}

}  // namespace
}  // namespace scalelab::server
