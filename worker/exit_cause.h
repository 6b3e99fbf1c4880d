// Why an attempt's processes ended as they did, as far as the node can tell.
#pragma once

#include <string>

#include "scalelab/v1/run.pb.h"
#include "worker/process/process.h"

namespace scalelab::worker {

struct ExitCause {
  v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED;  // unspecified: let the events tell
  std::string message;                                        // one sentence
};

// Of a job that ended with a status other than 0; reads the outputs in the attempt's directory. `launcher`:
// LaunchPlan::launcher.
ExitCause JudgeExit(const JobResult& result, const std::string& launcher, int ranks,
                    const std::string& directory);

// The last line of a file that holds more than spaces, at most 300 bytes of it and valid UTF-8; empty when
// there is none.
std::string LastWords(const std::string& path);

}  // namespace scalelab::worker
