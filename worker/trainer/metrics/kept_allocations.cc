#include "worker/trainer/metrics/kept_allocations.h"

#include <c10/core/Allocator.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace scalelab::trainer {
namespace {

// The kind of information to which allocators report. Its name is that of its usual purpose, LibTorch's profiler.
constexpr auto kKind = c10::DebugInfoKind::PROFILER_STATE;

// The type of two arguments of reportMemoryUsage, which depends on the version of LibTorch.
template <typename Function>
struct TotalOf;
template <typename T>
struct TotalOf<void (c10::MemoryReportingInfoBase::*)(void*, int64_t, T, T, c10::Device)> {
  using Type = T;
};
using Total = TotalOf<decltype(&c10::MemoryReportingInfoBase::reportMemoryUsage)>::Type;

class NoReport : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t, Total, Total, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

class KeptAllocations::Report : public c10::MemoryReportingInfoBase {
 public:
  explicit Report(c10::DeviceType device) : device_(device) {}

  // `bytes` is negative if the memory is freed.
  void reportMemoryUsage(void* memory, int64_t bytes, Total, Total, c10::Device device) override {
    if (device.type() != device_) return;
    const std::lock_guard lock(mutex_);
    if (bytes > 0) {
      int64_t& known = kept_[memory];
      sum_ += bytes - std::exchange(known, bytes);
    } else if (const auto found = kept_.find(memory); found != kept_.end()) {
      sum_ -= found->second;
      kept_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t sum() const {
    const std::lock_guard lock(mutex_);
    return sum_;
  }

 private:
  const c10::DeviceType device_;
  mutable std::mutex mutex_;                 // guards kept_ and sum_
  std::unordered_map<void*, int64_t> kept_;  // bytes of each block
  int64_t sum_ = 0;
};

KeptAllocations::KeptAllocations(c10::DeviceType device)
    : report_(std::make_shared<Report>(device)), guard_(kKind, report_) {}

int64_t KeptAllocations::bytes() const { return report_->sum(); }

UncountedAllocations::UncountedAllocations()
    : guard_(kKind, [] {
        static const auto none = std::make_shared<NoReport>();
        return none;
      }()) {}

}  // namespace scalelab::trainer
