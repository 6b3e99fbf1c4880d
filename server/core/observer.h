// The interface through which the coordinator reports its commits and its calls of the scheduler.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "db/store.h"

namespace scalelab::server {

enum class SchedulerCall : int { kSubmit = 0, kCancel = 1, kPoll = 2, kView = 3 };

// May be called from any thread. The calls must not block.
class CoreObserver {
 public:
  virtual ~CoreObserver() = default;
  // A commit has taken this long, and ended with `status`.
  virtual void Committed(const db::WriteBatch& batch, absl::Duration took, const absl::Status& status) = 0;
  // A call of the scheduler has taken this long, and ended with `status`.
  virtual void SchedulerCalled(SchedulerCall call, absl::Duration took, const absl::Status& status) = 0;
};

}  // namespace scalelab::server
