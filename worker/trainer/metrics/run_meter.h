// Summarizes the times of a run's steps as metrics of its `finish` event.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/trainer/metrics/event_writer.h"

namespace scalelab::trainer {

// Seconds of one step and its parts.
struct StepTimes {
  double total = 0, data = 0, forward = 0, backward = 0, comm_exposed = 0, optimizer = 0;
  double comm_total = 0;  // time with communication in progress; it may overlap with the other parts
};

class RunMeter {
 public:
  // The first `warmup_steps` steps are not measured. A step has at most `global_batch` samples
  // over all ranks.
  RunMeter(int64_t warmup_steps, int64_t global_batch)
      : warmup_(warmup_steps), global_batch_(global_batch), first_(warmup_steps) {}

  void Add(const StepTimes& step, int64_t samples);
  // Adds a step of which only `total` and `data` are known.
  void AddWhole(const StepTimes& step, int64_t samples);
  // Adds, for the step that was added last, the squared norm of this rank's gradient and that of the mean
  // gradient of all ranks. Has no effect if the step was a warm-up step or had fewer than `global_batch`
  // samples, or if a norm is not finite.
  void AddSquares(double of_rank, double of_mean, int64_t samples);

  // Returns the accumulated measurements as the argument for Continue in a later process.
  std::vector<double> State() const;
  // Continues after `steps` steps with the State of an earlier process. `state` is empty if the earlier
  // measurements are not comparable. The next `warmup_steps` steps are not measured, because this process has
  // to warm up too.
  void Continue(int64_t steps, const std::vector<double>& state);

  int64_t steps() const { return steps_; }
  // Returns the number of steps after warm-up, the measured window.
  int64_t measured() const { return static_cast<int64_t>(full_steps_.size()); }
  // Returns the mean seconds of computing in a step of the window; 0 if the window is empty or has a step whose parts are unknown.
  double MeanCompute() const;
  // Appends run/throughput, run/throughput_mean, run/step_seconds (of a full step), run/epoch_seconds (of an
  // epoch of `samples_per_epoch`), run/mean_step_s and run/data_s; if the parts of all steps are known, run/comm_share and
  // run/comm_exposed_s; what was measured of run/comm_total_s, run/rank_gradient_norm2 and run/mean_gradient_norm2. Appends
  // nothing if the window is empty.
  void AppendTo(std::vector<Metric>& metrics, int64_t samples_per_epoch) const;

 private:
  int64_t warmup_, global_batch_;
  int64_t first_ = 0;  // index of the first step that may be measured
  int64_t steps_ = 0;
  std::vector<double> full_steps_;  // seconds of the window's steps; smaller steps are scaled to a full step
  bool parts_known_ = true;         // whether the parts of all steps of the window are known
  double total_sum_ = 0, sample_sum_ = 0, data_sum_ = 0, exposed_sum_ = 0, comm_total_sum_ = 0,
         compute_sum_ = 0;
  double rank_squares_ = 0, mean_squares_ = 0;
  int64_t squares_ = 0;  // number of steps in these sums

  bool Count(const StepTimes& step, int64_t samples);
};

// The element of StragglerSkew's argument for a rank that does not train.
inline constexpr double kDoesNotTrain = -1;
// `compute` has the mean compute time of each rank; 0 means unknown. Returns slowest / mean - 1 over the
// ranks that train. Returns nothing if the time of one of these ranks is unknown.
std::optional<double> StragglerSkew(std::vector<double> compute);

// Returns the middle value or the mean of the two middle values; `values` must not be empty.
double Median(std::vector<double> values);

// Returns the largest resident set of this process so far (VmHWM) in bytes; 0 if /proc does not have it.
int64_t PeakResidentBytes();
// Returns the CPU seconds of all threads of this process.
double ProcessCpuSeconds();

}  // namespace scalelab::trainer
