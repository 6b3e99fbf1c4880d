// Which attempts ran at the same time as those of a study.
#include <limits>
#include <utility>
#include <vector>

#include "db/deletion.h"
#include "db/reads.h"

namespace scalelab::db {
namespace {

constexpr Micros kOldest = 60LL * 86'400 * 1'000'000;
constexpr Micros kNever = std::numeric_limits<Micros>::max();

// A study with the time from its first attempt to its end, and the range of the ids of its runs.
struct Candidate {
  int64_t id = 0;
  Micros created = 0, started = 0, finished = 0;
  int64_t first_run = 0, last_run = -1;

  void ReadFrom(Statement& statement) {
    statement.Read(id, created, started, finished, first_run, last_run);
    if (finished == 0) finished = kNever;
  }
};

#define SCALELAB_CANDIDATES \
  "SELECT id, created, started, finished, first_run_id, last_run_id FROM study WHERE "

// A search ends after this number of consecutive studies that were created too early. One such study does not
// suffice: it may be a restored study, which got its id long after it was created.
constexpr int kTooOldInARow = 64;

// Collects the studies that overlap in time with `study`. Ids increase with the time of creation, except for
// restored studies. The function therefore searches from the id of `study` in both directions, until studies
// are too old or too new. An index finds the older studies that have not ended.
absl::Status FindOverlapping(Database& db, const Candidate& study, std::vector<Candidate>& overlapping) {
  Candidate other;
  const auto add = [&] {
    if (other.started != 0 && other.started <= study.finished && other.finished >= study.started)
      overlapping.push_back(other);
  };
  Statement newer(db, SCALELAB_CANDIDATES "id > ? AND" SCALELAB_VISIBLE_STUDY("study.id") "ORDER BY id");
  newer.Bind(study.id);
  while (newer.Step()) {
    other.ReadFrom(newer);
    if (other.created > study.finished) break;
    add();
  }
  if (!newer.status().ok()) return newer.status();
  int64_t oldest = study.id + 1;
  int too_old = 0;
  Statement older(db,
                  SCALELAB_CANDIDATES "id <= ? AND" SCALELAB_VISIBLE_STUDY("study.id") "ORDER BY id DESC");
  older.Bind(study.id);
  while (older.Step()) {
    other.ReadFrom(older);
    oldest = other.id;
    too_old = other.created < study.started - kOldest ? too_old + 1 : 0;
    if (too_old == kTooOldInARow) break;
    if (too_old == 0 || other.finished == kNever) add();
  }
  if (!older.status().ok()) return older.status();
  Statement open(db, SCALELAB_CANDIDATES "state < 3 AND +id < ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
  open.Bind(oldest);
  while (open.Step()) {
    other.ReadFrom(open);
    add();
  }
  return open.status();
}

// Collects the times of the attempts that overlap with the interval from `from` to `to`.
class OverlappingTimes {
 public:
  OverlappingTimes(Database& db, Micros from, Micros to)
      : from_(from), to_(to), attempts_(db, "SELECT assigned, finished FROM attempt WHERE run_id = ?") {}

  // Adds the attempts of a run. `time` is the time of the run itself.
  absl::Status AddRun(int64_t id, RunState state, int attempts, AttemptTime time) {
    if (attempts == 0) return absl::OkStatus();
    // If the run has only one attempt, the attempt has the times of the run, and the query is not needed.
    if (attempts == 1 && (state == RunState::kSucceeded || state == RunState::kRunning)) {
      Add(time);
      return absl::OkStatus();
    }
    attempts_.Bind(id);
    while (attempts_.Step()) {
      attempts_.Read(time.assigned, time.finished);
      Add(time);
    }
    if (!attempts_.status().ok()) return attempts_.status();
    attempts_.Reset();
    return absl::OkStatus();
  }

  void Reserve(size_t attempts) { times_.reserve(attempts); }
  std::vector<AttemptTime> Take() { return std::move(times_); }

 private:
  void Add(const AttemptTime& time) {
    const Micros end = time.finished == 0 ? kNever : time.finished;
    if (time.assigned <= to_ && end >= from_) times_.push_back(time);
  }

  const Micros from_, to_;
  Statement attempts_;
  std::vector<AttemptTime> times_;
};

// Adds the attempts of a study whose runs are not in memory.
absl::Status AddStudy(Database& db, const Candidate& study, OverlappingTimes& times) {
  Statement runs(db,
                 "SELECT id, state, attempts, started, finished FROM run WHERE id BETWEEN ? AND ? AND "
                 "+study_id = ? AND attempts > 0");
  runs.Bind(study.first_run, study.last_run, study.id);
  while (runs.Step()) {
    int64_t id = 0;
    RunState state{};
    int attempts = 0;
    AttemptTime time;
    runs.Read(id, state, attempts, time.assigned, time.finished);
    if (absl::Status status = times.AddRun(id, state, attempts, time); !status.ok()) return status;
  }
  return runs.status();
}

}  // namespace

absl::StatusOr<std::vector<AttemptTime>> ListAttemptTimes(Database& db, int64_t study_id,
                                                          const std::vector<CurveRow>& rows) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  Candidate study;
  {
    Statement one(db, SCALELAB_CANDIDATES "id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
    one.Bind(study_id);
    if (one.Step()) study.ReadFrom(one);
    if (!one.status().ok()) return one.status();
  }
  if (study.started == 0) return std::vector<AttemptTime>();
  std::vector<Candidate> overlapping;
  if (absl::Status status = FindOverlapping(db, study, overlapping); !status.ok()) return status;
  OverlappingTimes times(db, study.started, study.finished);
  times.Reserve(rows.size());
  for (const Candidate& other : overlapping) {
    if (other.id == study.id) continue;
    if (absl::Status status = AddStudy(db, other, times); !status.ok()) return status;
  }
  for (const CurveRow& row : rows) {
    absl::Status status = times.AddRun(row.run_id, row.state, row.attempts, {row.started, row.finished});
    if (!status.ok()) return status;
  }
  return times.Take();
}

}  // namespace scalelab::db
