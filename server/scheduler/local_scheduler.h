// The embedded scheduler for one machine: starts a scalelab-worker per job when its slots are free, first
// come first served, like a one-node cluster. Workers survive the coordinator and are found again by their
// lock files.
//
// <directory>/<token>/lock is locked (flock) by the worker and the process that minds its children, and holds
// the worker's process id: a job is alive exactly as long as the lock is held, so "ended" also means that no
// process of it is left. Jobs that wait for slots are known to this process only; after a restart Poll says
// kUnknown and the coordinator asks again. <directory>/<token>/job.json remembers what a job holds and how it
// ended.
//
// It looks at nodes (1), ranks_per_node, cpus_per_rank, gpus_per_rank, exclusive (the whole machine; each
// rank is bound to cores of its own, where there are enough) and time_limit; partition, memory_mib and
// options are for schedulers that have such things. A job with GPUs finds them in CUDA_VISIBLE_DEVICES.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct LocalSchedulerOptions {
  std::string directory;          // where jobs keep lock and worker.log; made when absent
  std::string worker_program;     // path of scalelab-worker
  std::string server_address;     // what workers dial, for example "unix:/data/scalelab.sock"
  int slots = 1;                  // ranks times cores each that may run at once
  std::function<void()> changed;  // called from any thread when some job's status changed: poll now
  int gpus = -1;                  // GPUs that may be given out; -1: those that this process sees
  absl::Duration kill_after = absl::Seconds(10);  // from SIGTERM to SIGKILL of a worker that is to end
};

// Finds the jobs that an earlier process started in `directory` and that still live. Its end leaves workers
// running.
absl::StatusOr<std::unique_ptr<Scheduler>> NewLocalScheduler(LocalSchedulerOptions options);

}  // namespace scalelab::server
