#include "worker/noise/calibration.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/time/clock.h"
#include "worker/noise/counters.h"
#include "worker/noise/node_all_reduce.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

constexpr size_t kElements = size_t{1} << 20;  // 8 MiB in each array: more than the caches of most cores
constexpr size_t kPart = size_t{1} << 15;      // elements between two readings of the clock
constexpr int kIterations = 20'000;            // iterations between two readings of the clock
// An idle core needs some time to reach its full frequency.
constexpr double kWarmUp = 0.1;    // share of the time of a loop
constexpr double kReducing = 0.2;  // share of the budget for all-reduces

double Now() { return absl::ToDoubleSeconds(SteadyNow()); }

double OwnCpu() {
  timespec own{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
  return static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) / 1e9;
}

// Repeats `part`, which returns the amount of its work, until `end`. Returns the work per second
// after the warm-up.
template <class Part>
double Rate(double begin, double end, const std::atomic<bool>& stop, const Part& part) {
  const double measured = begin + kWarmUp * (end - begin);
  double work = 0, since = begin, now = begin;
  bool warm = false;
  do {
    work += part();
    now = Now();
    if (!warm && now >= measured && now < end) {  // if it is too late for that, use the rate of the warm-up
      warm = true;
      work = 0;
      since = now;
    }
  } while (now < end && !stop.load(std::memory_order_relaxed));
  return now > since ? work / (now - since) : 0;
}

double ComputeRate(double begin, double end, const std::atomic<bool>& stop) {
  uint64_t bits = 88172645463325252;
  double sum = 1;
  const double rate = Rate(begin, end, stop, [&] {
    for (int i = 0; i < kIterations; ++i) {
      bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;  // xorshift64 (Marsaglia 2003)
      sum = sum * 0.999999 + static_cast<double>(bits >> 40);
    }
    return static_cast<double>(kIterations);
  });
  volatile double used = sum;  // the compiler may not leave out the loop
  (void)used;
  return rate / 1e6;
}

// Arrays whose pages are resident, because the constructor writes to them.
struct Arrays {
  Arrays() : a(new double[3 * kElements]) { std::fill_n(a.get(), 3 * kElements, 1.0); }
  std::unique_ptr<double[]> a;
};

double MemoryRate(double end, const std::atomic<bool>& stop) {
  Arrays arrays;
  double* a = arrays.a.get();
  const double* b = a + kElements;
  const double* c = b + kElements;
  size_t at = 0;
  const double begin = Now();
  const double rate = Rate(begin, std::max(end, begin), stop, [&] {
    for (size_t i = at; i < at + kPart; ++i) a[i] = b[i] + 3.0 * c[i];
    at = (at + kPart) % kElements;
    return static_cast<double>(kPart);
  });
  volatile double used = a[0];
  (void)used;
  return rate * 3 * sizeof(double);
}

void SetTime(google::protobuf::Timestamp* time) {
  const int64_t nanos = absl::ToUnixNanos(absl::Now());
  time->set_seconds(nanos / 1'000'000'000);
  time->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

}  // namespace

v1::Calibration Calibrate(absl::Duration budget, const std::vector<int>& cpus,
                          const std::atomic<bool>& stop) {
  const double length = absl::ToDoubleSeconds(budget);
  const double reducing = cpus.size() > 1 ? kReducing * length : 0;
  const Counters before = ReadCounters(cpus);
  const double begin = Now(), own = OwnCpu();
  v1::Calibration calibration;
  calibration.set_compute_rate(ComputeRate(begin, begin + (length - reducing) / 2, stop));
  calibration.set_memory_rate(MemoryRate(begin + length - reducing, stop));
  const double wall = Now() - begin, used = OwnCpu() - own;
  const Counters after = ReadCounters(cpus);
  if (before.cpu && after.cpu && wall > 0) {
    const double other = after.cpu->busy - before.cpu->busy - used;
    calibration.set_other_load(std::clamp(other / (wall * static_cast<double>(cpus.size())), 0.0, 1.0));
  }
  if (before.pressure && after.pressure && wall > 0)
    calibration.set_cpu_pressure(std::clamp((*after.pressure - *before.pressure) / wall, 0.0, 1.0));
  // The all-reduce comes after the second reading of the counters: they would count the kernel's work for it
  // as the load of other processes.
  if (reducing > 0) {
    if (const auto rate = NodeAllReduceRate(absl::Seconds(reducing), stop))
      calibration.set_all_reduce_rate(*rate);
  }
  SetTime(calibration.mutable_time());
  return calibration;
}

}  // namespace scalelab::worker
