// What a worker has to do so that what is becomes what should be. Pure: no processes, no time, no RPC.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

// An attempt as the decision sees it.
//
//   (unknown) --begin--> live --stop--> live, stopping --> ended --forget--> (unknown)
//                          \______________________________/
struct LocalAttempt {
  std::string token;
  bool ended = false;     // reported as ENDED, or nothing of it left to do
  bool stopping = false;  // has been told to stop
};

struct Action {
  enum class Kind {
    kBegin,    // prepare and launch; if it is to be stopped already, only say that it has ended
    kStop,     // end its processes; it still reports
    kForget,   // has ended and is not wanted any more
    kAbandon,  // end its processes and forget it; nobody wants its events
  };
  Kind kind;
  std::string token;
  const v1::SynchronizeResponse::DesiredAttempt* desired = nullptr;  // kBegin: points into the response
  absl::Duration grace;                                              // kStop, kAbandon
  bool operator==(const Action&) const = default;
};

// Actions in the order of the response. `leaving`: nothing new is begun.
std::vector<Action> Decide(const std::vector<LocalAttempt>& local, const v1::SynchronizeResponse& desired,
                           bool leaving);

// Time between TERM and KILL that a desired attempt asks for.
absl::Duration GraceOf(const v1::SynchronizeResponse::DesiredAttempt& desired);

}  // namespace scalelab::worker
