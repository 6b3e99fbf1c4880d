// How an attempt ended, from what its ranks wrote and what its worker saw. Pure.
#pragma once

#include <string>
#include <vector>

#include "db/records.h"
#include "server/core/state.h"

namespace scalelab::server {

struct Outcome {
  db::AttemptState state = db::AttemptState::kFailed;
  db::Cause cause = db::Cause::kNone;
  std::string message;
  std::string parameter_hash;
};

// For an attempt that was not stopped by us. The first that holds decides: a rank out of memory; the cause
// the worker saw; an error a rank wrote; an exit status that is not 0; a rank without finish; hashes that
// differ.
Outcome Judge(const std::vector<RankState>& ranks, const v1::SynchronizeRequest::AttemptStatus& status);

// Results from the ranks' finish metrics: figures over all ranks from rank 0, memory the largest of any rank.
db::RunSummary Summarize(int64_t run_id, int64_t attempt_id, const std::vector<RankState>& ranks,
                         const std::string& fingerprint);

// Hash (16 hex digits) of what may make two runs' figures incomparable: CPU and GPU models, cores, software.
std::string Fingerprint(const std::vector<v1::NodeInfo>& nodes);

// What the nodes were and ran, as a JSON array.
std::string ProvenanceJson(const std::vector<v1::NodeInfo>& nodes);

// Whether a failure for this cause is tried again under `retry`.
bool Retries(const v1::Retry& retry, db::Cause cause);

}  // namespace scalelab::server
