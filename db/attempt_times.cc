// Which attempts ran at the same time as those of a study.
#include <limits>

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

// Number of studies in a row that were created too early, after which a search ends. A restored study is older than its
// id, so that one such study says nothing about those before it.
constexpr int kTooOldInARow = 64;

// Collects the studies that overlap in time with `study`. Ids rise with the time of creation, except those of restored
// studies, so that a search from the study in both directions has an end; older studies that have not ended have an index.
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

// Appends the times of a study's attempts that overlap with the time from `from` to `to`.
absl::Status AddTimes(Database& db, const Candidate& study, Micros from, Micros to,
                      std::vector<AttemptTime>& times) {
  const auto add = [&](const AttemptTime& time) {
    const Micros end = time.finished == 0 ? kNever : time.finished;
    if (time.assigned <= to && end >= from) times.push_back(time);
  };
  Statement attempts(db, "SELECT assigned, finished FROM attempt WHERE run_id = ?");
  Statement runs(db,
                 "SELECT id, state, attempts, started, finished FROM run WHERE id BETWEEN ? AND ? AND "
                 "+study_id = ? AND attempts > 0");
  runs.Bind(study.first_run, study.last_run, study.id);
  while (runs.Step()) {
    int64_t id = 0;
    RunState state{};
    int count = 0;
    AttemptTime time;
    runs.Read(id, state, count, time.assigned, time.finished);
    // The only attempt of such a run has the times of the run.
    if (count == 1 && (state == RunState::kSucceeded || state == RunState::kRunning)) {
      add(time);
      continue;
    }
    attempts.Bind(id);
    while (attempts.Step()) {
      attempts.Read(time.assigned, time.finished);
      add(time);
    }
    if (!attempts.status().ok()) return attempts.status();
    attempts.Reset();
  }
  return runs.status();
}

}  // namespace

absl::StatusOr<std::vector<AttemptTime>> ListAttemptTimes(Database& db, int64_t study_id) {
  Transaction transaction(db, Transaction::Kind::kRead);
  if (!transaction.status().ok()) return transaction.status();
  Candidate study;
  {
    Statement one(db, SCALELAB_CANDIDATES "id = ? AND" SCALELAB_VISIBLE_STUDY("study.id"));
    one.Bind(study_id);
    if (one.Step()) study.ReadFrom(one);
    if (!one.status().ok()) return one.status();
  }
  std::vector<AttemptTime> times;
  if (study.started == 0) return times;
  std::vector<Candidate> overlapping;
  if (absl::Status status = FindOverlapping(db, study, overlapping); !status.ok()) return status;
  for (const Candidate& other : overlapping) {
    if (absl::Status status = AddTimes(db, other, study.started, study.finished, times); !status.ok())
      return status;
  }
  return times;
}

}  // namespace scalelab::db
