// Interprets failures of Slurm's programs. The functions are pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/command/command.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct Refusal {
  absl::Status status;     // with the codes of Scheduler::Submit; one sentence that contains Slurm's message
  bool may_exist = false;  // Slurm may have accepted the job nevertheless
};

// Interprets the result of an sbatch that printed no job id.
Refusal InterpretFailure(const CommandResult& result, const JobRequest& request);

// Returns whether one of a program's messages says that Slurm could not be reached or has not answered.
// Another try may then succeed, whatever the other messages are.
bool MayPass(absl::string_view messages);

// Returns why a program failed, in one line: its error messages, or that it was killed.
std::string FailureReason(const CommandResult& result);

// Describes the resources of a job: "2 nodes with 4 ranks of 1 core each".
std::string Shape(const JobRequest& request);

}  // namespace scalelab::server
