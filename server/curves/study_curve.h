// Computes the curve of a study from the rows of a store.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "analysis/factors/reference_convergence.h"
#include "db/store.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"

namespace scalelab::server {

// The rows of a study that an analysis needs.
struct StudyInput {
  scalelab::v1::StudySpec spec;
  std::vector<db::CellRow> cells;
  db::SharedCurveRows rows;
  CellList parameters;
};

// Reads them. Returns DATA_LOSS if rows cannot be read, else the errors of the store.
absl::StatusOr<StudyInput> ReadStudyInput(db::Store& store, const db::StudyRow& study);

// Computes the curve of `study`, with factors if asked for. If `over` returns true, because nobody waits for
// the curve any more, the computation ends with CANCELLED. Returns errors as above. With factors, the convergence is
// compared with `reference`, unless it is null.
absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, bool factors,
                            const std::function<bool()>& over, scalelab::v1::GetCurveResponse* curve,
                            const analysis::ReferenceRuns* reference = nullptr);
// As above, without factors, from rows that were already read.
absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, const StudyInput& input,
                            const std::function<bool()>& over, scalelab::v1::GetCurveResponse* curve);

// Reads the runs of a study that are a reference for the convergence of others. Returns errors as above.
absl::StatusOr<analysis::ReferenceRuns> ReadReference(db::Store& store, const db::StudyRow& study);

}  // namespace scalelab::server
