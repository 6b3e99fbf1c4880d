// Builds studies with results for tests.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "analysis/code_versions.h"
#include "analysis/comparison/advise.h"
#include "analysis/comparison/compare.h"
#include "analysis/curve.h"
#include "analysis/factors/explain_points.h"
#include "analysis/precision.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {

// Cells have the ids 1, 2, ... in the order in which they are added.
class Results {
 public:
  explicit Results(const std::string& spec_json = "{}") {
    (void)google::protobuf::util::JsonStringToMessage(spec_json, &spec_);
  }
  // Adds a cell. Its axes are those of `key` (a JSON object) and ranks.
  Results& Cell(int ranks, const std::string& key = "{}") {
    db::CellRow cell;
    cell.id = static_cast<int64_t>(cells_.size()) + 1;
    cell.position = static_cast<int>(cells_.size());
    cell.ranks = ranks;
    cell.global_batch = 256;
    cells_.push_back(cell);
    const std::string rest = key.substr(1);
    scalelab::Cell& parameters = parameters_.emplace_back();
    Read("{\"ranks\":" + std::to_string(ranks) + (rest == "}" ? "" : ",") + rest, parameters.key);
    next_repeat_ = 0;
    return *this;
  }
  // Adds a cell of a study whose number of ranks is fixed, so that it is no axis.
  Results& FixedRanks(int ranks, const std::string& key = "{}") {
    Cell(ranks, key);
    parameters_.back().key.mutable_fields()->erase("ranks");
    return *this;
  }
  // Adds a cell with the specification of a study that measures communication. `more`: further fields of
  // RunSpec, for example ", \"precision\": \"fp32\"".
  Results& Engine(const std::string& engine, int ranks, const std::string& more = "") {
    Cell(ranks, "{\"engine\":\"" + engine + "\"}");
    Read("{\"engine\":\"" + engine + "\",\"ranks\":" + std::to_string(ranks) + more + "}",
         parameters_.back().spec);
    return *this;
  }
  // Adds a communication baseline.
  Results& Baseline(const std::string& engine, int ranks, const std::string& more = "") {
    return Engine(engine, ranks, more + ",\"communication_baseline\":true");
  }
  // Adds repeats of the last cell that succeeded with steps of these durations in seconds.
  Results& Steps(const std::vector<double>& seconds, const std::string& fingerprint = "a100") {
    std::vector<double> throughputs;
    for (double s : seconds) throughputs.push_back(cells_.back().global_batch / s);
    return Ok(throughputs, fingerprint);
  }
  // Sets the global batch of the last cell.
  Results& GlobalBatch(int samples) {
    cells_.back().global_batch = samples;
    return *this;
  }
  Results& Excluded() {
    cells_.back().excluded = true;
    return *this;
  }
  // Adds repeats of the last cell that succeeded with these throughputs.
  Results& Ok(const std::vector<double>& throughputs, const std::string& fingerprint = "a100") {
    for (double throughput : throughputs) {
      db::CurveRow& row = Row(db::RunState::kSucceeded);
      row.throughput = throughput;
      row.fingerprint = fingerprint;
    }
    return *this;
  }
  // Adds a repeat of the last cell in this state.
  Results& Other(db::RunState state, db::Cause cause = db::Cause::kNone) {
    Row(state).cause = cause;
    return *this;
  }
  db::CurveRow& Row(db::RunState state) {
    db::CurveRow& row = rows_.emplace_back();
    row.run_id = static_cast<int64_t>(rows_.size());
    row.cell_id = cells_.back().id;
    row.repeat = next_repeat_++;
    row.state = state;
    return row;
  }
  db::CurveRow& last_row() { return rows_.back(); }
  // Sets the times of the ranks of the last row.
  Results& Times(db::RunTimes times) {
    times.run_id = rows_.back().run_id;
    times.attempt_id = rows_.back().attempt_id = static_cast<int64_t>(rows_.size());
    times_.push_back(std::move(times));
    return *this;
  }
  // Returns the curve with factors.
  scalelab::v1::GetCurveResponse Explained(bool factors = true, const CurveOptions& options = {},
                                           const ReferenceRuns* reference = nullptr) const {
    const CellList parameters = Parameters();
    CurvePlaces places;
    auto curve = MakeCurve(spec_, cells_, parameters, rows_, options, {}, {}, &places);
    const ExplainedRows input{cells_, parameters, rows_, places, reference};
    AddTimesToTarget(input, curve);
    if (factors) AddFactors(input, times_, options, curve);
    return curve;
  }
  // Returns the study as a reference of other studies.
  ReferenceRuns AsReference(const std::string& name) const {
    return ReferenceOf(name, cells_, Parameters(), rows_, times_);
  }
  // Returns the curve with the versions of the code that the runs executed.
  scalelab::v1::GetCurveResponse WithCode(const RunCodes& codes) const {
    CurvePlaces places;
    auto curve = MakeCurve(spec_, cells_, Parameters(), rows_, {}, {}, {}, &places);
    AddCodeVersions(cells_, rows_, places, codes, curve);
    return curve;
  }
  // Returns the study as it is after `blocks` blocks.
  Results FirstBlocks(int blocks) const {
    Results first = *this;
    std::erase_if(first.rows_, [&](const db::CurveRow& row) { return row.repeat >= blocks; });
    return first;
  }
  scalelab::v1::StudySpec& spec() { return spec_; }
  static scalelab::v1::CompareCellsResponse Compare(const std::vector<const Results*>& studies,
                                                    const std::string& axis, double equivalent) {
    return TryCompare(studies, axis, equivalent, [] { return false; }).value();
  }
  static absl::StatusOr<scalelab::v1::CompareCellsResponse> TryCompare(
      const std::vector<const Results*>& studies, const std::string& axis, double equivalent,
      const std::function<bool()>& over) {
    std::deque<CellList> parameters;
    std::vector<StudyRows> rows;
    for (const Results* study : studies) {
      parameters.push_back(study->Parameters());
      rows.push_back(study->AsRows(parameters.back()));
      rows.back().name = "study " + std::to_string(rows.size());
    }
    return CompareStudies(rows, axis, equivalent, over);
  }
  std::vector<scalelab::v1::Advice> Advise(const AdviceOptions& options) const {
    const CellList parameters = Parameters();
    return AdviseRanks(AsRows(parameters), options);
  }
  StudyRows AsRows(const CellList& parameters) const {
    return {cells_, parameters, rows_, {}, SequentialConfidenceOf(spec_, cells_, parameters, rows_)};
  }
  CellList Parameters() const {
    CellList parameters;
    for (const scalelab::Cell& cell : parameters_) parameters.Add(cell);
    return parameters;
  }
  scalelab::v1::GetCurveResponse Curve(const CurveOptions& options = {},
                                       const std::vector<Concurrency>& concurrency = {}) const {
    return MakeCurve(spec_, cells_, Parameters(), rows_, options, {}, concurrency);
  }

 private:
  static void Read(const std::string& json, google::protobuf::Message& message) {
    (void)google::protobuf::util::JsonStringToMessage(json, &message);
  }

  scalelab::v1::StudySpec spec_;
  std::vector<db::CellRow> cells_;
  std::vector<scalelab::Cell> parameters_;  // of the cells
  std::vector<db::CurveRow> rows_;
  std::vector<db::RunTimes> times_;
  int next_repeat_ = 0;
};

}  // namespace scalelab::analysis
