// Runs the script of node_checks.h in a Slurm job on a node, or on this machine.
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
  absl::Duration limit = absl::Minutes(2);    // the job is cancelled if it has not ended after this time
  std::function<void(absl::Duration)> sleep;  // waits between two queries of the queue; tests replace it
  std::function<absl::Duration()> now;        // a clock that is never set back; tests replace it
  bool as_user = false;  // this process has the account of a user, and not that of the service
};

// Creates a directory below `runs_dir`, runs the job, interprets its output and removes the directory. If no
// process listens on `worker_server`, this function listens there while the job runs.
Findings RunTestJob(const Run& run, const TestJob& job);

}  // namespace scalelab::server::doctor
