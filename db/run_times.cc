// The times of the ranks of runs.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "db/deletion.h"
#include "db/reads.h"
#include "db/writer.h"

namespace scalelab::db {
namespace {

Statement::Blob BlobOf(const std::vector<double>& values) {
  return {values.data(), values.size() * sizeof(double)};
}

std::vector<double> ValuesOf(Statement::Blob blob) {
  std::vector<double> values(blob.size / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), blob.data, values.size() * sizeof(double));
  return values;
}

}  // namespace

absl::Status PutRunTimes(Database& db, const RunSummary& summary) {
  const RunTimes& times = summary.times;
  if (times.empty()) return Statement(db, "DELETE FROM run_times WHERE run_id = ?").Run(summary.run_id);
  return Statement(db,
                   "INSERT OR REPLACE INTO run_times (run_id, attempt_id, nodes, ranks_per_node, step, "
                   "exposed, data, "
                   "comm_total, rank_norm, mean_norm, samples_to_accuracy) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
                   "?, ?, ?)")
      .Run(summary.run_id, summary.attempt_id, times.nodes, times.ranks_per_node, BlobOf(times.step),
           BlobOf(times.exposed), BlobOf(times.data), times.comm_total, times.rank_norm, times.mean_norm,
           times.samples_to_accuracy);
}

absl::StatusOr<std::vector<RunTimes>> ListRunTimes(Database& db, int64_t study_id) {
  std::vector<RunTimes> list;
  // The ids of a study's runs are a range, in which there may be ids of other studies.
  Statement rows(
      db,
      "SELECT t.run_id, t.attempt_id, t.nodes, t.ranks_per_node, t.comm_total, t.rank_norm, t.mean_norm, "
      "t.samples_to_accuracy, t.step, t.exposed, t.data FROM study CROSS JOIN run_times t ON t.run_id "
      "BETWEEN study.first_run_id AND study.last_run_id CROSS JOIN run r ON r.id = t.run_id AND "
      "+r.study_id = study.id WHERE study.id = ? AND" SCALELAB_VISIBLE_STUDY("study.id") "ORDER BY t.run_id");
  rows.Bind(study_id);
  while (rows.Step()) {
    RunTimes& times = list.emplace_back();
    rows.Read(times.run_id, times.attempt_id, times.nodes, times.ranks_per_node, times.comm_total,
              times.rank_norm, times.mean_norm, times.samples_to_accuracy);
    times.step = ValuesOf(rows.BlobAt(8));
    times.exposed = ValuesOf(rows.BlobAt(9));
    times.data = ValuesOf(rows.BlobAt(10));
    if (times.exposed.size() == times.step.size() && times.data.size() == times.step.size()) continue;
    return absl::DataLossError(absl::StrCat("the times of run ", times.run_id, " have ", times.step.size(),
                                            ", ", times.exposed.size(), " and ", times.data.size(),
                                            " ranks"));
  }
  if (!rows.status().ok()) return rows.status();
  return list;
}

}  // namespace scalelab::db
