#include "server/noise/references.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/statistics.h"

namespace scalelab::server {
namespace {

constexpr size_t kLeast = 5, kMost = 32;
constexpr double kDeviations = 5 * 1.4826;
// Smaller differences also occur on quiet nodes.
constexpr double kComputeFloor = 0.05, kMemoryFloor = 0.10, kReduceFloor = 0.20;  // relative to the median
constexpr double kPressureFloor = 0.2, kStealFloor = 0.05;                        // shares of time
constexpr double kThrottleFloor = 0.5;                                            // number of events
// Limit of the number of nodes, above the size of a cluster. Attempts on further nodes are not compared.
constexpr size_t kMostNodes = 20'000;

using Time = std::pair<int64_t, int32_t>;
Time TimeOf(const v1::Calibration& calibration) {
  return {calibration.time().seconds(), calibration.time().nanos()};
}

// Returns the largest value inside the band of `earlier`, or `floor` if there is no band.
double Limit(std::vector<double> earlier, double floor) {
  const auto band = BandOf(std::move(earlier), 0);
  return band ? std::max(band->median + band->width, floor) : floor;
}

std::vector<double> Copy(const std::deque<double>& values) { return {values.begin(), values.end()}; }

template <class Value>
void Keep(std::deque<Value>& values, const Value& value) {
  values.push_back(value);
  if (values.size() > kMost) values.pop_front();
}

}  // namespace

std::optional<Band> BandOf(std::vector<double> values, double floor) {
  if (values.size() < kLeast) return std::nullopt;
  Band band;
  band.median = analysis::Median(values);
  for (double& value : values) value = std::abs(value - band.median);
  band.width = std::max(kDeviations * analysis::Median(values), floor);
  return band;
}

double LoadFloor(int cpus) { return std::clamp(0.5 / std::max(cpus, 1), 0.02, 0.25); }

void NoiseVerdict::Add(double deviation, std::string reason) {
  severity = std::max(severity, deviation);
  reasons.push_back(std::move(reason));
}

void NoiseReferences::JudgeCalibration(const Node* node, const v1::Calibration& calibration,
                                       const std::string& when, int cpus, NoiseVerdict& verdict) const {
  std::vector<double> compute, memory, reduce, load, pressure;
  if (node != nullptr) {
    for (const v1::Calibration& earlier : node->calibrations) {
      if (TimeOf(earlier) >= TimeOf(calibration)) continue;
      compute.push_back(earlier.compute_rate());
      memory.push_back(earlier.memory_rate());
      if (earlier.has_all_reduce_rate()) reduce.push_back(earlier.all_reduce_rate());
      if (earlier.has_other_load()) load.push_back(earlier.other_load());
      if (earlier.has_cpu_pressure()) pressure.push_back(earlier.cpu_pressure());
    }
  }
  const auto slower = [&](std::vector<double> values, double floor, double value, const char* what) {
    const auto band = BandOf(values, 0);
    if (!band || band->median <= 0) return;
    const double width = std::max(band->width, floor * band->median);
    if (value >= band->median - width) return;
    verdict.Add((band->median - value) / width,
                absl::StrFormat("%s, %s was %.0f%% slower than usual (up to %.0f%% is normal)", when, what,
                                100 * (1 - value / band->median), 100 * width / band->median));
  };
  slower(compute, kComputeFloor, calibration.compute_rate(), "one core");
  slower(memory, kMemoryFloor, calibration.memory_rate(), "memory");
  if (calibration.has_all_reduce_rate())
    slower(std::move(reduce), kReduceFloor, calibration.all_reduce_rate(), "an all-reduce on the node");
  const auto more = [&](std::vector<double> values, double floor, double value, const char* what) {
    const double limit = Limit(std::move(values), floor);
    if (value > limit)
      verdict.Add(value / limit, absl::StrFormat("%s, %s %.0f%% of the time (up to %.0f%% is normal)", when,
                                                 what, 100 * value, 100 * limit));
  };
  if (calibration.has_other_load())
    more(std::move(load), LoadFloor(cpus), calibration.other_load(), "other processes used the CPUs");
  if (calibration.has_cpu_pressure())
    more(std::move(pressure), kPressureFloor, calibration.cpu_pressure(), "processes waited for a CPU");
}

NoiseVerdict NoiseReferences::Judge(const v1::NodeNoise& noise, int cpus) const {
  const auto it = nodes_.find(noise.node());
  const Node* node = it == nodes_.end() ? nullptr : &it->second;
  NoiseVerdict verdict;
  if (noise.has_before()) JudgeCalibration(node, noise.before(), "before the attempt", cpus, verdict);
  const auto during = [&](const std::deque<double> Node::*values, double floor, double value,
                          const char* what) {
    const double limit = Limit(node == nullptr ? std::vector<double>() : Copy(node->*values), floor);
    if (value > limit)
      verdict.Add(value / limit,
                  absl::StrFormat("during the attempt, %s %.0f%% of the CPUs' time (up to %.0f%% is normal)",
                                  what, 100 * value, 100 * limit));
  };
  if (noise.has_other_load())
    during(&Node::load, LoadFloor(cpus), noise.other_load(), "other processes used");
  if (noise.has_steal()) during(&Node::steal, kStealFloor, noise.steal(), "the hypervisor took");
  if (noise.has_throttle_events()) {
    const double limit =
        Limit(node == nullptr ? std::vector<double>() : Copy(node->throttle), kThrottleFloor);
    const auto events = static_cast<double>(noise.throttle_events());
    if (events > limit)
      verdict.Add(events / limit,
                  absl::StrCat("during the attempt, the CPUs were slowed down because of heat ",
                               noise.throttle_events(), " times"));
  }
  if (noise.has_after()) JudgeCalibration(node, noise.after(), "after the attempt", cpus, verdict);
  return verdict;
}

void NoiseReferences::Add(const v1::NodeNoise& noise) {
  if (noise.node().empty() || (nodes_.size() >= kMostNodes && !nodes_.contains(noise.node()))) return;
  Node& node = nodes_[noise.node()];
  for (const v1::Calibration* calibration :
       {noise.has_before() ? &noise.before() : nullptr, noise.has_after() ? &noise.after() : nullptr}) {
    if (calibration == nullptr) continue;
    // Several short attempts may share a calibration; add it once.
    const bool known = !node.calibrations.empty() && TimeOf(node.calibrations.back()) >= TimeOf(*calibration);
    if (!known) Keep(node.calibrations, *calibration);
  }
  if (noise.has_other_load()) Keep(node.load, noise.other_load());
  if (noise.has_steal()) Keep(node.steal, noise.steal());
  if (noise.has_throttle_events()) Keep(node.throttle, static_cast<double>(noise.throttle_events()));
}

}  // namespace scalelab::server
