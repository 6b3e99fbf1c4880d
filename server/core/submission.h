// Converts a request to a study that the core thread can store unchanged. The thread of the caller does
// all expensive work.
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

// Returns the engines of Python frameworks in the specification, which need not be valid, as names of
// EngineOn. The caller looks them up in Frameworks.
std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec);

// Expands the study. Checks the scheduler's capacity and that the engines are usable; engines that are not in
// `engines` are usable. Returns CANCELLED soon after `stopped` returns true.
absl::StatusOr<ExpandedStudy> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                         const FrameworkStates& engines = {},
                                         const std::function<bool()>& stopped = {});

// Pairs of the name of a data set and its directory.
using Datasets = std::set<std::pair<std::string, std::string>>;
// Returns the data sets of the study whose files must be checked. Returns none unless the scheduler is local,
// because ranks on other machines may not see the files of this machine.
Datasets DatasetsToCheck(const ExpandedStudy& study, const Scheduler& scheduler);
// Checks the files of the data sets. Blocks while their filesystem blocks.
absl::Status CheckDatasets(const Datasets& datasets);

// Returns the plan of a study, with the script of the first allocation of each shape. The script has a
// placeholder for the token.
v1::PlanStudyResponse PlanOf(const ExpandedStudy& study, const Scheduler& scheduler);

// Returns the study in the form that Coordinator::Submit takes; `spec` is stored unchanged.
NewStudy MakeNewStudy(const v1::StudySpec& spec, ExpandedStudy expanded, std::string owner,
                      std::string request_id);

}  // namespace scalelab::server
