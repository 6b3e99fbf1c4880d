// Reference convergence points of MLPerf Training: tests whether a point of a curve reaches its target with
// significantly fewer samples than a reference study, as the RCP checker of github.com/mlcommons/logging does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/run_spec.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

// Results are comparable only if they have the same model, data set and target accuracy.
using ReferenceTask = std::tuple<std::string, std::string, double>;
ReferenceTask ReferenceTaskOf(const scalelab::v1::RunSpec& spec);

// The samples until the target of the runs of a reference study, by global batch. A run that did not reach it has none.
using SamplesByBatch = std::map<double, std::vector<std::optional<double>>>;
struct ReferenceRuns {
  std::string study;  // "studies/7"
  std::map<ReferenceTask, SamplesByBatch> samples;
};

// Returns the runs that succeeded and had a target. `rows` and `times` are ordered by cell and by run, as the
// store returns them. Runs whose engine does not report samples are left out.
ReferenceRuns ReferenceOf(const std::string& study, const std::vector<db::CellRow>& cells,
                          const CellList& parameters, const std::vector<db::CurveRow>& rows,
                          const std::vector<db::RunTimes>& times);

// Compares the samples of a point with the runs of the reference that have the same task. Sets reference_samples,
// reference_limit, normalised_seconds and the note.
void CompareWithReference(const ReferenceRuns& reference, const ReferenceTask& task, int global_batch,
                          scalelab::v1::TimeToTarget& point);

}  // namespace scalelab::analysis
