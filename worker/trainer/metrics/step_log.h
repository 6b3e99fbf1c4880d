// Steps from their last operation to their event: what a step has come to is read when the device has done
// it, so that no step waits for the one before.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/device/moment.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/run_meter.h"

namespace scalelab::trainer {

// Moments of one step, each the end of a part.
class StepMarks {
 public:
  explicit StepMarks(at::Device device) : device_(device), begin_(device) {}
  // What was done since the mark before belongs to `part`, or to none.
  void Mark(double StepTimes::*part) { Mark(part, Moment(device_)); }
  void Mark(double StepTimes::*part, Moment end) { marks_.emplace_back(part, std::move(end)); }
  // Once all of them are over.
  void AddTo(StepTimes& times) const;

 private:
  at::Device device_;
  Moment begin_;
  std::vector<std::pair<double StepTimes::*, Moment>> marks_;
};

struct StepRecord {
  int64_t epoch = 0, step = 0;
  double rate = 0;
  int64_t samples = 0, global_samples = 0;  // on this rank, on all
  int64_t bytes = 0;
  bool whole = false;  // replayed in one go: its parts are not known
  StepMarks marks;
  at::Tensor numbers = {};  // on the device: see StepNumber
};

// Elements of StepRecord::numbers, in double precision: the mean loss of this rank's samples, and how many of
// them were classified correctly. The last two are there with loss scaling only.
enum StepNumber { kLoss, kCorrect, kLossScale, kLeftOut };

// What the epoch has come to on this rank.
struct EpochSums {
  double loss = 0, correct = 0, samples = 0, seconds = 0, left_out = 0;
};

class StepLog {
 public:
  StepLog(EventWriter& events, RunMeter& meter, at::Device device, int rank);
  ~StepLog();

  // Steps follow each other from now on without a gap.
  void BeginEpoch();
  // All of the step is on the device's way. Reports the steps that are over.
  void Add(StepRecord record);
  // Waits for all steps of the epoch.
  EpochSums EndEpoch();

 private:
  struct Pending;
  void Report(const Pending& step);

  EventWriter& events_;
  RunMeter& meter_;
  const at::Device device_;
  const int rank_;
  std::shared_ptr<const Moment> last_;  // end of the step before
  std::deque<std::unique_ptr<Pending>> pending_;
  EpochSums sums_;
};

}  // namespace scalelab::trainer
