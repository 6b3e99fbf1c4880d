// The times of the ranks of runs.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
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
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  int64_t first = 0, last = -1;
  if (absl::Status status = RunRange(db, study_id, first, last); !status.ok()) return status;
  // In the range there may be ids of other studies. Two parallel scans replace a search for each run.
  Statement runs(db, "SELECT id FROM run WHERE id BETWEEN ? AND ? AND +study_id = ? ORDER BY id");
  Statement rows(db,
                 "SELECT run_id, attempt_id, nodes, ranks_per_node, comm_total, rank_norm, mean_norm, "
                 "samples_to_accuracy, step, exposed, data FROM run_times WHERE run_id BETWEEN ? AND ? "
                 "ORDER BY run_id");
  runs.Bind(first, last, study_id);
  rows.Bind(first, last);
  std::vector<RunTimes> list;
  list.reserve(std::clamp<int64_t>(last - first + 1, 0, 100'000));
  int64_t run = -1;
  while (rows.Step()) {
    int64_t id = 0;
    rows.Read(id);
    while (run < id) {
      run = std::numeric_limits<int64_t>::max();
      if (runs.Step()) runs.Read(run);
    }
    if (run != id) continue;
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
  if (!runs.status().ok()) return runs.status();
  return list;
}

}  // namespace scalelab::db
