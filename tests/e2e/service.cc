#include "tests/e2e/service.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace scalelab::e2e {
namespace {

namespace fs = std::filesystem;

bool OpenToAll(fs::path directory) {
  for (; directory != directory.root_path(); directory = directory.parent_path()) {
    if ((fs::status(directory).permissions() & fs::perms::others_exec) == fs::perms::none) return false;
  }
  return true;
}

// The programs of this build with their libraries, in a folder that is removed when the test ends.
class ProgramsCopy {
 public:
  ProgramsCopy() {
    std::string pattern = "/tmp/scalelab-programs-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    chmod(dir_.c_str(), 0755);
    std::error_code other_filesystem;
    fs::copy(SCALELAB_BIN_DIR, dir_ + "/bin",
             fs::copy_options::recursive | fs::copy_options::create_hard_links, other_filesystem);
    if (other_filesystem)
      fs::copy(SCALELAB_BIN_DIR, dir_ + "/bin",
               fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  ~ProgramsCopy() {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  std::string Path(const std::string& name) const { return dir_ + "/bin/" + name; }

 private:
  std::string dir_;
};

}  // namespace

std::string Program(const std::string& name) { return absl::StrCat(SCALELAB_BIN_DIR, "/", name); }
std::string ProgramForAll(const std::string& name) {
  static const bool open = OpenToAll(SCALELAB_BIN_DIR);
  if (open) return Program(name);
  static const ProgramsCopy copy;
  return copy.Path(name);
}
std::string SourceFile(const std::string& path) { return absl::StrCat(SCALELAB_SOURCE_DIR, "/", path); }
std::string ShippedData() { return SourceFile("deploy/data"); }

Service::Service(std::vector<std::string> flags, std::map<std::string, std::string> env)
    : flags_(std::move(flags)), env_(std::move(env)) {
  std::string pattern = "/tmp/scalelab-e2e-XXXXXX";
  dir_ = mkdtemp(pattern.data());
}

Service::~Service() {
  if (daemon_ != nullptr) {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
  }
  for (const pid_t pid : Processes()) kill(pid, SIGKILL);
  if (testing::Test::HasFailure()) {
    std::cerr << "kept for a look: " << dir_ << "\n" << log() << "\n";
    return;
  }
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

std::string Service::Start() {
  // Tests share the machine, so attempts would be noisy by chance. A study can turn the noise guard on.
  const std::string program = account_.empty() ? Program("scalelabd") : ProgramForAll("scalelabd");
  std::vector<std::string> argv = {program, "--data", data(), "--noise-guard", "false"};
  argv.insert(argv.end(), flags_.begin(), flags_.end());
  if (files_ > 0) {
    const std::vector<std::string> shell = {"sh", "-c", absl::StrCat("ulimit -n ", files_, "; exec \"$@\""),
                                            "sh"};
    argv.insert(argv.begin(), shell.begin(), shell.end());
  }
  std::map<std::string, std::string> env = env_;
  if (!account_.empty()) {
    argv = As(account_, argv);
    env["HOME"] = "/nonexistent";
  }
  daemon_ = std::make_unique<Background>(argv, dir_ + "/scalelabd.log", env);
  ready_ = daemon_->Line();
  return ready_.rfind("ready", 0) == 0 ? "" : absl::StrCat("scalelabd did not start: '", ready_, "' ", log());
}

int Service::Stop() {
  daemon_->Signal(SIGTERM);
  return daemon_->Wait();
}

void Service::Kill() {
  daemon_->Signal(SIGKILL);
  daemon_->Wait();
}

Output Service::Run(std::vector<std::string> words, double seconds) const {
  std::vector<std::string> argv = {Program("scalelab"), "--server", socket()};
  argv.insert(argv.end(), words.begin(), words.end());
  return RunProgram(argv, {{"NO_COLOR", "1"}}, seconds);
}

nlohmann::json Service::Json(std::vector<std::string> words) const {
  words.insert(words.end(), {"-o", "json"});
  const Output output = Run(words);
  EXPECT_EQ(output.code, 0) << absl::StrJoin(words, " ") << ": " << output.err;
  auto json = nlohmann::json::parse(output.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << output.out;
  return json;
}

std::string Service::File(const std::string& name, const std::string& yaml) const {
  const std::string path = absl::StrCat(dir_, "/", name);
  WriteFile(path, yaml);
  return path;
}

std::string Service::Submit(const std::string& yaml, std::vector<std::string> more) const {
  std::vector<std::string> words = {"study", "submit", File("study.yaml", yaml)};
  words.insert(words.end(), more.begin(), more.end());
  const Output output = Run(words);
  EXPECT_EQ(output.code, 0) << output.err;
  return std::string(absl::StripAsciiWhitespace(output.out));
}

int Service::WaitFor(const std::string& study, double seconds) const {
  // The limit only ends a test that hangs. Some machines are three times as slow as the one on which a test was written.
  seconds *= 3;
  return Run({"study", "wait", study, "--timeout", absl::StrCat(static_cast<int>(seconds), "s")},
             seconds + 30)
      .code;
}

nlohmann::json Service::Runs(const std::string& study) const { return Json({"run", "list", study})["runs"]; }

nlohmann::json Service::Attempts(const std::string& run) const {
  const nlohmann::json json = Json({"run", "show", run});
  return json.contains("run") ? json["run"]["attempts"] : json["attempts"];
}

std::string Service::WaitUntilTraining(const std::string& study, int steps, double seconds,
                                       const std::function<void()>& meanwhile) const {
  std::string run;
  const bool trains = Eventually(
      [&] {
        for (const auto& candidate : Runs(study)) {
          if (candidate["state"] != "RUNNING") continue;
          run = candidate["name"];
          if (static_cast<int>(Points(run).size()) >= steps) return true;
        }
        if (meanwhile) meanwhile();
        return false;
      },
      seconds);
  EXPECT_TRUE(trains) << "no run of " << study << " trains: " << Run({"run", "list", study}).out
                      << Run({"study", "explain", study}).out;
  return trains ? run : "";
}

std::vector<std::string> Service::Points(const std::string& run, int attempt) const {
  std::vector<std::string> words = {"run", "metrics", run, "-o", "csv"};
  if (attempt > 0) words.insert(words.end(), {"--attempt", absl::StrCat(attempt)});
  const Output output = Run(words);
  if (output.code != 0) return {};
  std::vector<std::string> lines = absl::StrSplit(output.out, '\n', absl::SkipEmpty());
  if (!lines.empty()) lines.erase(lines.begin());
  return lines;
}

std::vector<pid_t> Service::Processes() const {
  std::set<pid_t> all;
  for (const pid_t pid : ProcessesWith(dir_)) all.insert(pid);
  for (const pid_t pid : ProcessesInEnvironment(dir_)) all.insert(pid);
  if (daemon_ != nullptr) all.erase(daemon_->pid());
  return {all.begin(), all.end()};
}

std::vector<pid_t> Service::Workers() const {
  std::vector<pid_t> workers;
  for (const pid_t pid : ProcessesWith("scalelab-worker")) {
    if (CommandLine(pid).find(dir_) != std::string::npos) workers.push_back(pid);
  }
  return workers;
}

std::vector<pid_t> Service::Ranks() const {
  std::vector<pid_t> ranks;
  for (const pid_t pid : ProcessesInEnvironment(dir_)) {
    const std::string program = CommandLine(pid);
    if (program.substr(0, program.find(' ')).find("scalelab-trainer") != std::string::npos)
      ranks.push_back(pid);
  }
  return ranks;
}

std::vector<double> Losses(const Service& service, const nlohmann::json& run) {
  std::vector<double> losses;
  for (const std::string& line : service.Points(run["name"])) {
    const std::vector<std::string> f = absl::StrSplit(line, ',');
    if (f.size() != 5 || f[3] != "train/loss" || f[1] == "-1") continue;
    const size_t step = std::stoul(f[1]);
    if (step >= losses.size()) losses.resize(step + 1);
    losses[step] += std::stod(f[4]) / run["spec"]["ranks"].get<int>();
  }
  return losses;
}

double LargestDeviation(const std::vector<double>& losses, const std::vector<double>& reference) {
  if (losses.empty() || losses.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double deviation = std::abs(losses[i] - reference[i]) / std::abs(reference[i]);
    if (!std::isfinite(deviation)) return std::numeric_limits<double>::infinity();  // std::max ignores NaN
    largest = std::max(largest, deviation);
  }
  return largest;
}

std::vector<std::string> LostOrDoubled(const Service& service, const std::string& study) {
  std::vector<std::string> wrong;
  for (const auto& run : service.Runs(study)) {
    const std::string name = run["name"];
    std::set<std::string> tokens;
    for (const auto& attempt : service.Attempts(name)) {
      const std::string which = absl::StrCat(name, " attempt ", attempt["number"].get<int>());
      if (!tokens.insert(attempt["name"].get<std::string>()).second)
        wrong.push_back(which + " has a token that was used");
      std::vector<std::string> reported;
      for (int r = 0; r < run["spec"]["ranks"].get<int>(); ++r) {
        const std::string file =
            absl::StrCat(attempt["directory"].get<std::string>(), "/events-", r, ".jsonl");
        const std::string text = ReadFile(file);
        size_t starts = 0;
        for (size_t at = text.find("\"event\":\"start\""); at != std::string::npos;
             at = text.find("\"event\":\"start\"", at + 1)) {
          ++starts;
        }
        if (starts > 1) wrong.push_back(absl::StrCat(file, " has ", starts, " starts: executed twice"));
        for (std::string& point : StepsOfEventFile(file, r)) reported.push_back(std::move(point));
      }
      std::vector<std::string> stored;
      for (const std::string& line : service.Points(name, attempt["number"])) {
        const std::vector<std::string> f = absl::StrSplit(line, ',');
        if (f.size() != 5 || f[1] == "-1" || f[3].rfind("epoch/", 0) == 0 || f[3].rfind("eval/", 0) == 0 ||
            f[3].rfind("checkpoint/", 0) == 0)
          continue;
        stored.push_back(absl::StrCat(f[0], ",", f[1], ",", f[3], ",", std::stod(f[4])));
      }
      std::sort(reported.begin(), reported.end());
      std::sort(stored.begin(), stored.end());
      // For an attempt that did not finish, points that were not acknowledged before its end may be missing.
      if (!std::includes(reported.begin(), reported.end(), stored.begin(), stored.end())) {
        wrong.push_back(which + ": stored points that no rank has written, or twice");
      } else if (attempt["state"] == "SUCCEEDED" && stored.size() != reported.size()) {
        wrong.push_back(absl::StrCat(which, ": ", reported.size() - stored.size(), " of ", reported.size(),
                                     " points are lost"));
      }
    }
  }
  return wrong;
}

std::vector<std::string> StepsOfEventFile(const std::string& path, int rank) {
  std::vector<std::string> points;
  std::istringstream lines(ReadFile(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded() || json.value("event", "") != "step") continue;
    for (const auto& [key, value] : json["metrics"].items()) {
      points.push_back(absl::StrCat(rank, ",", json["step"].get<int64_t>(), ",", key, ",",
                                    value.is_number() ? value.get<double>() : std::nan("")));
    }
  }
  return points;
}

}  // namespace scalelab::e2e
