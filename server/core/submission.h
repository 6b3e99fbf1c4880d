// From a request to a study that the core thread can store as it is; everything costly happens here, in the
// caller's thread.
#pragma once

#include "absl/status/statusor.h"
#include "scalelab/v1/study.pb.h"
#include "server/frameworks/frameworks.h"
#include "server/core/lifecycle.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// What a study would ask the scheduler for.
struct StudyNeeds {
  ExpandedStudy study;
  v1::PlanStudyResponse plan;  // without the scripts
};

// Engines of Python frameworks that the specification names, right or wrong: what to ask Frameworks about.
std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec);

// Expands and checks against the scheduler's capacity, what engines can run (those that are not in `engines`
// can) and, where this machine trains, the data set's files.
absl::StatusOr<StudyNeeds> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                      const FrameworkStates& engines = {});

// Adds to the plan the script of its first allocation of each shape; the token in it is a stand-in.
void AddScripts(const Scheduler& scheduler, StudyNeeds& needs);

// `spec` is stored as it was submitted.
NewStudy MakeNewStudy(const v1::StudySpec& spec, ExpandedStudy expanded, std::string owner,
                      std::string request_id);

}  // namespace scalelab::server
