// Determines how an attempt ended, from its ranks' events and its worker's report. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "db/records.h"
#include "server/core/state.h"
#include "server/runs/provenance.h"

namespace scalelab::server {

struct Outcome {
  db::AttemptState state = db::AttemptState::kFailed;
  db::Cause cause = db::Cause::kNone;
  std::string message;
  std::string parameter_hash;
};

// Returns the outcome of an attempt that the coordinator did not stop. The attempt fails with the first of
// these conditions: a rank was out of memory; the worker's report has a cause; a rank has an error event; the
// exit status is not 0; a rank has no finish event; the parameter hashes differ. Unless `needs_finish`, the
// last two conditions are ignored.
Outcome Judge(const std::vector<RankState>& ranks, const v1::SynchronizeRequest::AttemptStatus& status,
              bool needs_finish = true);

struct Summary {
  db::RunSummary row;
  std::string
      refused;  // the impossible values that are not part of `row`, in one sentence; "" if there are none
};

// Computes the results of a run from the ranks' finish metrics. Memory is the maximum over ranks, energy is
// the sum over nodes, the state of GPUs is the mean over nodes, and the rest comes from rank 0. If
// run/throughput is missing, the throughput is `samples_per_step` divided by the median of step/total_s,
// unless `samples_per_step` is 0.
Summary Summarize(const db::AttemptRow& attempt, const std::vector<RankState>& ranks,
                  const std::string& fingerprint, int samples_per_step = 0);

// Returns a hash (16 hex digits) of the CPU and GPU models, cores and software, which must be equal for two
// runs to be comparable.
std::string Fingerprint(const std::vector<v1::NodeInfo>& nodes);

// Returns whether runs of this specification write checkpoints.
bool WritesCheckpoints(const v1::RunSpec& spec);

// Returns the directory of the run's checkpoints, next to the directories of its attempts; "" if the
// run writes none.
std::string CheckpointDirectory(const v1::RunSpec& spec, const std::string& attempt_directory);

// Returns whether a failure with this cause is retried under `retry`.
bool Retries(const v1::Retry& retry, db::Cause cause);

}  // namespace scalelab::server
