// Turns a request into a study that the core thread can store unchanged. All costly work happens here, in the
// thread of the caller.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/study.pb.h"
#include "server/core/lifecycle.h"
#include "server/frameworks/frameworks.h"
#include "server/scheduler/scheduler.h"

namespace scalelab::server {

// Returns the engines of Python frameworks that the specification names, valid or not, by the names of
// EngineOn, to look up in Frameworks.
std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec);

// Expands the study. Checks it against the scheduler's capacity and the usable engines (engines that are not in
// `engines` are usable). Returns CANCELLED soon after `stopped` returns true.
absl::StatusOr<ExpandedStudy> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                         const FrameworkStates& engines = {},
                                         const std::function<bool()>& stopped = {});

// Names of data sets, with their directories.
using Datasets = std::set<std::pair<std::string, std::string>>;
// Returns the data sets of the study whose files must be checked: only with the local scheduler do ranks surely see the
// files of this machine.
Datasets DatasetsToCheck(const ExpandedStudy& study, const Scheduler& scheduler);
// Checks the files of the data sets. Blocks as long as their file system does.
absl::Status CheckDatasets(const Datasets& datasets);

// Returns the plan of a study, with the script of the first allocation of each shape. The script has a placeholder for
// the token.
v1::PlanStudyResponse PlanOf(const ExpandedStudy& study, const Scheduler& scheduler);

// Returns the study in the form that Coordinator::Submit takes; `spec` is stored unchanged.
NewStudy MakeNewStudy(const v1::StudySpec& spec, ExpandedStudy expanded, std::string owner,
                      std::string request_id);

}  // namespace scalelab::server
