// Decides which actions bring the worker's attempts to the desired state. Pure: no processes, no
// time, no RPC.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// An attempt of this worker, as input of the decision.
//
//  (unknown) --begin--> live --stop--> live, stopping --> ended --forget--> (unknown)
//                         \_____ all processes end ______/
struct LocalAttempt {
  std::string token;
  bool ended = false;     // it has ended, which is reported as ENDED
  bool stopping = false;  // a stop was requested
};

struct Action {
  enum class Kind {
    kBegin,    // prepare and launch the attempt; if the server already requests its stop, end it at once
    kStop,     // end its processes; its events and its end are still reported
    kForget,   // remove an ended attempt that is no longer desired
    kAbandon,  // end its processes, then remove it without reporting its events
  };
  Kind kind;
  std::string token;
  const v1::SynchronizeResponse::DesiredAttempt* desired = nullptr;  // kBegin: points into the response
  absl::Duration grace;                                              // kStop, kAbandon
  bool finished = false;  // kStop: the ranks have ended without an error on the first node
  bool operator==(const Action&) const = default;
};

// Returns the actions: first those for attempts in the response, in its order, then those for attempts that
// are not in the response. If `leaving`, begins no attempt.
std::vector<Action> Decide(const std::vector<LocalAttempt>& local, const v1::SynchronizeResponse& desired,
                           bool leaving);

// The time between SIGTERM and SIGKILL for a desired attempt.
absl::Duration GraceOf(const v1::SynchronizeResponse::DesiredAttempt& desired);

}  // namespace scalelab::worker
