// Computes the curve of a study from the rows of a store.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "analysis/factors/reference_convergence.h"
#include "db/store.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::server {

// Computes the curve of `study`, with factors if asked for. If `over` returns true, because nobody waits for
// the curve any more, the computation ends with CANCELLED. DATA_LOSS if rows cannot be read, else the errors
// of the store. With factors, the convergence is compared with `reference`, unless it is null.
absl::Status MakeStudyCurve(db::Store& store, const db::StudyRow& study, bool factors,
                            const std::function<bool()>& over, scalelab::v1::GetCurveResponse* curve,
                            const analysis::ReferenceRuns* reference = nullptr);

// Reads the runs of a study that are a reference for the convergence of others. Returns errors as above.
absl::StatusOr<analysis::ReferenceRuns> ReadReference(db::Store& store, const db::StudyRow& study);

}  // namespace scalelab::server
