// Runs many simulations: more with SCALELAB_LONG_TESTS=1.
//   SCALELAB_SIMULATION_SEEDS=100000 simulation_test     runs that many seeds; SCALELAB_SIMULATION_FIRST is the first, and
//                                                        SCALELAB_SIMULATION_STOP=1 ends the run at the first violation
//   simulation_test --seed=17 --trace                    runs one and prints what happens
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace scalelab::simulation {
namespace {

// Numbers of seeds in the short and in the long form of the test.
constexpr uint64_t kUsualSeeds = 150, kLongSeeds = 2000;

uint64_t NumberOf(const char* variable, uint64_t usual) {
  const char* text = getenv(variable);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : usual;
}

// Databases are in memory, so that simulations do not wait for a disk.
class Directory {
 public:
  Directory() {
    std::string pattern = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : testing::TempDir();
    pattern += "/simulation-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Result Run(uint64_t seed, bool trace = false) {
    for (const char* ending : {"", "-wal", "-shm", ".lock", ".id"})
      std::filesystem::remove(path_ + "/test.db" + ending);
    return Simulate(seed, path_ + "/test.db", trace);
  }

 private:
  std::string path_;
};

std::string Describe(uint64_t seed, const Result& result) {
  std::string text = absl::StrCat("seed ", seed, ", faults: ", result.enabled_faults, "\n");
  for (size_t i = 0; i < std::min<size_t>(result.violations.size(), 10); ++i)
    absl::StrAppend(&text, "  ", result.violations[i], "\n");
  absl::StrAppend(&text, "replay: build/dev/tests/simulation_test --seed=", seed, " --trace");
  return text;
}

TEST(Simulation, EverySeedKeepsTheInvariants) {
  Directory directory;
  const uint64_t first = NumberOf("SCALELAB_SIMULATION_FIRST", 1);
  const bool long_form = getenv("SCALELAB_LONG_TESTS") != nullptr;
  const uint64_t seeds = NumberOf("SCALELAB_SIMULATION_SEEDS", long_form ? kLongSeeds : kUsualSeeds);
  Result sum;
  size_t failed = 0;
  double longest = 0;
  const bool stop = getenv("SCALELAB_SIMULATION_STOP") != nullptr;
  for (uint64_t seed = first; seed < first + seeds && !(stop && failed > 0); ++seed) {
    const Result result = directory.Run(seed);
    if (!result.violations.empty()) {
      ++failed;
      fflush(stdout);
      ADD_FAILURE() << Describe(seed, result);
    }
    sum.hours += result.hours;
    longest = std::max(longest, result.hours);
    sum.studies += result.studies;
    sum.attempts += result.attempts;
    sum.submits += result.submits;
    sum.polls += result.polls;
    sum.cancels += result.cancels;
    sum.calls_per_hour = std::max(sum.calls_per_hour, result.calls_per_hour);
    for (size_t i = 0; i < sum.faults.size(); ++i) sum.faults[i] += result.faults[i];
  }
  printf("%lu seeds, %.0f simulated hours (the longest %.1f), %zu with violations\n", seeds, sum.hours,
         longest, failed);
  printf(
      "%zu studies, %zu attempts; calls of the scheduler: %ld submits, %ld polls, %ld cancels, at most %.0f "
      "in an hour\n",
      sum.studies, sum.attempts, sum.submits, sum.polls, sum.cancels, sum.calls_per_hour);
  for (size_t i = 0; i < sum.faults.size(); ++i)
    printf("%8ld %s\n", sum.faults[i], Name(static_cast<Fault>(i)));
}

TEST(Simulation, TheSameSeedGivesTheSameRun) {
  Directory directory;
  for (uint64_t seed = 1; seed <= 10; ++seed)
    EXPECT_EQ(directory.Run(seed).hash, directory.Run(seed).hash) << seed;
  EXPECT_NE(directory.Run(1).hash, directory.Run(2).hash);
}

int RunOne(uint64_t seed, bool trace) {
  Directory directory;
  const Result result = directory.Run(seed, trace);
  printf("%s\ntrace hash %016lx, %.1f simulated hours, %zu violations\n", Describe(seed, result).c_str(),
         result.hash, result.hours, result.violations.size());
  return result.violations.empty() ? 0 : 1;
}

}  // namespace
}  // namespace scalelab::simulation

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  spdlog::set_level(spdlog::level::off);
  std::optional<uint64_t> seed;
  bool trace = false;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    uint64_t number = 0;
    if (argument == "--trace") trace = true;
    if (absl::StartsWith(argument, "--seed=") && absl::SimpleAtoi(argument.substr(7), &number)) seed = number;
  }
  return seed ? scalelab::simulation::RunOne(*seed, trace) : RUN_ALL_TESTS();
}
