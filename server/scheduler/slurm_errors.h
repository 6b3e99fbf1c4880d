// What it means that sbatch failed. Pure.
#pragma once

#include "absl/status/status.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/slurm_commands.h"

namespace scalelab::server {

struct Refusal {
  absl::Status status;  // as Scheduler::Submit promises; one sentence with Slurm's own words
  bool open = false;    // Slurm may have taken the job all the same
};

// `result` is that of an sbatch that gave no job id.
Refusal Refused(const CommandResult& result, const JobRequest& request);

// "2 nodes with 4 ranks of 1 core each"
std::string Shape(const JobRequest& request);

}  // namespace scalelab::server
