#include "worker/noise/attempt_meter.h"

#include <algorithm>
#include <utility>

#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

// Shortest time in seconds for shares of CPU time. The kernel counts CPU time in ticks of 10 ms, which are
// too coarse for shorter times.
constexpr double kShortest = 1;

}  // namespace

void SetUse(const NodeUse& use, v1::NodeNoise* noise) {
  if (use.before.throttle && use.after.throttle)
    noise->set_throttle_events(*use.after.throttle - *use.before.throttle);
  if (!use.before.cpu || !use.after.cpu || use.seconds < kShortest) return;
  const CpuTimes &from = *use.before.cpu, &to = *use.after.cpu;
  const double total = to.total() - from.total();
  if (total <= 0) return;
  noise->set_steal(std::clamp((to.steal - from.steal) / total, 0.0, 1.0));
  if (!use.own_before || !use.own_after) return;
  const double other = to.busy - from.busy - (*use.own_after - *use.own_before);
  noise->set_other_load(std::clamp(other / total, 0.0, 1.0));
}

void AttemptMeter::Start(std::vector<int> cpus, OwnCpu own_cpu) {
  started_ = true;
  cpus_ = std::move(cpus);
  own_cpu_ = std::move(own_cpu);
  started_at_ = SteadyNow();
  use_.before = ReadCounters(cpus_);
  if (own_cpu_) use_.own_before = own_cpu_();
}

void AttemptMeter::Finish(v1::NodeNoise* noise) {
  if (!std::exchange(started_, false)) return;
  use_.after = ReadCounters(cpus_);
  if (own_cpu_) use_.own_after = own_cpu_();
  use_.seconds = absl::ToDoubleSeconds(SteadyNow() - started_at_);
  SetUse(use_, noise);
}

}  // namespace scalelab::worker
