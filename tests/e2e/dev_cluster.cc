#include "tests/e2e/dev_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

namespace fs = std::filesystem;

// The path must be short, because Slurm creates its sockets below it.
constexpr char kPrefix[] = "/tmp/scalelab-slurm-";

std::string Script() { return SourceFile("deploy/dev-cluster"); }

// Removes directories of killed tests. Their names contain the process id of a process that has ended.
void RemoveAbandoned() {
  for (const auto& entry : fs::directory_iterator("/tmp")) {
    absl::string_view name = entry.path().native();
    int pid = 0;
    if (!absl::ConsumePrefix(&name, kPrefix) || !absl::SimpleAtoi(name.substr(0, name.find('-')), &pid))
      continue;
    if (kill(pid, 0) != 0) RunProgram({Script(), "down", "--dir", entry.path()});
  }
}

std::string BridgeOf(const std::string& cluster) {
  return ReadFile(absl::StrCat("/sys/class/net/", cluster, "/address"));
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

}  // namespace

DevCluster::DevCluster(std::vector<std::string> options) : options_(std::move(options)) {
  std::string pattern = absl::StrCat(kPrefix, getpid(), "-XXXXXX");
  dir_ = mkdtemp(pattern.data());
}

DevCluster::~DevCluster() {
  if (testing::Test::HasFailure()) {
    for (const auto& line :
         Lines(RunProgram({"sh", "-c", absl::StrCat("tail -n 20 ", dir_, "/nodes/*/*.log")}).out)) {
      std::cerr << line << "\n";
    }
  }
  const std::string error = Down();
  if (!error.empty()) std::cerr << error << "\n";
}

std::string DevCluster::Unavailable(std::vector<std::string> options) {
  options.insert(options.begin(), {Script(), "check"});
  const Output check = RunProgram(options);
  return check.code == 0 ? "" : check.err;
}

std::string DevCluster::Start() {
  RemoveAbandoned();
  std::vector<std::string> words = {"up"};
  words.insert(words.end(), options_.begin(), options_.end());
  const Output up = Control(words);
  if (up.code != 0) return up.err;
  std::string exports = Control({"env"}).out;
  for (const auto word : absl::StrSplit(absl::StripAsciiWhitespace(exports), ' ')) {
    const std::pair<std::string, std::string> variable = absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (word != "export") env_.insert(variable);
  }
  bridge_ = BridgeOf(name());
  return "";
}

std::string DevCluster::Down() {
  const Output down = Control({"down"});
  return down.code == 0 ? "" : down.err;
}

std::string DevCluster::Leftovers() const {
  std::string left;
  for (const pid_t pid : ProcessesWith(dir_))
    absl::StrAppend(&left, "process ", pid, " ", CommandLine(pid), "\n");
  // Another cluster may have reused the name, and so the bridge.
  const std::string bridge = BridgeOf(name());
  const bool taken = !bridge.empty() && bridge != bridge_;
  for (const char* parent :
       {"/sys/class/net", "/sys/fs/cgroup/memory", "/run", "/run/lock", "/dev", "/dev/shm"}) {
    if (taken || !fs::exists(parent)) continue;
    for (const auto& entry : fs::directory_iterator(parent)) {
      const std::string file = entry.path().filename();
      if (file == name() || file.find(name() + "-n") != std::string::npos)
        absl::StrAppend(&left, entry.path().native(), "\n");
    }
  }
  for (const std::string& mount : Lines(ReadFile("/proc/self/mountinfo"))) {
    if (mount.find(dir_) != std::string::npos) absl::StrAppend(&left, "mount ", mount, "\n");
  }
  if (fs::exists(dir_)) absl::StrAppend(&left, dir_, "\n");
  return left;
}

Output DevCluster::Run(const std::vector<std::string>& argv, double seconds) const {
  return RunProgram(argv, env_, seconds);
}

Output DevCluster::RunOn(int i, const std::vector<std::string>& argv, double seconds) const {
  std::vector<std::string> words = {"node", absl::StrCat(i), "exec"};
  words.insert(words.end(), argv.begin(), argv.end());
  return Control(words, seconds);
}

Output DevCluster::Control(std::vector<std::string> words, double seconds) const {
  words.insert(words.begin() + 1, {"--dir", dir_});
  words.insert(words.begin(), Script());
  return RunProgram(words, {}, seconds);
}

std::string DevCluster::Submit(std::vector<std::string> words) const {
  words.insert(words.begin(), {"sbatch", "--parsable", "--output=/dev/null"});
  const Output output = Run(words);
  EXPECT_EQ(output.code, 0) << output.err;
  return std::string(absl::StripAsciiWhitespace(output.out));
}

std::string DevCluster::JobState(const std::string& job) const {
  return std::string(
      absl::StripAsciiWhitespace(Run({"squeue", "-h", "--states=all", "-o", "%T", "-j", job}).out));
}

bool DevCluster::WaitForState(const std::string& job, const std::string& state, double seconds) const {
  return Eventually([&] { return JobState(job) == state; }, seconds);
}

std::string DevCluster::Node(int i) const { return absl::StrCat(name(), "-n", i); }

}  // namespace scalelab::e2e
