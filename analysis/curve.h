// Computes scaling curves with confidence intervals from the rows of runs. Pure: no clock,
// no I/O, deterministic.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/concurrency.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/study.pb.h"
#include "study/cell_list.h"

namespace scalelab::analysis {

struct CurveOptions {
  int resamples = 2000;  // bootstrap resamples
  double confidence = 0.95;
  size_t threads = 4;  // maximum number of threads, including the caller's; one below 10,000 runs
  size_t ThreadsFor(size_t runs) const { return runs < 10'000 ? 1 : threads; }
};

// The cells that the parts of a curve show, as indexes of cells.
struct CurvePlaces {
  struct Series {
    std::vector<size_t> cells;  // by point
    std::optional<size_t> baseline;
    std::string baseline_fingerprint;
  };
  std::vector<Series> series;
  double confidence = 0.95;  // of the intervals of the curve
};

// Computes the curve of one study. `spec` is its expanded specification, and `parameters[i]` belongs to
// `cells[i]`. There is one series for each combination of values of all axes but ranks, in file order. Runs
// whose hardware or software fingerprint differs from that of most runs of the series form a separate series
// with a note.
//
// Speedup and efficiency are ratios of cells, see ratios.h. Their intervals include the variance of the baseline,
// and common effects of a block (a repeat of all cells) cancel (Efron and Tibshirani 1993, chapters 8 and 13; Kalibera and
// Jones, ISMM 2013). The interval of a mean is always Student's t. With fewer than two repeats there is no interval.
// `differences` are the results of CompareTraining, by cell id, and `concurrency` those of FindConcurrency, for each of the
// rows; if it is empty, the curve has no concurrency. Sets `places` unless it is null.
scalelab::v1::GetCurveResponse MakeCurve(
    const scalelab::v1::StudySpec& spec, const std::vector<db::CellRow>& cells, const CellList& parameters,
    const std::vector<db::CurveRow>& rows, const CurveOptions& options = {},
    const std::map<int64_t, scalelab::v1::TrainingDifference>& differences = {},
    const std::vector<Concurrency>& concurrency = {}, CurvePlaces* places = nullptr);

}  // namespace scalelab::analysis
