#include "server/runs/stored_runs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/cells/cells.h"
#include "server/runs/provenance.h"
#include "server/runs/run_messages.h"

namespace scalelab::server {
namespace {

// `of_attempt` is the attempt that the results come from; null if it is not known.
void AddSummary(const db::RunSummary& from, v1::Attempt* of_attempt, v1::Run* run) {
  for (const auto& [key, value] : from.metrics) (*run->mutable_summary())[key] = value;
  run->set_fingerprint(from.fingerprint);
  if (from.peak_memory) (*run->mutable_summary())["run/peak_memory_bytes"] = *from.peak_memory;
  if (from.device_memory) (*run->mutable_summary())["run/device_memory_bytes"] = *from.device_memory;
  if (of_attempt == nullptr) return;
  if (from.throughput) of_attempt->set_throughput(*from.throughput);
  if (from.epoch_seconds) of_attempt->set_epoch_seconds(*from.epoch_seconds);
}

}  // namespace

absl::Status AddResults(db::Store& store, const db::RunRow& row, v1::Run* run) {
  const auto attempts = store.ListAttempts(row.id);
  if (!attempts.ok()) return attempts.status();
  for (const db::AttemptRow& attempt : *attempts) {
    const auto streams = store.ListStreams(attempt.id);
    if (!streams.ok()) return streams.status();
    const auto allocation = store.GetAllocation(attempt.allocation_id);
    if (!allocation.ok() && !absl::IsNotFound(allocation.status())) return allocation.status();
    v1::Attempt& added = *run->add_attempts();
    added = ToAttempt(attempt, row.study_id, allocation.ok() ? allocation->token : std::string(), *streams);
    const auto provenance = store.GetProvenance(attempt.id);
    if (!provenance.ok()) return provenance.status();
    for (v1::NodeInfo& node : NodesOfProvenance(*provenance)) *added.add_node_infos() = std::move(node);
    for (v1::NodeNoise& noise : NoiseOfProvenance(*provenance)) *added.add_noise() = std::move(noise);
    if (auto code = CodeOfProvenance(*provenance)) *added.mutable_code() = *std::move(code);
  }
  const auto summary = store.GetSummary(row.id);
  if (summary.ok()) {
    const auto counts = std::ranges::find(*attempts, summary->attempt_id, &db::AttemptRow::id);
    AddSummary(*summary,
               counts == attempts->end()
                   ? nullptr
                   : run->mutable_attempts(static_cast<int>(counts - attempts->begin())),
               run);
  }
  return absl::IsNotFound(summary.status()) ? absl::OkStatus() : summary.status();
}

absl::StatusOr<std::vector<v1::Run>> ReadStudyRuns(db::Store& store, int64_t study_id) {
  const auto rows = store.ListCells(study_id);
  if (!rows.ok()) return rows.status();
  const auto values = store.ListCellValues(study_id);
  if (!values.ok()) return values.status();
  const auto cells = ReadCells(*values, *rows);
  if (!cells.ok()) return cells.status();
  std::unordered_map<int64_t, size_t> index;  // by cell id
  for (size_t i = 0; i < rows->size(); ++i) index[(*rows)[i].id] = i;

  std::vector<v1::Run> runs;
  db::RunFilter filter;
  filter.study_id = study_id;
  for (bool more = true; more;) {
    const auto page = store.ListRuns(filter);
    if (!page.ok()) return page.status();
    for (const db::RunRow& row : *page) {
      const auto cell = index.find(row.cell_id);
      if (cell == index.end()) return absl::DataLossError(absl::StrCat("run ", row.id, " has no cell"));
      v1::Run& run = runs.emplace_back(ToRun(row, (*cells)[cell->second]));
      if (const absl::Status status = AddResults(store, row, &run); !status.ok()) return status;
    }
    more = static_cast<int>(page->size()) == filter.limit;
    if (more) filter.after_position = page->back().position;
  }
  return runs;
}

}  // namespace scalelab::server
