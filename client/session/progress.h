// Progress of a running study as lines of text. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/output/terminal.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

int TotalRuns(const scalelab::v1::RunCounts& counts);
bool IsFinal(const scalelab::v1::Study& study);

// Returns the fraction of work that is done, from 0 to 1: finished runs plus the completed steps of running
// attempts, divided by the number of runs.
double DoneShare(const scalelab::v1::WatchStudyResponse& look);

// Estimates the remaining time from the pace so far. Uses only this program's clock.
class PaceEstimate {
 public:
  void Add(double done_share, absl::Time now);
  // Returns nothing until the pace is known.
  std::optional<absl::Duration> Left() const;

 private:
  std::optional<absl::Time> first_time_, last_time_;
  double first_share_ = 0, last_share_ = 0;
};

// The pace of each running attempt, from its own steps. Uses only this program's clock.
class RunPaces {
 public:
  // Returns the samples of a step over all ranks; 0 if they are unknown.
  using BatchOf = std::function<int64_t(const scalelab::v1::WatchStudyResponse::Progress&)>;
  // `batch_of` is called for attempts whose pace is shown.
  explicit RunPaces(BatchOf batch_of = nullptr) : batch_of_(std::move(batch_of)) {}
  // Call it for each message from the server.
  void Add(const scalelab::v1::WatchStudyResponse& look, absl::Time now);
  // Returns for example "812 samples/s, 1m20s left", or "12.4 steps/s, 1m20s left" if the batch is unknown. Empty until the
  // pace is known.
  std::string Text(const scalelab::v1::WatchStudyResponse::Progress& attempt) const;

 private:
  struct Pace {
    int64_t first_step = 0, last_step = 0;
    absl::Time first_time, last_time;
  };
  BatchOf batch_of_;
  std::map<std::pair<std::string, int>, Pace> paces_;  // by run and attempt
};

// Returns for example "studies/7 running: 3 of 40 runs done, 2 running, 35 queued, 1 failed", followed by the
// reason why the study waits, if there is one.
std::string ProgressLine(const scalelab::v1::WatchStudyResponse& look);

// Returns the display: a head line, a bar, and the running attempts that fit into `terminal.height`. No
// line is wider than the terminal, so the number of lines is also the number of terminal rows to clear
// before the next display.
std::vector<std::string> ProgressDisplay(const scalelab::v1::WatchStudyResponse& look, absl::Duration elapsed,
                                         std::optional<absl::Duration> left, const Terminal& terminal,
                                         const RunPaces& paces = RunPaces());

}  // namespace scalelab::client
