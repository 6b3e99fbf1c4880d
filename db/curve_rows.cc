#include "db/curve_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "db/reads.h"
#include "db/sqlite/return_if_error.h"

namespace scalelab::db {
namespace {

constexpr size_t kMostChanged =
    1 << 15;                   // ids that a study remembers; more of them cost as much as a new reading
constexpr int64_t kNear = 16;  // ids so near each other are read by one scan
constexpr absl::Duration kUnused = absl::Minutes(1);

double NumberOr(const std::optional<double>& value) {
  return value.value_or(std::numeric_limits<double>::quiet_NaN());
}

void Set(double packed, std::optional<double>& value) {
  if (packed == packed) value = packed;
}

}  // namespace

void KeptCurveRows::Clear() { *this = KeptCurveRows(); }

uint32_t KeptCurveRows::NumberOf(const std::string& text) {
  const auto [it, added] = numbers_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
  if (added) texts_.push_back(text);
  return it->second;
}

KeptCurveRows::Packed KeptCurveRows::Pack(const CurveRow& row) {
  return {row.run_id,
          row.cell_id,
          row.attempt_id,
          row.nodes_hash,
          row.started,
          row.finished,
          NumberOr(row.throughput),
          NumberOr(row.epoch_seconds),
          NumberOr(row.comm_share),
          NumberOr(row.peak_memory),
          NumberOr(row.accuracy),
          NumberOr(row.train_loss),
          NumberOr(row.time_to_accuracy),
          NumberOr(row.reported_step),
          row.repeat,
          row.attempts,
          NumberOf(row.fingerprint),
          NumberOf(row.message),
          row.state,
          row.cause};
}

void KeptCurveRows::Unpack(const Packed& packed, CurveRow& row) const {
  row.run_id = packed.run_id;
  row.cell_id = packed.cell_id;
  row.repeat = packed.repeat;
  row.state = packed.state;
  row.cause = packed.cause;
  row.attempt_id = packed.attempt_id;
  Set(packed.throughput, row.throughput);
  Set(packed.epoch_seconds, row.epoch_seconds);
  Set(packed.comm_share, row.comm_share);
  Set(packed.peak_memory, row.peak_memory);
  Set(packed.accuracy, row.accuracy);
  Set(packed.train_loss, row.train_loss);
  Set(packed.time_to_accuracy, row.time_to_accuracy);
  row.fingerprint = texts_[packed.fingerprint];
  row.started = packed.started;
  row.finished = packed.finished;
  row.attempts = packed.attempts;
  Set(packed.reported_step, row.reported_step);
  row.nodes_hash = packed.nodes_hash;
  row.message = texts_[packed.message];
}

absl::StatusOr<std::vector<CurveRow>> KeptCurveRows::Update(Database& db, int64_t study_id,
                                                            std::vector<int64_t> changed) {
  int64_t first = 0, last = -1;
  absl::Status status = RunRange(db, study_id, first, last);
  // Texts of earlier messages stay until all rows are read again.
  const bool too_many_texts = texts_.size() > 2 * rows_.size();
  absl::StatusOr<bool> kept =
      status.ok() && !rows_.empty() && !too_many_texts && first == first_ && last == last_;
  if (status.ok() && *kept) {
    kept = ReadChanged(db, study_id, std::move(changed));
    status = kept.status();
  }
  if (!status.ok()) {
    Clear();
    return status;
  }
  if (!*kept) return ReadAll(db, study_id, first, last);
  std::vector<CurveRow> rows;
  rows.reserve(rows_.size());
  if (order_.empty()) {
    for (const Packed& row : rows_) Unpack(row, rows.emplace_back());
  } else {
    for (const uint32_t place : order_) Unpack(rows_[place], rows.emplace_back());
  }
  return rows;
}

absl::StatusOr<std::vector<CurveRow>> KeptCurveRows::ReadAll(Database& db, int64_t study_id, int64_t first,
                                                             int64_t last) {
  Clear();
  std::vector<CurveRow> rows;
  SCALELAB_RETURN_IF_ERROR(ReadCurveRows(db, study_id, first, last, rows));
  first_ = first, last_ = last;
  rows_.reserve(rows.size());
  for (const CurveRow& row : rows) rows_.push_back(Pack(row));
  order_ = OrderOfCurve(rows);
  SortForCurve(order_, rows);
  return rows;
}

absl::StatusOr<bool> KeptCurveRows::ReadChanged(Database& db, int64_t study_id,
                                                std::vector<int64_t> changed) {
  std::sort(changed.begin(), changed.end());
  std::vector<CurveRow> rows;
  for (size_t begin = 0, end = 0; begin < changed.size(); begin = end) {
    while (end == begin || (end < changed.size() && changed[end] - changed[end - 1] <= kNear)) ++end;
    const int64_t from = std::max(changed[begin], first_), to = std::min(changed[end - 1], last_);
    if (from > to) continue;
    rows.clear();
    SCALELAB_RETURN_IF_ERROR(ReadCurveRows(db, study_id, from, to, rows));
    const auto by_id = [](const Packed& row, int64_t id) { return row.run_id < id; };
    const auto place = std::lower_bound(rows_.begin(), rows_.end(), from, by_id);
    const auto after = std::lower_bound(place, rows_.end(), to + 1, by_id);
    const auto same = [](const Packed& kept, const CurveRow& row) {
      return kept.run_id == row.run_id && kept.cell_id == row.cell_id && kept.repeat == row.repeat;
    };
    if (!std::equal(place, after, rows.begin(), rows.end(), same)) return false;
    std::transform(rows.begin(), rows.end(), place, [&](const CurveRow& row) { return Pack(row); });
  }
  return true;
}

absl::StatusOr<std::vector<CurveRow>> CurveRowCache::List(int64_t study_id, Reader reader) {
  std::vector<CurveRow> rows;
  std::shared_ptr<Study> study = Find(study_id, /*add=*/false);
  if (study == nullptr) {
    bool large = false;
    const absl::Status status = reader([&](Database& db) {
      int64_t first = 0, last = -1;
      SCALELAB_RETURN_IF_ERROR(RunRange(db, study_id, first, last));
      large = last - first + 1 >= static_cast<int64_t>(fewest_);
      if (large) return absl::OkStatus();
      absl::StatusOr<std::vector<CurveRow>> all = ListCurveRows(db, study_id);
      if (all.ok()) rows = *std::move(all);
      return all.status();
    });
    if (!status.ok()) return status;
    if (!large) return rows;
    study = Find(study_id, /*add=*/true);
  }
  absl::MutexLock lock(&study->mutex);
  std::vector<int64_t> changed;
  bool all_changed = false;
  {
    absl::MutexLock cache_lock(&mutex_);
    changed.swap(study->changed);
    all_changed = std::exchange(study->all_changed, false);
  }
  if (all_changed) study->rows.Clear();
  // The transaction begins after `changed` was taken: it contains the commits of all these changes.
  const absl::Status status = reader([&](Database& db) {
    study->mutex.AssertHeld();  // the thread safety analysis does not look through lambdas
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    absl::StatusOr<std::vector<CurveRow>> updated = study->rows.Update(db, study_id, changed);
    if (updated.ok()) rows = *std::move(updated);
    return updated.status();
  });
  // After an error, what has changed is not known any more.
  if (!status.ok() || study->rows.size() < fewest_) study->rows.Clear();
  absl::MutexLock cache_lock(&mutex_);
  study->size = study->rows.size();
  study->listed = absl::Now();
  Shrink();
  if (!status.ok()) return status;
  return rows;
}

std::shared_ptr<CurveRowCache::Study> CurveRowCache::Find(int64_t study_id, bool add) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::find_if(studies_.begin(), studies_.end(),
                                  [&](const auto& study) { return study->id == study_id; });
  if (found != studies_.end()) {
    studies_.splice(studies_.begin(), studies_, found);
    return studies_.front();
  }
  if (!add) return nullptr;
  studies_.push_front(std::make_shared<Study>());
  studies_.front()->id = study_id;
  studies_.front()->listed = absl::Now();
  return studies_.front();
}

void CurveRowCache::Changed(std::span<const int64_t> run_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::shared_ptr<Study>& study : studies_) {
    if (study->all_changed) continue;
    if (study->changed.size() + run_ids.size() > kMostChanged) {
      study->all_changed = true;
      study->changed = {};
    } else {
      study->changed.insert(study->changed.end(), run_ids.begin(), run_ids.end());
    }
  }
}

void CurveRowCache::Shrink() {
  size_t total = 0;
  for (auto it = studies_.begin(); it != studies_.end();) {
    total += (*it)->size;
    it = total > most_ ? studies_.erase(it) : std::next(it);
  }
}

void CurveRowCache::DropUnused(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  studies_.remove_if([&](const auto& study) { return now - study->listed > kUnused; });
}

}  // namespace scalelab::db
