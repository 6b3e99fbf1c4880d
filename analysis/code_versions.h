// Finds the versions of users' programs that the runs of a series executed. The function is pure.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "analysis/curve.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::analysis {

// The code of the runs of a study.
struct RunCodes {
  std::vector<scalelab::v1::CodeSnapshot> codes;  // without duplicates
  // Index into `codes` by run id, without runs whose code is not known.
  std::unordered_map<int64_t, size_t> of_run = {};
};

// Sets the code versions of each series of `curve`, most runs first, and adds a note to a series with more
// than one. A fact that is not known of a run does not make its version different: the hash of a file that
// its command does not name, or its difference from the commit. `places` must belong to `curve`.
void AddCodeVersions(const std::vector<db::CellRow>& cells, const std::vector<db::CurveRow>& rows,
                     const CurvePlaces& places, const RunCodes& codes, scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::analysis
