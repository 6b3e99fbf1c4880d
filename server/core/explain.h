// Why something is not running: the whole chain of reasons, as pure code over what the coordinator knows. The
// first reason is what has to change first; there is always at least one.
#pragma once

#include <string>
#include <vector>

#include "scalelab/v1/reason.pb.h"
#include "server/core/state.h"

namespace scalelab::server {

// Of a study in `state`: what stands in the way of its next queued run; RUNNING or STOPPING when none is
// queued.
std::vector<v1::Reason> ExplainStudy(const State& state, const StudyState& study, db::Micros now);
// Of the run at `position` of a study in `state`.
std::vector<v1::Reason> ExplainRun(const State& state, const StudyState& study, int position, db::Micros now);

// Of what is final, which its row alone tells. `counts` by db::RunState.
v1::Reason FinalReason(const db::StudyRow& study, const std::vector<int64_t>& counts);
v1::Reason FinalReason(const db::RunRow& run);

}  // namespace scalelab::server
