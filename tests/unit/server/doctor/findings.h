// Helpers for tests of findings.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "server/command/command.h"
#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// Compares level and part of the text: EXPECT_THAT(CheckClock(facts), Is(Finding::Level::kOk, "synchronised")).
MATCHER_P2(Is, level, text, "") {
  *result_listener << "text: " << arg.text << "; advice: " << arg.advice;
  return arg.level == level && testing::Matches(testing::HasSubstr(text))(arg.text) &&
         arg.advice.empty() == (level == Finding::Level::kOk);
}
inline auto IsOk(const std::string& text) { return Is(Finding::Level::kOk, text); }
inline auto IsWarning(const std::string& text) { return Is(Finding::Level::kWarning, text); }
inline auto IsError(const std::string& text) { return Is(Finding::Level::kError, text); }

// Programs that give prepared answers, by the start of the command line. Other programs are missing.
class FakePrograms {
 public:
  void Answer(const std::string& command, const std::string& out) {
    results_[command].exit_code = 0;
    results_[command].out = out;
  }
  void Fail(const std::string& command, const std::string& err) {
    results_[command].exit_code = 1;
    results_[command].err = err;
  }

  Run run() {
    return [this](const std::vector<std::string>& argv,
                  const std::string& input) -> absl::StatusOr<CommandResult> {
      const std::string line = absl::StrJoin(argv, " ");
      calls.push_back(line);
      inputs.push_back(input);
      // Use the answer with the longest match.
      for (auto it = results_.rbegin(); it != results_.rend(); ++it) {
        if (line.rfind(it->first, 0) == 0) return it->second;
      }
      return absl::FailedPreconditionError(argv[0] + ": not found");
    };
  }

  std::vector<std::string> calls, inputs;

 private:
  std::map<std::string, CommandResult> results_;
};

}  // namespace scalelab::server::doctor
