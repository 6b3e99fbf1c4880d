// The embedded scheduler for one machine: starts a scalelab-worker per job when its slots are free, first come first
// served, like a one-node cluster. Workers survive the coordinator and are found again by their lock files.
//
// <directory>/<token>/lock is locked (flock) by the worker and the process that minds its children, and holds the
// worker's process id: a job is alive exactly as long as the lock is held, so "ended" also means that no process of it
// is left. Jobs that wait for slots are known to this process only; after a restart Poll says kUnknown and the
// coordinator asks again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/scheduler.h"

namespace scalelab::server {

struct LocalSchedulerOptions {
  std::string directory;         // where jobs keep lock and worker.log; made when absent
  std::string worker_program;    // path of scalelab-worker
  std::string server_address;    // what workers dial, for example "unix:/data/scalelab.sock"
  int slots = 1;                 // ranks times cores each that may run at once
  std::function<void()> changed; // called from any thread when some job's status changed: poll now
};

absl::StatusOr<std::unique_ptr<Scheduler>> NewLocalScheduler(LocalSchedulerOptions options);

}  // namespace scalelab::server
