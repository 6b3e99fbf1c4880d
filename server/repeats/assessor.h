// Decides whether the results of studies with adaptive_repeats are precise enough, on a thread of its own.
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/core/effects.h"
#include "server/rpc/call_pool.h"

namespace scalelab::server {

// Computes the curve of a study from its blocks that are complete, and compares its widest interval with the
// study's rule. Reads the database.
absl::StatusOr<Assessment> AssessStudy(db::Store& store, const AssessRequest& request);

class Assessor {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Assessment>)>;

  // `store` must outlive this object.
  explicit Assessor(db::Store& store) : store_(store) {}

  // Calls `done` with the assessment, once, on the thread of this object; or with an error on the calling
  // thread if too many requests wait.
  void Assess(const AssessRequest& request, Done done);
  // As CallPool::Stop.
  bool Stop(absl::Duration grace) { return pool_.Stop(grace); }

 private:
  db::Store& store_;
  CallPool pool_{"assessments of results", 1, 4096};
};

}  // namespace scalelab::server
