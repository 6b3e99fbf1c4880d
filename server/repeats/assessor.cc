#include "server/repeats/assessor.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "analysis/curve.h"
#include "analysis/precision.h"
#include "server/cells/cells.h"
#include "server/core/convert.h"

namespace scalelab::server {

absl::StatusOr<Assessment> AssessStudy(db::Store& store, const AssessRequest& request) {
  const auto study = store.GetStudy(request.study_id);
  if (!study.ok()) return study.status();
  v1::StudySpec spec;
  if (auto s = FromJson(study->spec, &spec); !s.ok()) return s;
  const auto cells = store.ListCells(request.study_id);
  if (!cells.ok()) return cells.status();
  const auto all_rows = store.ListCurveRows(request.study_id);
  if (!all_rows.ok()) return all_rows.status();
  std::vector<db::CurveRow> rows;
  std::ranges::copy_if(**all_rows, std::back_inserter(rows),
                       [&](const db::CurveRow& row) { return row.repeat < request.blocks; });
  const auto values = store.ListCellValues(request.study_id);
  if (!values.ok()) return values.status();
  const auto parameters = ReadCells(*values, *cells);
  if (!parameters.ok()) return parameters.status();
  const auto widest = analysis::WidestHalfWidth(analysis::MakeCurve(spec, *cells, *parameters, rows));
  const double asked = spec.adaptive_repeats().half_width();
  if (!widest.has_value() || !(*widest <= asked)) return Assessment();
  return Assessment{true, absl::StrFormat("not needed: after %d blocks the widest interval is +-%.2g%%, and "
                                          "repeats.until asks for +-%.2g%%",
                                          request.blocks, 100 * *widest, 100 * asked)};
}

void Assessor::Assess(const AssessRequest& request, Done done) {
  pool_.Run([this, request, done = std::move(done)](const absl::Status& status) mutable {
    done(status.ok() ? AssessStudy(store_, request) : status);
  });
}

}  // namespace scalelab::server
