#include "worker/trainer/metrics/run_meter.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace scalelab::trainer {

// Returns whether the step is in the measured window.
bool RunMeter::Count(const StepTimes& step, int64_t samples) {
  if (++steps_ <= first_) return false;
  const double total = step.total;
  data_sum_ += step.data;
  full_steps_.push_back(total * (static_cast<double>(global_batch_) / static_cast<double>(samples)));
  total_sum_ += total;
  sample_sum_ += static_cast<double>(samples);
  return true;
}

void RunMeter::Add(const StepTimes& step, int64_t samples) {
  if (!Count(step, samples)) return;
  exposed_sum_ += step.comm_exposed;
  comm_total_sum_ += step.comm_total;
  compute_sum_ += step.forward + step.backward + step.optimizer;
}

void RunMeter::AddWhole(const StepTimes& step, int64_t samples) {
  if (Count(step, samples)) parts_known_ = false;
}

void RunMeter::AddSquares(double of_rank, double of_mean, int64_t samples) {
  if (steps_ <= first_ || samples != global_batch_ || !std::isfinite(of_rank) || !std::isfinite(of_mean))
    return;
  rank_squares_ += of_rank;
  mean_squares_ += of_mean;
  ++squares_;
}

std::vector<double> RunMeter::State() const {
  std::vector<double> state = {
      parts_known_ ? 1.0 : 0.0, total_sum_,   sample_sum_,   data_sum_,     exposed_sum_,
      comm_total_sum_,          compute_sum_, rank_squares_, mean_squares_, static_cast<double>(squares_)};
  state.insert(state.end(), full_steps_.begin(), full_steps_.end());
  return state;
}

void RunMeter::Continue(int64_t steps, const std::vector<double>& state) {
  constexpr size_t kSums = 10;
  steps_ = steps;
  first_ = steps + warmup_;
  if (state.size() < kSums) return;
  parts_known_ = state[0] != 0;
  total_sum_ = state[1], sample_sum_ = state[2], data_sum_ = state[3], exposed_sum_ = state[4];
  comm_total_sum_ = state[5], compute_sum_ = state[6], rank_squares_ = state[7], mean_squares_ = state[8];
  squares_ = static_cast<int64_t>(state[9]);
  full_steps_.assign(state.begin() + kSums, state.end());
}

double RunMeter::MeanCompute() const {
  return full_steps_.empty() || !parts_known_ ? 0 : compute_sum_ / static_cast<double>(measured());
}

void RunMeter::AppendTo(std::vector<Metric>& metrics, int64_t samples_per_epoch) const {
  if (full_steps_.empty()) return;
  const double median = Median(full_steps_), batch = static_cast<double>(global_batch_);
  metrics.emplace_back("run/throughput", batch / median);
  metrics.emplace_back("run/throughput_mean", sample_sum_ / total_sum_);
  metrics.emplace_back("run/step_seconds", median);
  metrics.emplace_back("run/epoch_seconds", static_cast<double>(samples_per_epoch) / (batch / median));
  const auto steps = static_cast<double>(measured());
  metrics.emplace_back("run/mean_step_s", total_sum_ / steps);
  metrics.emplace_back("run/data_s", data_sum_ / steps);
  if (parts_known_) {
    metrics.emplace_back("run/comm_share", exposed_sum_ / total_sum_);
    metrics.emplace_back("run/comm_exposed_s", exposed_sum_ / steps);
    if (comm_total_sum_ > 0) metrics.emplace_back("run/comm_total_s", comm_total_sum_ / steps);
  }
  if (squares_ > 0) {
    metrics.emplace_back("run/rank_gradient_norm2", rank_squares_ / static_cast<double>(squares_));
    metrics.emplace_back("run/mean_gradient_norm2", mean_squares_ / static_cast<double>(squares_));
  }
}

std::optional<double> StragglerSkew(std::vector<double> compute) {
  std::erase(compute, kDoesNotTrain);
  const double sum = std::accumulate(compute.begin(), compute.end(), 0.0);
  if (compute.empty() || *std::min_element(compute.begin(), compute.end()) <= 0) return std::nullopt;
  return *std::max_element(compute.begin(), compute.end()) / (sum / static_cast<double>(compute.size())) - 1;
}

double Median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + middle) + upper) / 2;
}

int64_t PeakResidentBytes() {
  long long kib = 0;
  if (FILE* status = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, status) != nullptr) {
      if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
    }
    std::fclose(status);
  }
  return kib * 1024;
}

double ProcessCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace scalelab::trainer
