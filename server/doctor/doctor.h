// `scalelabd doctor`: checks everything that the service needs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// The configuration to check, see server/config.h.
struct Subject {
  std::string mistake;  // why the configuration is invalid; if not empty, only the machine is checked
  std::string data_dir, runs_dir;
  std::vector<std::string> listen;
  std::string scheduler, worker_server, worker_program, version;
  std::vector<std::pair<std::string, std::string>> sbatch_options;
  bool rollback_journal = false;
  bool test_job = false;  // run a job too
};

Findings Examine(const Subject& subject);

}  // namespace scalelab::server::doctor
