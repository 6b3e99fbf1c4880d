// `scalelabd doctor`: checks everything that the service needs.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "server/doctor/facts.h"
#include "server/doctor/finding.h"

namespace scalelab::server::doctor {

// The configuration to check, see server/config.h.
struct Subject {
  std::string mistake;  // why the configuration is invalid; if not empty, only the machine is checked
  std::string data_dir, runs_dir;
  std::vector<std::string> listen;
  mode_t socket_mode = 0600;
  std::string metrics, web;                             // loopback addresses; empty: not served
  std::string tls_certificate, tls_key, tls_authority;  // files; empty: not set
  bool insecure = false;                                // TCP without TLS
  std::string munge_socket;                             // empty: that of the system
  std::string sendmail;                                 // program that sends mail; empty: not checked
  std::vector<std::pair<std::string, std::string>> notify_commands;  // names and programs
  std::string scheduler, worker_server, worker_program, version;
  bool users_submit = false;  // jobs_run_as: user, so that agents submit the jobs under the users' accounts
  std::vector<std::pair<std::string, std::string>> sbatch_options;
  bool rollback_journal = false;
  bool test_job = false;  // run a job too
  // With users_submit: the account under which the test job is submitted. Empty: that of this process.
  std::string job_user = {};
};

// `run` runs the programs. If `subject.job_user` is not empty, this process has that account when the function returns.
Findings Examine(const Subject& subject, const Run& run);

}  // namespace scalelab::server::doctor
