// Runs the script of node_checks.h on a node: as a job of Slurm, or on this machine.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

struct TestJob {
  bool slurm = false;
  std::vector<std::pair<std::string, std::string>> sbatch_options;
  std::string worker_program, version, runs_dir;
  std::string worker_server;                  // HOST:PORT; empty: a socket on the same machine
  absl::Duration limit = absl::Minutes(2);    // a job that has not ended by then is cancelled
  std::function<void(absl::Duration)> sleep;  // waits between two looks at the queue; tests replace it
};

// Creates a directory below `runs_dir`, runs the job, interprets its output and removes what it has created. If nothing
// listens on `worker_server`, listens there while the job runs.
Findings RunTestJob(const Run& run, const TestJob& job);

}  // namespace scalelab::server::doctor
