#include "worker/trainer/metrics/step_log.h"

#include <algorithm>
#include <limits>
#include <span>

namespace scalelab::trainer {
namespace {

// The host waits when it is this many steps ahead of the device.
constexpr size_t kAhead = 64;

}  // namespace

void StepMarks::AddTo(StepTimes& times) const {
  const DeviceEvent* last = &begin_;
  for (const auto& [part, end] : marks_) {
    if (part != nullptr) times.*part += end.SecondsSince(*last);
    last = &end;
  }
  std::vector<std::pair<double, double>> spans;  // begin and end, in seconds since the end of the first span
  for (const Span& span : spans_) {
    const DeviceEvent& zero = *spans_.front().end;
    spans.emplace_back(span.begin->SecondsSince(zero), span.end->SecondsSince(zero));
  }
  std::ranges::sort(spans);
  double counted = -std::numeric_limits<double>::infinity();  // the time until here is in the sum
  for (const auto& [begin, end] : spans) {
    times.comm_total += std::max(0.0, end - std::max(begin, counted));
    counted = std::max(counted, end);
  }
}

struct StepLog::Pending {
  StepRecord record;
  at::Tensor numbers;                             // in host memory; valid after the step's end
  std::shared_ptr<const DeviceEvent> begin, end;  // begin and end of the step
};

StepLog::StepLog(EventWriter& events, RunMeter& meter, at::Device device, int rank)
    : events_(events), meter_(meter), device_(device), rank_(rank) {}

StepLog::~StepLog() = default;

void StepLog::BeginEpoch(const EpochSums& sums) {
  sums_ = sums;
  last_ = std::make_shared<DeviceEvent>(device_);
}

void StepLog::Add(StepRecord record) {
  const at::NoGradGuard no_grad;
  auto step = std::make_unique<Pending>(Pending{std::move(record), {}, last_, nullptr});
  const at::Tensor& numbers = step->record.numbers;
  step->numbers = numbers;
  if (!numbers.is_cpu()) {
    step->numbers = at::empty_like(numbers, numbers.options().device(at::kCPU).pinned_memory(true));
    step->numbers.copy_(numbers, /*non_blocking=*/true);
  }
  last_ = step->end = std::make_shared<DeviceEvent>(device_);
  pending_.push_back(std::move(step));
  while (!pending_.empty() && (pending_.size() > kAhead || pending_.front()->end->Over())) {
    pending_.front()->end->Wait();
    Report(*pending_.front());
    pending_.pop_front();
  }
}

EpochSums StepLog::EndEpoch() {
  for (; !pending_.empty(); pending_.pop_front()) {
    pending_.front()->end->Wait();
    Report(*pending_.front());
  }
  return sums_;
}

void StepLog::Report(const Pending& step) {
  const StepRecord& r = step.record;
  const double* numbers = static_cast<const double*>(step.numbers.data_ptr());
  StepTimes times;
  times.total = step.end->SecondsSince(*step.begin);
  r.marks.AddTo(times);
  sums_.loss += numbers[kLoss] * static_cast<double>(r.samples);
  sums_.correct += numbers[kCorrect];
  sums_.samples += static_cast<double>(r.samples);
  sums_.seconds += times.total;
  r.whole ? meter_.AddWhole(times, r.global_samples) : meter_.Add(times, r.global_samples);
  meter_.AddSquares(numbers[kRankSquare], numbers[kMeanSquare], r.global_samples);

  std::vector<Metric> metrics = {{"step/total_s", times.total}, {"step/data_s", times.data}};
  metrics.reserve(11);
  if (!r.whole) {
    metrics.insert(metrics.end(), {{"step/forward_s", times.forward},
                                   {"step/backward_s", times.backward},
                                   {"step/comm_exposed_s", times.comm_exposed},
                                   {"step/optimizer_s", times.optimizer}});
  }
  metrics.insert(metrics.end(),
                 {{"comm/bytes", static_cast<double>(r.bytes)}, {"train/loss", numbers[kLoss]}});
  if (step.numbers.numel() > kLossScale) {
    sums_.left_out += numbers[kLeftOut];
    metrics.emplace_back("train/loss_scale", numbers[kLossScale]);
  }
  if (rank_ == 0) metrics.emplace_back("train/learning_rate", r.rate);
  events_.Step(r.epoch, r.step, metrics);
}

}  // namespace scalelab::trainer
