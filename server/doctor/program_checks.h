// Checks that run other programs: MUNGE, systemd, the worker's programs and Slurm. The parameter `run` runs
// the programs, so that tests can replace them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// Checks that munge makes a credential and unmunge accepts it. `socket` is the socket of munged; ""
// means its default.
Finding CheckMunge(const Run& run, const std::string& socket);

// Checks the systemd unit scalelabd.service. Returns nothing on a machine without systemd.
Findings CheckUnit(const Run& run);

// Returns whether setuid and setgid bits have no effect on programs that the unit scalelabd.service starts. Returns false
// on a machine without systemd.
bool UnitIgnoresSetuid(const Run& run);

// Checks that scalelab-worker starts, has the version of scalelabd, and finds the programs and libraries
// that it needs. The programs may be scripts; if scalelab-worker is one, the other programs need not be here.
Findings CheckWorkerPrograms(const Run& run, const std::string& worker_program, const std::string& version);

// Checks Slurm's programs and its controller, MUNGE and the partitions. Also checks that this account may submit
// jobs with `sbatch_options`, which are pairs of a name without dashes and a value, unless `users_submit` is true.
Findings CheckSlurm(const Run& run, const std::vector<std::pair<std::string, std::string>>& sbatch_options,
                    bool users_submit);

// Returns the arguments for sbatch: --name=value, or --name for an option without a value.
std::vector<std::string> SbatchArguments(const std::vector<std::pair<std::string, std::string>>& options);

// Returns why a program failed, in one line.
std::string WhyFailed(const absl::StatusOr<CommandResult>& result);

}  // namespace scalelab::server::doctor
