// The effects of decisions: rows to commit, and then actions to execute.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "db/store.h"
#include "server/core/event_reader.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// Requests a decision on whether a study with adaptive_repeats needs further blocks.
struct AssessRequest {
  int64_t study_id = 0;
  int blocks = 0;  // number of complete blocks
};

// The decision whether the results of a study are precise enough.
struct Assessment {
  bool enough = false;
  std::string reason;  // one sentence
};

struct Effects {
  db::WriteBatch batch;
  std::vector<JobRequest> submit;     // jobs to submit to the scheduler; their secrets are not set
  std::vector<std::string> cancel;    // tokens of jobs to cancel
  std::vector<EventRequest> read;     // event files to read
  std::vector<AssessRequest> assess;  // results to assess
  std::vector<std::string> warnings;  // messages for the log
  bool poll = false;                  // poll the scheduler now
  std::set<int64_t> woken;            // allocations whose desired state changed
  std::set<int64_t> changed_studies;  // studies whose watchers to call

  bool empty() const {
    return batch.empty() && submit.empty() && cancel.empty() && read.empty() && assess.empty() &&
           woken.empty() && !poll;
  }
};

}  // namespace scalelab::server
