// The embedded scheduler for one machine, which acts like a cluster with one node. It starts one
// scalelab-worker per job in the order of submission, when enough slots are free. Workers survive the
// coordinator and are found again by their lock files.
//
// Each job has a folder <directory>/<token>:
//   lock      locked (flock) by the worker and by the process that supervises the worker's children;
//             contains the worker's process id. The job is alive exactly as long as the lock is held, so no
//             process of an ended job is left.
//   job.json  what the job holds, and how it ended.
// An empty file <directory>/.live/<token> marks a job that may be alive, so that a start need not examine all
// jobs that have ever been.
// Pending jobs exist only in memory: after a restart Poll returns kUnknown and the coordinator
// submits them again.
//
// Of a request it uses nodes (must be 1), ranks_per_node, cpus_per_rank, gpus_per_rank, exclusive (the whole
// machine; each rank is bound to separate cores where there are enough) and time_limit. It ignores partition,
// memory_mib and options. A job with GPUs finds them in CUDA_VISIBLE_DEVICES.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct LocalSchedulerOptions {
  std::string directory;           // the folders of jobs; created when absent
  std::string worker_program;      // path of scalelab-worker
  std::string server_address;      // the address that workers dial, for example "unix:/data/scalelab.sock"
  std::string server_certificate;  // what workers trust, PEM; empty: the authorities of their system
  int slots = 1;                   // cores for all running jobs: ranks times cores per rank
  std::function<void()> changed;   // called from any thread when the status of a job changed
  int gpus = -1;                   // GPUs for all jobs; -1: those that are visible to this process
  absl::Duration kill_after = absl::Seconds(10);  // from SIGTERM to SIGKILL
};

// Creates the scheduler, which takes over the jobs that an earlier process started in `directory` and that
// are still alive. Its destructor leaves workers running.
absl::StatusOr<std::unique_ptr<Scheduler>> NewLocalScheduler(LocalSchedulerOptions options);

}  // namespace scalelab::server
