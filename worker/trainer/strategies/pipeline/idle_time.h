// Measures the time in which a stage of a pipeline waits for other stages.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/device_event.h"

namespace scalelab::trainer::pipeline {

// Adds up the device's time in the passes of steps, and the part of it in which the device waited. The first
// `warmup` steps do not count.
class IdleTime {
 public:
  IdleTime(at::Device device, int64_t warmup) : device_(device), warmup_(warmup) {}

  void BeginStep() { steps_.push_back({.begin = DeviceEvent(device_), .end = {}, .waits = {}}); }
  // Runs `wait` and counts its time as idle.
  template <typename Wait>
  auto During(const Wait& wait) {
    DeviceEvent begin(device_);
    auto result = wait();
    steps_.back().waits.emplace_back(std::move(begin), DeviceEvent(device_));
    return result;
  }
  void EndStep() {
    steps_.back().end = DeviceEvent(device_);
    while (steps_.size() > 1 && steps_.front().end.Over()) Settle();
  }

  // Returns the total seconds of waits and of passes so far. Waits for the device.
  std::pair<double, double> Seconds() {
    while (!steps_.empty()) Settle();
    return {idle_, total_};
  }
  // Adds the seconds of an earlier attempt of the run.
  void Add(double idle, double total) { idle_ += idle, total_ += total; }

  // Sets share() for all steps so far. Waits for the device. Collective.
  void ShareOver(Communicator& ranks) {
    const auto [idle, all] = Seconds();
    const at::Tensor sums = at::tensor({idle, all}, at::kDouble);
    ranks.AllReduce(sums, ReduceOp::kSum);
    const double total = sums[1].item<double>();
    share_ = total > 0 ? sums[0].item<double>() / total : -1;
  }
  // Returns the idle share of the time of all ranks; negative if it is not known.
  double share() const { return share_; }

 private:
  struct Step {
    DeviceEvent begin, end;
    std::vector<std::pair<DeviceEvent, DeviceEvent>> waits;
  };

  void Settle() {
    Step& step = steps_.front();
    step.end.Wait();
    if (settled_++ >= warmup_) {
      total_ += step.end.SecondsSince(step.begin);
      for (const auto& [begin, end] : step.waits) idle_ += end.SecondsSince(begin);
    }
    steps_.pop_front();
  }

  const at::Device device_;
  const int64_t warmup_;
  std::deque<Step> steps_;
  int64_t settled_ = 0;
  double idle_ = 0, total_ = 0, share_ = -1;
};

}  // namespace scalelab::trainer::pipeline
