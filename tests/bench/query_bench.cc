#include "tests/bench/query_bench.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "analysis/curve.h"
#include "analysis/downsample.h"
#include "server/cells/cells.h"
#include "server/curves/study_curve.h"
#include "server/rpc/client_call.h"
#include "server/services/analysis_service.h"
#include "tests/bench/bench_rows.h"

namespace scalelab::bench {
namespace {

using db::Store;
using db::WriteBatch;

constexpr double kTargetMilliseconds = 50;
constexpr double kTargetOfAnalysis = 100;  // factors, comparisons and advice

Figure Limit(std::string name, double milliseconds, double target = kTargetMilliseconds) {
  return {std::move(name), milliseconds, "ms", "target", target, milliseconds / target};
}

db::RunTimes Times(int ranks) {
  db::RunTimes times;
  times.nodes = "node-17";
  for (int rank = 0; rank < ranks; ++rank) times.ranks.push_back({0.1, 0.01 + 0.001 * rank, 0.005});
  times.rank_norm = 10;
  times.mean_norm = 4;
  return times;
}

// Compares the engines of a study, and advises on its world sizes.
void BenchAnalyses(Store& store, int64_t study, std::vector<Figure>& figures) {
  const auto over = [] { return false; };
  const std::string name = absl::StrCat("studies/", study);
  server::Identity caller;
  caller.user = "bench";
  const auto compare = [&] {
    server::ClientCall call(caller, "CompareCells", /*changes=*/false);
    v1::CompareCellsRequest request;
    request.add_studies(name);
    request.set_axis("engine");
    v1::CompareCellsResponse response;
    Check(server::ComputeComparison(store, call, request, over, &response));
    if (response.groups_size() == 0) Check(absl::InternalError("empty comparison"));
  };
  const auto advise = [&] {
    server::ClientCall call(caller, "AdviseRanks", /*changes=*/false);
    v1::AdviseRanksRequest request;
    request.set_study(name);
    v1::AdviseRanksResponse response;
    Check(server::ComputeAdvice(store, call, request, over, &response));
    if (response.advice_size() == 0) Check(absl::InternalError("empty advice"));
  };
  figures.push_back(
      Limit("curve/comparison_of_100000_runs", MedianMilliseconds(7, compare), kTargetOfAnalysis));
  figures.push_back(Limit("curve/advice_of_100000_runs", MedianMilliseconds(7, advise), kTargetOfAnalysis));
}

// A million runs with results: studies of 1,000 runs (10 cells of 100 repeats), and one study of 100,000
// runs (1,000 cells: 100 engines at 10 world sizes).
void BenchCurve(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "curve");
  std::unique_ptr<Store> store = place.Open();
  const int64_t total = std::max<int64_t>(200'000, static_cast<int64_t>(1e6 * options.scale));
  int64_t study = 0, cell = 0, run = 0, small = 0, large = 0;
  while (run < total) {
    ++study;
    const bool is_large = large == 0 && run >= total / 2;
    (is_large ? large : small) = study;
    const int cells = is_large ? 1000 : 10;
    WriteBatch batch;
    batch.studies = {Study(study)};
    batch.studies[0].started = batch.studies[0].created + 1'000'000 * run;
    batch.cell_values = CellValues(study);
    for (int c = 0; c < cells; ++c) {
      batch.cells.push_back(Cell(++cell, study, 1 << c % 10, "engine/" + std::to_string(c / 10)));
      for (int r = 0; r < 100; ++r) {
        batch.runs.push_back(Run(++run, study, cell, r));
        batch.runs.back().state = db::RunState::kSucceeded;
        batch.runs.back().attempts = 1;
        batch.runs.back().started = batch.studies[0].created + 1'000'000 * run;
        batch.runs.back().finished = batch.runs.back().started + 1'000'000;
        batch.attempts.push_back(Attempt(run, run));
        batch.summaries.push_back(Summary(run, run));
        if (is_large) batch.summaries.back().times = Times(1 << c % 4);
      }
    }
    batch.studies[0].finished = batch.runs.back().finished;
    Check(store->Commit(batch));
  }
  small /= 2;  // the id of a study in the middle of the database
  const auto curve_of = [&](int64_t id, bool factors = false) {
    const auto study = store->GetStudy(id);
    Check(study.status());
    scalelab::v1::GetCurveResponse curve;
    Check(server::MakeStudyCurve(
        *store, *study, factors, [] { return false; }, &curve));
    if (curve.series_size() == 0) Check(absl::InternalError("empty curve"));
  };
  // This is the first curve: the rows of the study are not in memory yet.
  std::vector<double> first;
  for (int i = 0; i < 3; ++i) {
    store.reset();
    store = place.Open();
    first.push_back(1e3 * Seconds([&] { curve_of(large); }));
  }
  figures.push_back({"curve/first_of_100000_runs", Median(std::move(first)), "ms"});
  figures.push_back(Limit("curve/study_of_1000_runs", MedianMilliseconds(21, [&] { curve_of(small); })));
  figures.push_back(Limit("curve/study_of_100000_runs", MedianMilliseconds(7, [&] { curve_of(large); })));
  figures.push_back(Limit("curve/factors_of_100000_runs",
                          MedianMilliseconds(7, [&] { curve_of(large, true); }), kTargetOfAnalysis));
  BenchAnalyses(*store, large, figures);
}

void BenchAnalysis(std::vector<Figure>& figures) {
  std::vector<db::CellRow> cells;
  std::vector<db::CurveRow> rows;
  for (int c = 0; c < 100; ++c) {
    cells.push_back(Cell(c + 1, 1, 1 << c % 10, "engine/" + std::to_string(c / 10)));
    for (int r = 0; r < 100; ++r) {
      db::CurveRow& row = rows.emplace_back();
      row.cell_id = c + 1;
      row.repeat = r;
      row.state = db::RunState::kSucceeded;
      row.throughput = 100.0 * cells.back().ranks * (1 + 0.05 * std::sin(r * 7.0 + c));
      row.epoch_seconds = 10;
      row.accuracy = 0.9;
      row.fingerprint = "5f2c0b7e9a4d1c83";
    }
  }
  const auto parameters = server::ReadCells(CellValues(1), cells);
  Check(parameters.status());
  figures.push_back(Limit("curve/analysis_of_100_cells", MedianMilliseconds(21, [&] {
                            analysis::MakeCurve({}, cells, *parameters, rows);
                          })));
}

void BenchPoints(const BenchOptions& options, std::vector<Figure>& figures) {
  const Place place(options, "points");
  std::unique_ptr<Store> store = place.Open();
  WriteBatch batch;
  batch.studies = {Study(1)};
  batch.cells = {Cell(1, 1, 1)};
  batch.runs = {Run(1, 1, 1, 0)};
  batch.attempts = {Attempt(1, 1)};
  Check(store->Commit(batch));
  // Append parts of 200 lines, like a rank that reports every few seconds.
  const int64_t parts = std::max<int64_t>(10, static_cast<int64_t>(5000 * options.scale));
  for (int64_t part = 0; part < parts; ++part) {
    WriteBatch more;
    more.appends = {Part(1, 0, part, 200)};
    more.appends[0].columns.resize(2);
    Check(store->Commit(more));
  }
  figures.push_back(Limit("points/million_downsampled", MedianMilliseconds(21, [&] {
                            Check(store->ReadPoints({1, "step/metric_1", 0}, [](db::Series series) {
                              const std::vector<double> x(series.step.begin(), series.step.end());
                              if (analysis::Downsample(x, series.value, 2000).size() != 2000)
                                Check(absl::InternalError("not downsampled"));
                            }));
                          })));
}

}  // namespace

std::vector<Figure> RunQueryBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  BenchAnalysis(figures);
  BenchPoints(options, figures);
  BenchCurve(options, figures);
  return figures;
}

}  // namespace scalelab::bench
