// Turns a request into a study that the core thread can store unchanged. All costly work happens here, in the
// thread of the caller.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "scalelab/v1/study.pb.h"
#include "server/core/lifecycle.h"
#include "server/frameworks/frameworks.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// An expanded study and the allocations it needs.
struct StudyNeeds {
  ExpandedStudy study;
  v1::PlanStudyResponse plan;  // without the scripts
};

// Returns the engines of Python frameworks that the specification names, valid or not, to look
// up in Frameworks.
std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec);

// Expands the study. Checks it against the scheduler's capacity, the usable engines (engines that are not in
// `engines` are usable) and, with the local scheduler, the files of its data sets. Returns CANCELLED soon after
// `stopped` returns true.
absl::StatusOr<StudyNeeds> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                      const FrameworkStates& engines = {},
                                      const std::function<bool()>& stopped = {});

// Adds the script of the first allocation of each shape to the plan, with a placeholder for the token.
void AddScripts(const Scheduler& scheduler, StudyNeeds& needs);

// Returns the study in the form that Coordinator::Submit takes; `spec` is stored unchanged.
NewStudy MakeNewStudy(const v1::StudySpec& spec, ExpandedStudy expanded, std::string owner,
                      std::string request_id);

}  // namespace scalelab::server
