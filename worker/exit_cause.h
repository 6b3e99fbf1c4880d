// Determines why an attempt's processes failed, as far as the node can tell.
#pragma once

#include <string>

#include "scalelab/v1/run.pb.h"
#include "worker/process/process.h"

namespace scalelab::worker {

struct ExitCause {
  // CAUSE_UNSPECIFIED means that the coordinator determines the cause from the events.
  v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED;
  std::string message;  // one sentence
};

// Determines the cause of a job that ended with a status other than 0, from its result and the output files
// in the attempt's directory. `launcher` is LaunchPlan::launcher, `ranks` the number of ranks. `torchrun`: torchrun
// starts the ranks, so the tasks of srun are nodes.
ExitCause JudgeExit(const JobResult& result, const std::string& launcher, int ranks,
                    const std::string& directory, bool torchrun = false);

// Returns the last line of the file that is not blank: at most 300 bytes, valid UTF-8. Empty if there is none
// or the file cannot be read.
std::string LastWords(const std::string& path);

}  // namespace scalelab::worker
