#include "server/core/reload.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "catalog/engines.h"
#include "db/continued_points.h"
#include "planted/bug.h"
#include "server/cells/cells.h"
#include "server/core/blocks.h"
#include "server/core/convert.h"
#include "server/core/outcome.h"

namespace scalelab::server {
namespace {

// Greatest number of failed allocations that counts after a restart.
constexpr int kFailuresKept = 4;

absl::Status Read(const std::string& json, const std::string& what, google::protobuf::Message* message) {
  const absl::Status status = FromJson(json, message);
  if (status.ok()) return status;
  return absl::DataLossError(absl::StrCat(what, " in the database cannot be parsed: ", status.message()));
}

// Reads the finish metrics from the points. At a restart, few attempts have finished and are not final.
absl::Status LoadFinishMetrics(db::Store& store, RankState& rank) {
  db::AttemptRow attempt;
  attempt.id = rank.stream.attempt_id;
  db::PointFilter filter;
  filter.rank = rank.stream.rank;
  return db::ReadContinuedPoints(store, {attempt}, filter, [&](const db::Series& piece) {
    if (absl::StartsWith(piece.key, "run/") || absl::StartsWith(piece.key, "bucket/"))
      rank.finish_metrics[piece.key] = piece.value.back();
  });
}

// Restores the durations of the steps that rank 0 has reported.
absl::Status LoadSteps(db::Store& store, const LiveStudy& study, LiveAttempt& attempt) {
  if (attempt.ranks[0].stream.position == 0) return absl::OkStatus();
  // Other engines report their throughput, so their steps are not worth the time of reading them.
  if (!RunsOwnProgram(study.cells.Text(study.cell_of[attempt.position], v1::RunSpec::kEngineFieldNumber))) {
    attempt.ranks[0].steps.Miss();
    return absl::OkStatus();
  }
  db::PointFilter filter;
  filter.rank = 0;
  filter.key = "step/total_s";
  return db::ReadContinuedPoints(store, {attempt.row}, filter, [&](const db::Series& piece) {
    study.CountSteps(StepsOf(piece.step, piece.value), attempt);
  });
}

// Reads the steps of the checkpoints that the attempts of a run have written.
absl::Status LoadCheckpoints(db::Store& store, const db::RunRow& run, LiveStudy& study) {
  if (run.attempts == 0 || run.state == db::RunState::kSucceeded) return absl::OkStatus();
  if (!WritesCheckpoints(study.cells.SpecWithoutCommand(study.cell_of[run.position])))
    return absl::OkStatus();
  const auto attempts = store.ListAttempts(run.id);
  if (!attempts.ok()) return attempts.status();
  for (const db::AttemptRow& attempt : *attempts) {
    if (IsFinal(attempt.state)) study.AttemptEnded(run.position, attempt);
  }
  return absl::OkStatus();
}

// Maps ids of cells to their indexes in their studies.
class CellIndex {
 public:
  void Add(int64_t id, int index) { entries_.emplace_back(id, index); }
  void Sort() { std::sort(entries_.begin(), entries_.end()); }
  // Returns the index of a cell, or -1 if the cell is not known.
  int Find(int64_t id) const {
    const auto it = std::lower_bound(entries_.begin(), entries_.end(), std::pair(id, 0));
    return it != entries_.end() && it->first == id ? it->second : -1;
  }

 private:
  std::vector<std::pair<int64_t, int>> entries_;
};

struct ByStudy {
  bool operator()(const db::CellValueRow& row, int64_t study_id) const { return row.study_id < study_id; }
  bool operator()(int64_t study_id, const db::CellValueRow& row) const { return study_id < row.study_id; }
};

// Adds the cells that have runs to their studies.
absl::Status AddCells(db::Snapshot& loaded, State& state, CellIndex& index) {
  const auto values_of = [&](int64_t study_id) {
    const auto [first, last] =
        std::equal_range(loaded.cell_values.begin(), loaded.cell_values.end(), study_id, ByStudy());
    return absl::MakeConstSpan(loaded.cell_values).subspan(first - loaded.cell_values.begin(), last - first);
  };
  std::erase_if(loaded.cells, [](const db::CellRow& row) { return row.excluded; });
  const absl::Span<const db::CellRow> all = loaded.cells;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const int64_t study_id = all[begin].study_id;
    while (end < all.size() && all[end].study_id == study_id) ++end;
    LiveStudy* study = state.study(study_id);
    if (study == nullptr) continue;
    const absl::Span<const db::CellRow> rows = all.subspan(begin, end - begin);
    absl::StatusOr<CellList> cells = ReadCells(values_of(study_id), rows);
    if (!cells.ok()) return cells.status();
    // A single allocation at a time has a shape that does not depend on the samples.
    const bool parallel = ConcurrentAllocations(study->spec) > 1;
    ShapeOfCells shape;
    for (size_t i = 0; i < rows.size(); ++i) {
      shape.Add(cells->NeedsOf(i), parallel ? SamplesOfRank(cells->SpecWithoutCommand(i)) : 0);
      index.Add(rows[i].id, static_cast<int>(i));
    }
    study->cells = *std::move(cells);
    study->longest.assign(rows.size(), 0);
    study->shapes = shape.GetGroup(study->spec).shapes;
  }
  loaded.cells = {};
  loaded.cell_values = {};
  index.Sort();
  return absl::OkStatus();
}

// Builds the state from rows.
absl::Status AddRows(db::Store& store, db::Snapshot loaded, db::Micros now, State& state) {
  for (db::StudyRow& row : loaded.studies) {
    auto study = std::make_unique<LiveStudy>();
    if (auto s = Read(row.spec, absl::StrCat("studies/", row.id), &study->spec); !s.ok()) return s;
    study->spec = WithDefaults(std::move(study->spec));
    ForgetGrid(study->spec);
    study->row = std::move(row);
    study->gpu_seconds = loaded.gpu_seconds[study->row.id];
    if (Planted(Bug::kCancelForgotten)) study->row.cancel_requested = false;
    state.studies.emplace(study->row.id, std::move(study));
  }
  for (db::UnusedAllocations& row : loaded.unused_allocations) {
    LiveStudy* study = state.study(row.study_id);
    if (study == nullptr) continue;
    FailedAllocations& failed = study->failed_allocations[row.run_id];
    // The count may include allocations that were preempted or cancelled, so limit it.
    failed.count = std::min(row.count, kFailuresKept);
    failed.reason = std::move(row.last_reason);  // sets no delay, because a restart is often a repair
  }
  CellIndex cell_index;
  if (auto s = AddCells(loaded, state, cell_index); !s.ok()) return s;
  std::unordered_map<int64_t, std::pair<int64_t, int>> place;  // run of a live attempt -> study, position
  for (const db::AttemptRow& row : loaded.attempts) place.emplace(row.run_id, std::pair(0, 0));
  for (db::RunRow& row : loaded.runs) {
    LiveStudy* study = state.study(row.study_id);
    if (study == nullptr) continue;
    // Positions are indexes into the runs of a study, and the snapshot has all of them.
    if (row.position < 0 || row.position >= std::ssize(loaded.runs)) {
      return absl::DataLossError(absl::StrCat("the database has position ", row.position, " for ",
                                              RunName(row.study_id, row.id),
                                              "; restore a backup, see docs/operators/backup.md"));
    }
    if (const auto it = place.find(row.id); it != place.end()) it->second = {row.study_id, row.position};
    if (Planted(Bug::kAttemptsForgotten)) row.attempts = 0;
    if (const auto it = loaded.noisy_attempts.find(row.id); it != loaded.noisy_attempts.end())
      study->reruns[row.position] = it->second;
    ++study->counts[static_cast<int>(row.state)];
    if (row.state == db::RunState::kQueued) study->queued.insert(study->queued.end(), row.position);
    if (static_cast<int>(study->runs.size()) <= row.position) {
      study->runs.resize(row.position + 1);
      study->cell_of.resize(row.position + 1);
    }
    const int cell = cell_index.Find(row.cell_id);
    if (cell < 0) {
      return absl::DataLossError(absl::StrCat("the database lacks cell ", row.cell_id, " of ",
                                              RunName(row.study_id, row.id),
                                              "; restore a backup, see docs/operators/backup.md"));
    }
    study->cell_of[row.position] = cell;
    if (row.state == db::RunState::kSucceeded) study->RunTook(row.position, row.finished - row.started);
    if (auto s = LoadCheckpoints(store, row, *study); !s.ok()) return s;
    const int position = row.position;
    study->runs[position] = std::move(row);
    study->UpdateUnallocated(position);
  }
  for (db::AllocationRow& row : loaded.allocations) {
    auto allocation = std::make_unique<LiveAllocation>();
    allocation->row = std::move(row);
    allocation->listening_since = now;
    if (const auto served = loaded.attempts_served.find(allocation->row.id);
        served != loaded.attempts_served.end()) {
      allocation->served = served->second.attempts;
      const auto newest = place.find(served->second.newest_run);
      if (allocation->row.run_id == 0 && newest != place.end())
        allocation->part = PartOf(*state.study(newest->second.first), newest->second.second);
    }
    allocation->generation = ++state.last_generation;
    const db::AllocationRow& kept = allocation->row;
    // charged_until is in the future if the clock was set back while the server did not run.
    allocation->row.charged_until = std::min(kept.charged_until, now);
    const LiveStudy* study = state.study(kept.study_id);
    allocation->cancel_sent = allocation->cancelled_earlier = kept.cancelled != 0;
    allocation->first_cancel = std::min(kept.cancelled, now);
    if (kept.state == db::AllocationState::kIntended || kept.state == db::AllocationState::kPending) {
      // The next poll cancels the job if its study does not need it any more.
      if (study == nullptr || study->row.cancel_requested) allocation->cancel_sent = true;
      // An earlier process may have submitted the job and ended before the response arrived, so poll
      // before submitting again.
      allocation->submitted = !Planted(Bug::kIntentNotPolled);
      if (!allocation->cancel_sent) ++state.pending[QueueOf(*allocation)];
    }
    state.allocation_by_token[kept.token] = kept.id;
    state.allocations.emplace(kept.id, std::move(allocation));
  }
  std::sort(loaded.attempts.begin(), loaded.attempts.end(),
            [](const db::AttemptRow& a, const db::AttemptRow& b) { return a.id < b.id; });
  for (db::AttemptRow& row : loaded.attempts) {
    if (Planted(Bug::kCancelForgotten)) row.state = db::AttemptState::kRunning;
    const auto where = place.find(row.run_id);
    if (where == place.end() || where->second.first == 0) continue;
    auto attempt = std::make_unique<LiveAttempt>();
    attempt->study_id = where->second.first;
    attempt->position = where->second.second;
    attempt->reported = row.started != 0;
    if (row.state == db::AttemptState::kStopping) {
      attempt->stopping_since = now;
      attempt->stop_reason = row.message;
    }
    const LiveStudy& study = *state.study(attempt->study_id);
    const int ranks = study.cells.NeedsOf(study.cell_of[attempt->position]).ranks;
    attempt->ranks.resize(ranks);
    for (int r = 0; r < ranks; ++r) {
      attempt->ranks[r].stream.attempt_id = row.id;
      attempt->ranks[r].stream.rank = r;
    }
    LiveAllocation* allocation = state.allocation(row.allocation_id);
    if (allocation != nullptr) {
      attempt->assigned_ahead = allocation->attempt_id != 0;
      if (attempt->assigned_ahead) {
        allocation->next_attempts.push_back(row.id);
      } else {
        allocation->attempt_id = row.id;
      }
    }
    if (allocation == nullptr || row.cause != db::Cause::kNone) {
      attempt->recovery.emplace().since = now;
      state.recovering.insert(row.id);
    }
    state.attempt_by_token[row.token] = row.id;
    attempt->row = std::move(row);
    state.attempts.emplace(attempt->row.id, std::move(attempt));
  }
  for (const auto& [id, allocation] : state.allocations) {
    if (LiveStudy* study = state.study(allocation->row.study_id)) study->UpdateAllocation(*allocation);
  }
  for (const db::ProvenanceRow& row : loaded.provenance) {
    LiveAttempt* attempt = state.attempt(row.attempt_id);
    if (attempt == nullptr) continue;
    attempt->hardware = NodesOfProvenance(row.json);
    if (auto code = CodeOfProvenance(row.json)) attempt->code = *std::move(code);
  }
  for (db::StreamRow& row : loaded.streams) {
    LiveAttempt* attempt = state.attempt(row.attempt_id);
    if (attempt == nullptr || row.rank >= static_cast<int>(attempt->ranks.size())) continue;
    RankState& rank = attempt->ranks[row.rank];
    rank.stream = std::move(row);
    if (rank.stream.rank == 0) {
      if (auto s = LoadSteps(store, *state.study(attempt->study_id), *attempt); !s.ok()) return s;
    }
    if (rank.stream.finished) {
      if (auto s = LoadFinishMetrics(store, rank); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

void KeepReports(LiveAllocation& from, LiveAllocation& to) {
  to.workers = std::move(from.workers);
  to.replaced = std::move(from.replaced);
  to.submitting = from.submitting;
  to.listening_since = from.listening_since;
  to.leaving_since = from.leaving_since;
  to.ends_at = from.ends_at;
  to.charge_moved = to.row.charged_until != from.row.charged_until;
  to.row.charged_until = from.row.charged_until;
  to.withdrawn = from.withdrawn;
  to.refusals = from.refusals;
  to.unknown_errors = from.unknown_errors;
  to.forgotten = from.forgotten;
  to.retry_at = from.retry_at;
  to.suspended = from.suspended;
  to.cancelled_earlier = from.cancelled_earlier;
  if (!to.cancel_sent) return;  // the commit of its first cancel has failed, so it was not cancelled
  to.cancels = from.cancels;
  to.cancel_again_at = from.cancel_again_at;
  to.first_cancel = from.first_cancel;
  to.cancel_failed = from.cancel_failed;
  to.cancel_error = std::move(from.cancel_error);
}

void KeepReports(LiveAttempt& from, LiveAttempt& to) {
  to.reported = from.reported;
  to.assigned_ahead = from.assigned_ahead;
  to.turn_since = from.turn_since;
  to.reported_by = std::move(from.reported_by);
  to.assigned_to = std::move(from.assigned_to);
  to.ended = std::move(from.ended);
  to.held_since = from.held_since;
  to.step = from.step;
  to.total_steps = from.total_steps;
  to.train_loss = from.train_loss;
  to.cut_short = from.cut_short;
  to.hardware = std::move(from.hardware);
  if (to.recovery && from.recovery) to.recovery->number = from.recovery->number;
}

// Moves the studies, allocations and attempts of `from` into `to`.
void MoveInto(State& from, State& to) {
  to.last_generation = std::max(to.last_generation, from.last_generation);
  to.studies.merge(from.studies);
  to.attempts.merge(from.attempts);
  to.allocations.merge(from.allocations);
  to.attempt_by_token.merge(from.attempt_by_token);
  to.allocation_by_token.merge(from.allocation_by_token);
  to.recovering.merge(from.recovering);
  for (const auto& [queue, pending] : from.pending) to.pending[queue] += pending;
}

// Removes a study with its allocations and attempts, and returns them.
State Remove(State& state, int64_t study_id) {
  State removed;
  state.waiting.Remove(study_id);
  state.delayed.erase(study_id);
  if (auto study = state.studies.extract(study_id)) removed.studies.insert(std::move(study));
  for (auto it = state.attempts.begin(); it != state.attempts.end();) {
    const auto attempt = it++;
    if (attempt->second->study_id != study_id) continue;
    state.attempt_by_token.erase(attempt->second->row.token);
    state.recovering.erase(attempt->first);
    removed.attempts.insert(state.attempts.extract(attempt));
  }
  for (auto it = state.allocations.begin(); it != state.allocations.end();) {
    const auto entry = it++;
    const LiveAllocation& allocation = *entry->second;
    if (allocation.row.study_id != study_id) continue;
    if (Waits(allocation.row.state) && !allocation.cancel_sent) {
      const auto pending = state.pending.find(QueueOf(allocation));
      if (--pending->second == 0) state.pending.erase(pending);
    }
    state.allocation_by_token.erase(allocation.row.token);
    removed.allocations.insert(state.allocations.extract(entry));
  }
  return removed;
}

}  // namespace

absl::Status ReloadStudies(db::Store& store, const std::set<int64_t>& ids, db::Micros now, State& state) {
  const absl::StatusOr<db::ServiceState> service = store.LoadServiceState();
  if (!service.ok()) return service.status();
  State fresh;
  fresh.last_generation = state.last_generation;
  for (const int64_t id : ids) {
    absl::StatusOr<db::Snapshot> loaded = store.LoadStudy(id);
    if (!loaded.ok()) return loaded.status();
    // A final study is not live, but its allocations may be.
    std::erase_if(loaded->studies, [](const db::StudyRow& row) { return IsFinal(row.state); });
    if (auto s = AddRows(store, *std::move(loaded), now, fresh); !s.ok()) return s;
  }
  for (const int64_t id : ids) {
    State old = Remove(state, id);
    for (const auto& [allocation_id, allocation] : old.allocations) {
      if (LiveAllocation* kept = fresh.allocation(allocation_id)) KeepReports(*allocation, *kept);
    }
    for (const auto& [attempt_id, attempt] : old.attempts) {
      if (LiveAttempt* kept = fresh.attempt(attempt_id)) KeepReports(*attempt, *kept);
    }
    LiveStudy* study = fresh.study(id);
    if (study == nullptr || old.study(id) == nullptr) continue;
    study->failed_allocations = std::move(old.study(id)->failed_allocations);
    study->failed_attempts = std::move(old.study(id)->failed_attempts);
    for (const auto& [position, until] : old.study(id)->delayed) {
      if (study->queued.erase(position) > 0) study->delayed.emplace(position, until);
    }
  }
  MoveInto(fresh, state);
  state.usage.Restore(*service);
  state.drain = service->drain;
  state.requests.clear();  // may contain studies that were not stored; handlers also search the database
  state.request_order.clear();
  ++state.final_changes;
  return absl::OkStatus();
}

std::set<int64_t> StudiesOf(const Effects& fx, const State& state) {
  std::set<int64_t> ids = fx.changed_studies;
  const auto add_allocation = [&](const LiveAllocation* allocation) {
    if (allocation != nullptr) ids.insert(allocation->row.study_id);
  };
  const auto add_token = [&](const std::string& token) {
    const auto it = state.allocation_by_token.find(token);
    if (it != state.allocation_by_token.end()) add_allocation(state.allocation(it->second));
  };
  const auto add_attempt = [&](int64_t id) {
    if (const LiveAttempt* attempt = state.attempt(id)) ids.insert(attempt->study_id);
  };
  // Study 0 does not exist. Reloading any study also reloads the state that belongs to no study.
  if (fx.batch.drain || !fx.batch.usage.empty()) ids.insert(0);
  for (const db::StudyRow& row : fx.batch.studies) ids.insert(row.id);
  for (const db::RunRow& row : fx.batch.runs) ids.insert(row.study_id);
  for (const db::AllocationRow& row : fx.batch.allocations) ids.insert(row.study_id);
  for (const db::AttemptRow& row : fx.batch.attempts) add_attempt(row.id);
  for (const db::StreamAppend& append : fx.batch.appends) add_attempt(append.attempt_id);
  for (const AssessRequest& request : fx.assess) ids.insert(request.study_id);
  for (const JobRequest& request : fx.submit) add_token(request.token);
  for (const std::string& token : fx.cancel) add_token(token);
  for (const int64_t id : fx.woken) add_allocation(state.allocation(id));
  return ids;
}

absl::StatusOr<State> LoadState(db::Store& store, db::Micros now) {
  absl::StatusOr<db::Snapshot> loaded = store.Load();
  if (!loaded.ok()) return loaded.status();
  State state;
  state.last_study_id = loaded->last_study_id;
  state.last_cell_id = loaded->last_cell_id;
  state.last_run_id = loaded->last_run_id;
  state.last_attempt_id = loaded->last_attempt_id;
  state.last_allocation_id = loaded->last_allocation_id;
  state.last_generation = now;  // larger than every generation that a worker has received
  state.usage.Restore(loaded->service);
  state.drain = loaded->service.drain;
  for (auto row = loaded->newest_provenance.rbegin(); row != loaded->newest_provenance.rend(); ++row) {
    for (const v1::NodeNoise& noise : NoiseOfProvenance(row->json)) state.noise.Add(noise);
  }
  if (auto s = AddRows(store, *std::move(loaded), now, state); !s.ok()) return s;
  return state;
}

absl::StatusOr<std::unique_ptr<LiveStudy>> LoadFinalStudy(db::Store& store, int64_t id) {
  absl::StatusOr<db::Snapshot> loaded = store.LoadStudy(id);
  if (!loaded.ok()) return loaded.status();
  if (loaded->studies.empty()) return absl::NotFoundError(absl::StrCat("there is no study ", id));
  State state;
  if (auto s = AddRows(store, *std::move(loaded), 0, state); !s.ok()) return s;
  return std::move(state.studies.at(id));
}

}  // namespace scalelab::server
