// What a decision leads to: rows to make durable first, then things to do outside.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "db/store.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

struct Effects {
  db::WriteBatch batch;
  std::vector<JobRequest> submit;     // jobs to ask the scheduler for; without their secrets
  std::vector<std::string> cancel;    // tokens of jobs to end
  bool poll = false;                  // the scheduler is to be asked now
  std::set<int64_t> woken;            // allocations whose desired state changed
  std::set<int64_t> changed_studies;  // for watchers

  bool empty() const { return batch.empty() && submit.empty() && cancel.empty() && woken.empty() && !poll; }
};

}  // namespace scalelab::server
