// Measures the load of the node from the start to the end of an attempt.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"
#include "worker/noise/counters.h"

namespace scalelab::worker {

// The counters of the node at two times.
struct NodeUse {
  Counters before, after;
  std::optional<double> own_before, own_after;  // CPU seconds of the attempt's processes
  double seconds = 0;
};

// Sets other_load, steal and throttle_events. Leaves out those whose counters are not known.
void SetUse(const NodeUse& use, v1::NodeNoise* noise);

class AttemptMeter {
 public:
  // Returns the CPU seconds that the attempt's processes have used on this node so far. May be
  // an empty function.
  using OwnCpu = std::function<std::optional<double>()>;

  void Start(std::vector<int> cpus, OwnCpu own_cpu);
  // Sets the values measured since Start. Does nothing if Start was not called, or not since the last Finish.
  void Finish(v1::NodeNoise* noise);

 private:
  bool started_ = false;
  std::vector<int> cpus_;
  OwnCpu own_cpu_;
  NodeUse use_;
  absl::Duration started_at_;
};

}  // namespace scalelab::worker
