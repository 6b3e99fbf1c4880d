#include "server/core/reload.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/core/convert.h"

namespace scalelab::server {
namespace {

absl::Status Read(const std::string& json, const std::string& what, google::protobuf::Message* message) {
  const absl::Status status = FromJson(json, message);
  if (status.ok()) return status;
  return absl::DataLossError(absl::StrCat(what, " in the database cannot be parsed: ", status.message()));
}

void Want(State& state, LiveStudy& study) {
  if (!study.queued.empty() && study.allocations.empty() && !study.row.cancel_requested) {
    state.waiting.Add(study.row.id, study.row.priority, study.row.owner);
  }
}

// Reads the finish metrics from the points. Few attempts have finished and are not final at a restart.
absl::Status LoadFinishMetrics(db::Store& store, RankState& rank) {
  db::PointFilter filter;
  filter.attempt_id = rank.stream.attempt_id;
  filter.rank = rank.stream.rank;
  return store.ReadPoints(filter, [&](db::Series series) {
    if (absl::StartsWith(series.key, "run/") && !series.value.empty()) {
      rank.finish_metrics[series.key] = series.value.back();
    }
  });
}

}  // namespace

absl::StatusOr<State> LoadState(db::Store& store, db::Micros now) {
  absl::StatusOr<db::Snapshot> loaded = store.Load();
  if (!loaded.ok()) return loaded.status();
  State state;
  state.last_study_id = loaded->last_study_id;
  state.last_cell_id = loaded->last_cell_id;
  state.last_run_id = loaded->last_run_id;
  state.last_attempt_id = loaded->last_attempt_id;
  state.last_allocation_id = loaded->last_allocation_id;
  state.last_generation = now;  // larger than every generation that a worker has got

  for (db::StudyRow& row : loaded->studies) {
    auto study = std::make_unique<LiveStudy>();
    if (auto s = Read(row.spec, absl::StrCat("studies/", row.id), &study->spec); !s.ok()) return s;
    if (auto s = ExpandStudy(study->spec); s.ok()) study->spec = s->spec;  // defaults
    study->row = std::move(row);
    state.studies.emplace(study->row.id, std::move(study));
  }
  std::unordered_map<int64_t, int> cell_index;
  for (const db::CellRow& row : loaded->cells) {
    LiveStudy* study = state.study(row.study_id);
    if (study == nullptr || row.excluded) continue;
    CellState cell;
    cell.id = row.id;
    if (auto s = Read(row.spec, absl::StrCat("cell ", row.id), &cell.spec); !s.ok()) return s;
    if (auto s = Read(row.key, absl::StrCat("cell ", row.id), &cell.key); !s.ok()) return s;
    const AllocationShape shape = ShapeOf(cell.spec, study->spec.resources());
    const auto size = [](const AllocationShape& a) { return a.nodes * a.ranks_per_node; };
    if (study->cells.empty() || size(shape) > size(study->shape)) study->shape = shape;
    cell_index[row.id] = static_cast<int>(study->cells.size());
    study->cells.push_back(std::move(cell));
    study->longest.push_back(0);
  }
  std::unordered_map<int64_t, std::pair<int64_t, int>> place;  // run -> study, position
  for (db::RunRow& row : loaded->runs) {
    LiveStudy* study = state.study(row.study_id);
    if (study == nullptr) continue;
    place[row.id] = {row.study_id, row.position};
    ++study->counts[static_cast<int>(row.state)];
    if (row.state == db::RunState::kQueued) study->queued.insert(row.position);
    if (static_cast<int>(study->runs.size()) <= row.position) {
      study->runs.resize(row.position + 1);
      study->cell_of.resize(row.position + 1);
    }
    study->cell_of[row.position] = cell_index[row.cell_id];
    if (row.state == db::RunState::kSucceeded) {
      db::Micros& longest = study->longest[study->cell_of[row.position]];
      longest = std::max(longest, row.finished - row.started);
    }
    study->runs[row.position] = std::move(row);
  }
  for (db::AllocationRow& row : loaded->allocations) {
    auto allocation = std::make_unique<LiveAllocation>();
    allocation->row = std::move(row);
    allocation->listening_since = now;
    allocation->served = 1;
    allocation->generation = ++state.last_generation;
    const db::AllocationRow& kept = allocation->row;
    LiveStudy* study = state.study(kept.study_id);
    if (study != nullptr) study->allocations.insert(kept.id);
    if (kept.state == db::AllocationState::kIntended || kept.state == db::AllocationState::kPending) {
      // Cancels the job with the next poll if its study does not need it any more.
      allocation->cancel_sent = study == nullptr || study->row.cancel_requested;
      // An earlier process may have submitted the job and died before it got the answer: poll
      // before submitting again.
      allocation->submitted = true;
      if (!allocation->cancel_sent) ++state.pending_allocations;
    }
    state.allocation_by_token[kept.token] = kept.id;
    state.allocations.emplace(kept.id, std::move(allocation));
  }
  for (db::AttemptRow& row : loaded->attempts) {
    const auto where = place.find(row.run_id);
    if (where == place.end()) continue;
    auto attempt = std::make_unique<LiveAttempt>();
    attempt->study_id = where->second.first;
    attempt->position = where->second.second;
    attempt->reported = row.state != db::AttemptState::kAssigned;
    if (row.state == db::AttemptState::kStopping) attempt->stopping_since = now;
    const LiveStudy& study = *state.study(attempt->study_id);
    const int ranks = study.cells[study.cell_of[attempt->position]].spec.ranks();
    attempt->ranks.resize(ranks);
    for (int r = 0; r < ranks; ++r) {
      attempt->ranks[r].stream.attempt_id = row.id;
      attempt->ranks[r].stream.rank = r;
    }
    if (LiveAllocation* allocation = state.allocation(row.allocation_id)) allocation->attempt_id = row.id;
    state.attempt_by_token[row.token] = row.id;
    attempt->row = std::move(row);
    state.attempts.emplace(attempt->row.id, std::move(attempt));
  }
  for (db::StreamRow& row : loaded->streams) {
    LiveAttempt* attempt = state.attempt(row.attempt_id);
    if (attempt == nullptr || row.rank >= static_cast<int>(attempt->ranks.size())) continue;
    RankState& rank = attempt->ranks[row.rank];
    rank.stream = std::move(row);
    if (rank.stream.finished) {
      if (auto s = LoadFinishMetrics(store, rank); !s.ok()) return s;
    }
  }
  for (const auto& [id, study] : state.studies) Want(state, *study);
  return state;
}

}  // namespace scalelab::server
