// Explains why a study or run is not running, as a chain of at least one reason. The first reason is the one
// that has to change first. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "scalelab/v1/reason.pb.h"
#include "server/core/state.h"

namespace scalelab::server {

// Returns the reasons of the next queued run of a study in `state`. Returns RUNNING or STOPPING if no
// run is queued.
std::vector<v1::Reason> ExplainStudy(const State& state, const LiveStudy& study, db::Micros now);
// Returns the reasons of the run at `position` of a study in `state`.
std::vector<v1::Reason> ExplainRun(const State& state, const LiveStudy& study, int position, db::Micros now);

// Returns a reason for each job of the study that has not ended after many cancels. The study may be final.
std::vector<v1::Reason> ExplainJobsLeft(const State& state, int64_t study_id, db::Micros now);

// Returns the reason why no attempt begins in drain mode, as one sentence.
std::string DrainText(const db::DrainRow& drain);

// Return the reason of a final study or run, which depends only on its row. `counts` has the number of runs
// in each db::RunState.
v1::Reason FinalReason(const db::StudyRow& study, const std::vector<int64_t>& counts);
v1::Reason FinalReason(const db::RunRow& run);

}  // namespace scalelab::server
