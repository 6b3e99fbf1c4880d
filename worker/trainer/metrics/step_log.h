// Reports steps as events after the device has finished them, so that the host does not wait for a step
// before it starts the next one.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/device/device_event.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/run_meter.h"

namespace scalelab::trainer {

// The ends of the parts of one step, as device events.
class StepMarks {
 public:
  explicit StepMarks(at::Device device) : device_(device), begin_(device) {}
  // Assigns the time since the previous mark to `part`, or to no part if it is null.
  void Mark(double StepTimes::*part) { Mark(part, DeviceEvent(device_)); }
  void Mark(double StepTimes::*part, DeviceEvent end) { marks_.emplace_back(part, std::move(end)); }
  // Adds the times at which ranks communicated. All of them use the same clock.
  void Communicated(const std::vector<Span>& spans) {
    spans_.insert(spans_.end(), spans.begin(), spans.end());
  }
  // Adds the seconds of each part to `times`, and those with communication in progress to comm_total. The
  // device must have passed all events.
  void AddTo(StepTimes& times) const;

 private:
  at::Device device_;
  DeviceEvent begin_;
  std::vector<std::pair<double StepTimes::*, DeviceEvent>> marks_;
  std::vector<Span> spans_;
};

struct StepRecord {
  int64_t epoch = 0, step = 0;
  double rate = 0;
  int64_t samples = 0, global_samples = 0;  // on this rank, on all ranks
  int64_t bytes = 0;
  bool whole = false;  // whether it was replayed as a CUDA graph, so that the times of its parts are unknown
  StepMarks marks;
  at::Tensor numbers = {};  // on the device; see StepNumber
};

// Elements of StepRecord::numbers, in double precision: the mean loss of this rank's samples, the number of
// them that were classified correctly, and the squared norms of this rank's gradient (see
// TrainStep::SquareOfRank) and of the mean over ranks (NaN if they are not known). The last two exist with
// loss scaling only.
enum StepNumber { kLoss, kCorrect, kRankSquare, kMeanSquare, kLossScale, kLeftOut };

// Sums over the steps of an epoch on this rank.
struct EpochSums {
  double loss = 0, correct = 0, samples = 0, seconds = 0, left_out = 0;
};

class StepLog {
 public:
  StepLog(EventWriter& events, RunMeter& meter, at::Device device, int rank);
  ~StepLog();

  // Starts the time of the first step. Each later step starts at the end of the previous step. `sums`
  // contains the sums over those steps of this epoch that an earlier process has reported.
  void BeginEpoch(const EpochSums& sums = {});
  // Adds a step after all of its work has been enqueued on the device's stream. Reports the steps that the
  // device has finished.
  void Add(StepRecord record);
  // Waits for all steps of the epoch so far, reports them and returns their sums.
  EpochSums EndEpoch();

 private:
  struct Pending;
  void Report(const Pending& step);

  EventWriter& events_;
  RunMeter& meter_;
  const at::Device device_;
  const int rank_;
  std::shared_ptr<const DeviceEvent> last_;  // end of the previous step
  std::deque<std::unique_ptr<Pending>> pending_;
  EpochSums sums_;
};

}  // namespace scalelab::trainer
