// The effects of decisions: rows to commit first, then actions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "db/store.h"
#include "server/core/event_reader.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct Effects {
  db::WriteBatch batch;
  std::vector<JobRequest> submit;     // jobs to submit to the scheduler; their secrets are not set
  std::vector<std::string> cancel;    // tokens of jobs to cancel
  std::vector<EventRequest> read;     // event files to read
  std::vector<std::string> warnings;  // for the log
  bool poll = false;                  // poll the scheduler now
  std::set<int64_t> woken;            // allocations whose desired state changed
  std::set<int64_t> changed_studies;  // for watchers

  bool empty() const {
    return batch.empty() && submit.empty() && cancel.empty() && read.empty() && woken.empty() && !poll;
  }
};

}  // namespace scalelab::server
