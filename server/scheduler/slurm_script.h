// The batch script of an allocation. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct SlurmScriptOptions {
  std::string runs_dir;        // absolute; every node sees it
  std::string worker_program;  // absolute path of scalelab-worker; every node sees it
  std::string server_address;  // what workers dial, HOST:PORT
  // sbatch options of the site for every job: name without dashes, value (empty: the option takes none).
  // Those of a study come after them and so win.
  std::vector<std::pair<std::string, std::string>> site_options;
};

// Where an allocation keeps its script and the output of its job.
std::string AllocationDirectory(const SlurmScriptOptions& options, const std::string& token);

// What sbatch reads. The job's name, its dependency and that it is not requeued stand on sbatch's command
// line, where no option of a study reaches; the secret travels in sbatch's environment and stands nowhere.
std::string SlurmScript(const SlurmScriptOptions& options, const JobRequest& request);

}  // namespace scalelab::server
