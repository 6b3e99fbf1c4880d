// The pending notifications. A commit inserts them together with the change that they describe
// (WriteBatch::notices). All functions use a Store and return its errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

// Returns at most `limit` pending notifications that are due at `now`, earliest due time first.
absl::StatusOr<std::vector<NoticeRow>> ListDueNotices(Store& store, Micros now, int limit);
// Differs from an earlier result if a notification was added or became due in the meantime. Equal results
// mean that there is no further notification that is due.
struct DueMark {
  int64_t last_id = 0;  // the largest id
  Micros last_due = 0;  // the latest due time of those that are due
  friend bool operator==(const DueMark&, const DueMark&) = default;
};
// Returns the mark at `now`. Reads two rows, however many notifications are due.
absl::StatusOr<DueMark> GetDueMark(Store& store, Micros now);
// Returns the notifications of a study, oldest first, without their payloads.
absl::StatusOr<std::vector<NoticeRow>> ListNotices(Store& store, int64_t study_id);

// Overwrites `state`, `attempts`, `error`, `due` and `ended` of a notification. Deletes it if it is not pending any more
// and its study was deleted.
absl::Status UpdateNotice(Store& store, const NoticeRow& notice);

struct NoticeCounts {
  int64_t pending = 0, given_up = 0;
};
absl::StatusOr<NoticeCounts> CountNotices(Store& store);

}  // namespace scalelab::db
