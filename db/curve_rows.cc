#include "db/curve_rows.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "db/reads.h"
#include "db/sqlite/return_if_error.h"

namespace scalelab::db {
namespace {

// Maximum number of changed ids that are kept for a study. Reading more rows than this again would cost as
// much as reading all rows of the study.
constexpr size_t kMostChanged = 1 << 15;
constexpr int64_t kNear = 16;  // ids whose distance is at most this are read by one scan
constexpr absl::Duration kUnused = absl::Minutes(1);

}  // namespace

void KeptCurveRows::Clear() { *this = KeptCurveRows(); }

absl::StatusOr<SharedCurveRows> KeptCurveRows::Update(Database& db, int64_t study_id,
                                                      std::vector<int64_t> changed) {
  int64_t first = 0, last = -1;
  absl::Status status = RunRange(db, study_id, first, last);
  absl::StatusOr<bool> kept = status.ok() && !rows_->empty() && first == first_ && last == last_;
  if (status.ok() && *kept) {
    kept = ReadChanged(db, study_id, std::move(changed));
    status = kept.status();
  }
  if (status.ok() && !*kept) status = ReadAll(db, study_id, first, last);
  if (!status.ok()) {
    Clear();
    return status;
  }
  return rows_;
}

absl::Status KeptCurveRows::ReadAll(Database& db, int64_t study_id, int64_t first, int64_t last) {
  Clear();
  std::vector<CurveRow> rows;
  SCALELAB_RETURN_IF_ERROR(ReadCurveRows(db, study_id, first, last, rows));
  first_ = first, last_ = last;
  const std::vector<uint32_t> order = OrderOfCurve(rows);
  SortForCurve(order, rows);
  by_id_.resize(order.size());
  for (uint32_t place = 0; place < order.size(); ++place) by_id_[order[place]] = place;
  rows_ = std::make_shared<const std::vector<CurveRow>>(std::move(rows));
  return absl::OkStatus();
}

absl::StatusOr<bool> KeptCurveRows::ReadChanged(Database& db, int64_t study_id,
                                                std::vector<int64_t> changed) {
  if (changed.empty()) return true;
  std::sort(changed.begin(), changed.end());
  auto updated = std::make_shared<std::vector<CurveRow>>(*rows_);
  const auto row_at = [&](size_t i) -> CurveRow& { return (*updated)[by_id_.empty() ? i : by_id_[i]]; };
  // A binary search. Clang 14 cannot compile std::ranges::lower_bound over std::views::iota of libstdc++ 12.
  const auto first_from = [&](int64_t id) {
    size_t low = 0, high = updated->size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (row_at(middle).run_id < id)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  std::vector<CurveRow> rows;
  for (size_t begin = 0, end = 0; begin < changed.size(); begin = end) {
    while (end == begin || (end < changed.size() && changed[end] - changed[end - 1] <= kNear)) ++end;
    const int64_t from = std::max(changed[begin], first_), to = std::min(changed[end - 1], last_);
    if (from > to) continue;
    rows.clear();
    SCALELAB_RETURN_IF_ERROR(ReadCurveRows(db, study_id, from, to, rows));
    const size_t place = first_from(from);
    if (first_from(to + 1) - place != rows.size()) return false;
    for (size_t i = 0; i < rows.size(); ++i) {
      CurveRow& row = row_at(place + i);
      if (row.run_id != rows[i].run_id || row.cell_id != rows[i].cell_id || row.repeat != rows[i].repeat)
        return false;
      row = std::move(rows[i]);
    }
  }
  rows_ = std::move(updated);
  return true;
}

absl::StatusOr<SharedCurveRows> CurveRowCache::List(int64_t study_id, Reader reader) {
  SharedCurveRows rows;
  std::shared_ptr<Study> study = Find(study_id, /*add=*/false);
  if (study == nullptr) {
    bool large = false;
    const absl::Status status = reader([&](Database& db) {
      int64_t first = 0, last = -1;
      SCALELAB_RETURN_IF_ERROR(RunRange(db, study_id, first, last));
      large = last - first + 1 >= static_cast<int64_t>(fewest_);
      if (large) return absl::OkStatus();
      absl::StatusOr<std::vector<CurveRow>> all = ListCurveRows(db, study_id);
      if (all.ok()) rows = std::make_shared<const std::vector<CurveRow>>(*std::move(all));
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
  // The transaction begins after `changed` was copied, so it sees the commits of all these changes.
  const absl::Status status = reader([&](Database& db) {
    study->mutex.AssertHeld();  // the thread safety analysis does not look through lambdas
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    absl::StatusOr<SharedCurveRows> updated = study->rows.Update(db, study_id, changed);
    if (updated.ok()) rows = *std::move(updated);
    return updated.status();
  });
  // After an error the list of changes is lost, so all rows must be read again.
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
