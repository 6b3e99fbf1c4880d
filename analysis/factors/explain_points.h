// Adds the explanations of its points to a curve: factors of the efficiency, the time to the target accuracy,
// and the noise of the gradients.
#pragma once

#include <vector>

#include "analysis/curve.h"
#include "analysis/factors/reference_convergence.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

// The input of the explanations. The vectors are those that were passed to MakeCurve.
struct ExplainedRows {
  const std::vector<db::CellRow>& cells;
  const CellList& parameters;
  const std::vector<db::CurveRow>& rows;  // sorted by cell
  const CurvePlaces& places;
  // The reference with which AddFactors compares the convergence; null: it compares with the base case only.
  const ReferenceRuns* reference = nullptr;
};

// Sets time_to_target of all points whose cells have a target. Needs no times.
void AddTimesToTarget(const ExplainedRows& input, scalelab::v1::GetCurveResponse& curve);

// Sets factors and gradient_noise of all points with results, the samples of time_to_target, and the
// comparisons of nodes, from the times of ranks, ordered by run.
void AddFactors(const ExplainedRows& input, const std::vector<db::RunTimes>& times,
                const CurveOptions& options, scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::analysis
