// Computes the figures of a bundle again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/bundle/bundle_file.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// The names of the files of a bundle.
inline constexpr char kBundleManifest[] = "manifest.json", kBundleCurve[] = "curve.json",
                      kBundleCurveTable[] = "curve.csv", kBundleSpec[] = "study.yaml",
                      kBundleRuns[] = "runs.csv", kBundleReport[] = "report.html",
                      kBundleArchive[] = "study.archive", kBundlePlan[] = "plan.json",
                      kBundlePoints[] = "metrics.csv", kBundleProvenance[] = "provenance.json";

struct FigureCheck {
  int64_t figures = 0;                   // numbers of the curve that were computed again
  std::vector<std::string> differences;  // one sentence each; empty if all are equal
  std::vector<std::string>
      not_compared;  // one sentence for each figure of an older version, or file, that was not compared
  scalelab::v1::StudySpec spec;  // of the archive
  int64_t runs = 0, points = 0;  // rows of the tables that were made again
};

// Restores the archive of the bundle into a temporary database, computes its curve, and compares every
// number of it with the curve of the bundle, within a relative 1e-9. Makes runs.csv, metrics.csv and
// provenance.json again, which must have the same bytes. The specification and the table of the curve must
// be equal too, and the curve must have the SHA-256 of each code-*.diff. Notes and the number of attempts
// of other studies that ran at the same time are not compared: other studies are not in the bundle. Figures
// that older versions computed in another way are in `not_compared`. DATA_LOSS if the archive or the curve
// cannot be read, FAILED_PRECONDITION if the archive is from a newer schema.
absl::StatusOr<FigureCheck> CheckFigures(BundleReader& bundle);

// Returns the curve table of a bundle. With `columns`, it has the columns of these names in this order: bundles of
// older versions have fewer columns, and have an axis such as global_batch twice.
std::string CurveTableText(const scalelab::v1::GetCurveResponse& curve,
                           const std::vector<std::string>& columns = {});

}  // namespace scalelab::client
