// A study under way, as lines of text. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/output/terminal.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

int TotalRuns(const scalelab::v1::RunCounts& counts);
bool IsFinal(const scalelab::v1::Study& study);

// Runs that are over and what live attempts have done of theirs, over all runs: 0 to 1.
double DoneShare(const scalelab::v1::WatchStudyResponse& look);

// Guesses the time left from the pace seen so far; looks only at this program's clock.
class PaceEstimate {
 public:
  void Add(double done_share, absl::Time now);
  // Absent until there is a pace to speak of.
  std::optional<absl::Duration> Left() const;

 private:
  std::optional<absl::Time> first_time_, last_time_;
  double first_share_ = 0, last_share_ = 0;
};

// "studies/7 running: 3 of 40 runs done, 2 running, 35 queued, 1 failed" plus why it waits.
std::string ProgressLine(const scalelab::v1::WatchStudyResponse& look);

// The display: a head line, a bar, live attempts as far as `terminal.height` has room. No line is wider than
// the terminal, so the number of lines is what has to be cleared before the next one.
std::vector<std::string> ProgressDisplay(const scalelab::v1::WatchStudyResponse& look, absl::Duration elapsed,
                                         std::optional<absl::Duration> left, const Terminal& terminal);

}  // namespace scalelab::client
