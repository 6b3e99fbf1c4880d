// Generates the batch script of an allocation. The functions are pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct SlurmScriptOptions {
  std::string runs_dir;        // absolute; visible on every node
  std::string worker_program;  // absolute path of scalelab-worker; visible on every node
  std::string server_address;  // HOST:PORT that workers dial
  // sbatch options of the site for every job: name without dashes, value (empty: the option takes none). The
  // options of a study come later in the script, so they take precedence.
  std::vector<std::pair<std::string, std::string>> site_options;
  std::string server_certificate = {};  // what workers trust, PEM; empty: the authorities of their system
};

// Returns the directory of an allocation's script and of the output of its job.
std::string AllocationDirectory(const SlurmScriptOptions& options, const std::string& token);

// Returns the script for sbatch. The job's name, its dependency and --no-requeue are not in the script
// but on sbatch's command line, which takes precedence over the options of a study. The secret is only
// in sbatch's environment.
std::string SlurmScript(const SlurmScriptOptions& options, const JobRequest& request);

}  // namespace scalelab::server
