// The times of the ranks of runs.
#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "db/reads.h"
#include "db/writer.h"

namespace scalelab::db {
namespace {

using Seconds = double RunTimes::Rank::*;

std::vector<double> ValuesOf(const RunTimes& times, Seconds seconds) {
  std::vector<double> values;
  for (const RunTimes::Rank& rank : times.ranks) values.push_back(rank.*seconds);
  return values;
}

Statement::Blob BlobOf(const std::vector<double>& values) {
  return {values.data(), values.size() * sizeof(double)};
}

// Reads the values of all ranks. Returns false if the blobs do not have the same number of values.
bool ReadRanks(Statement::Blob step, Statement::Blob exposed, Statement::Blob data,
               std::vector<RunTimes::Rank>& ranks) {
  if (exposed.size != step.size || data.size != step.size || step.size % sizeof(double) != 0) return false;
  const size_t count = step.size / sizeof(double);
  const auto value = [](Statement::Blob blob, size_t rank) {
    double seconds;  // a blob need not be aligned
    std::memcpy(&seconds, static_cast<const char*>(blob.data) + rank * sizeof(double), sizeof(double));
    return seconds;
  };
  ranks.reserve(count);
  for (size_t i = 0; i < count; ++i) ranks.push_back({value(step, i), value(exposed, i), value(data, i)});
  return true;
}

}  // namespace

absl::Status PutRunTimes(Database& db, const RunSummary& summary) {
  const RunTimes& times = summary.times;
  if (times.empty()) return Statement(db, "DELETE FROM run_times WHERE run_id = ?").Run(summary.run_id);
  const std::vector<double> step = ValuesOf(times, &RunTimes::Rank::step),
                            exposed = ValuesOf(times, &RunTimes::Rank::exposed),
                            data = ValuesOf(times, &RunTimes::Rank::data);
  return Statement(db,
                   "INSERT OR REPLACE INTO run_times (run_id, attempt_id, nodes, ranks_per_node, step, "
                   "exposed, data, "
                   "comm_total, rank_norm, mean_norm, samples_to_accuracy) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
                   "?, ?, ?)")
      .Run(summary.run_id, summary.attempt_id, times.nodes, times.ranks_per_node, BlobOf(step),
           BlobOf(exposed), BlobOf(data), times.comm_total, times.rank_norm, times.mean_norm,
           times.samples_to_accuracy);
}

absl::StatusOr<std::vector<RunTimes>> ListRunTimes(Database& db, int64_t study_id) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  int64_t first = 0, last = -1;
  if (absl::Status status = RunRange(db, study_id, first, last); !status.ok()) return status;
  int64_t count = 0;
  {
    Statement counted(db, "SELECT COALESCE(SUM(runs), 0) FROM run_count WHERE study_id = ?");
    counted.Bind(study_id);
    if (counted.Step()) counted.Read(count);
    if (!counted.status().ok()) return counted.status();
  }
  // The range of ids may contain runs of other studies. Two parallel scans are cheaper than a search
  // for each run.
  const bool others = count != last - first + 1;
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
    while (others && run < id) {
      run = std::numeric_limits<int64_t>::max();
      if (runs.Step()) runs.Read(run);
    }
    if (others && run != id) continue;
    RunTimes& times = list.emplace_back();
    rows.Read(times.run_id, times.attempt_id, times.nodes, times.ranks_per_node, times.comm_total,
              times.rank_norm, times.mean_norm, times.samples_to_accuracy);
    const Statement::Blob step = rows.BlobAt(8), exposed = rows.BlobAt(9), data = rows.BlobAt(10);
    if (!ReadRanks(step, exposed, data, times.ranks)) {
      return absl::DataLossError(absl::StrCat("the times of run ", times.run_id, " have ", step.size, ", ",
                                              exposed.size, " and ", data.size,
                                              " bytes, which is not the same number of ranks"));
    }
  }
  if (!rows.status().ok()) return rows.status();
  if (!runs.status().ok()) return runs.status();
  return list;
}

}  // namespace scalelab::db
