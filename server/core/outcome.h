// Determines how an attempt ended, from its ranks' events and its worker's report. Pure.
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

// Returns the outcome of an attempt that the coordinator did not stop. The first condition that holds
// decides: a rank out of memory; the cause in the worker's report; an error event of a rank; an exit status
// that is not 0; a rank without a finish event; different parameter hashes. Unless `needs_finish`, exit status 0 is enough.
Outcome Judge(const std::vector<RankState>& ranks, const v1::SynchronizeRequest::AttemptStatus& status,
              bool needs_finish = true);

struct Summary {
  db::RunSummary row;
  std::string
      refused;  // which values cannot be right and are not part of `row`, in one sentence; empty if none
};

// Returns the results from the ranks' finish metrics: memory is the maximum over ranks, energy the sum and the state of GPUs the
// mean over nodes, the rest is from rank 0. Without run/throughput, the throughput is `samples_per_step` by the median of step/total_s; 0: it is left out.
Summary Summarize(const db::AttemptRow& attempt, const std::vector<RankState>& ranks,
                  const std::string& fingerprint, int samples_per_step = 0);

// Returns a hash (16 hex digits) of the CPU and GPU models, cores and software, which must be equal for two
// runs to be comparable.
std::string Fingerprint(const std::vector<v1::NodeInfo>& nodes);

// Returns the hardware and software of the nodes as a JSON array, with what they showed of other load.
std::string ProvenanceJson(const std::vector<v1::NodeInfo>& nodes,
                           const std::vector<v1::NodeNoise>& noise = {});

// Returns the nodes of such an array; nothing if it is malformed.
std::vector<v1::NodeInfo> NodesOfProvenance(const std::string& json);
// Returns what the nodes of such an array showed of other load; nothing if it is malformed or has none.
std::vector<v1::NodeNoise> NoiseOfProvenance(const std::string& json);

// Returns whether runs of this specification write checkpoints.
bool WritesCheckpoints(const v1::RunSpec& spec);

// Returns the directory of the run's checkpoints, next to the directories of its attempts; empty if it writes none.
std::string CheckpointDirectory(const v1::RunSpec& spec, const std::string& attempt_directory);

// Returns whether a failure with this cause is retried under `retry`.
bool Retries(const v1::Retry& retry, db::Cause cause);

}  // namespace scalelab::server
