// One look at one engine: does it run on this machine? Blocks, so not for the core thread.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "catalog/engines.h"
#include "scalelab/v1/cluster.pb.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::server {

struct ProbeOptions {
  std::string adapters;  // directory of the adapters and of probe.py
  std::string trainer;   // program of the native engines
  absl::Duration limit = absl::Seconds(60);
  int cancel = -1;  // a descriptor: when it can be read, the look is given up; -1: none
};

// Of an engine with an adapter runs `python probe.py ENGINE` in its environment, of native/* asks the trainer
// for its versions; custom always runs. Never fails: what goes wrong is the reason why the engine cannot run.
v1::Framework ProbeEngine(const Engine& engine, const v1::FrameworkEnvironment& environment,
                          const ProbeOptions& options);

// What the answer of ProbeEngine depends on, as text: the places behind all links and when they were changed.
std::string ProbeStamp(const Engine& engine, const v1::FrameworkEnvironment& environment,
                       const ProbeOptions& options);

}  // namespace scalelab::server
