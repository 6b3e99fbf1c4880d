// Probes whether an engine works on this machine. Blocks, so do not call it on the core thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "catalog/engines.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::server {

struct ProbeOptions {
  std::string adapters;  // directory of the adapters and of probe.py
  std::string trainer;   // path of scalelab-trainer, for the native engines
  absl::Duration timeout = absl::Seconds(60);
  int cancel = -1;  // a descriptor that ends the probe when it is readable; -1: none
};

// Probes an engine: with an adapter, runs `python probe.py ENGINE` in its environment; native/* runs the
// trainer with --version; custom is always usable. Errors become the reason why the engine is not usable.
v1::Framework ProbeEngine(const Engine& engine, const v1::FrameworkEnvironment& environment,
                          const ProbeOptions& options);

// Returns everything that the result of ProbeEngine depends on, as text: resolved paths and
// their modification times.
std::string ProbeStamp(const Engine& engine, const v1::FrameworkEnvironment& environment,
                       const ProbeOptions& options);

}  // namespace scalelab::server
