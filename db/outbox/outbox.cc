#include "db/outbox/outbox.h"

#include "db/columns.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {
namespace {

template <class... T>
absl::StatusOr<std::vector<NoticeRow>> List(Store& store, const char* sql, const T&... parameters) {
  std::vector<NoticeRow> notices;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(db, sql);
    all.Bind(parameters...);
    while (all.Step()) notices.push_back(ReadRow<NoticeRow>(all));
    return all.status();
  });
  if (!status.ok()) return status;
  return notices;
}

}  // namespace

absl::StatusOr<std::vector<NoticeRow>> ListDueNotices(Store& store, Micros now, int limit) {
  static const std::string sql = SelectSql<NoticeRow>("WHERE state = 1 AND due <= ? ORDER BY due LIMIT ?");
  return List(store, sql.c_str(), now, limit);
}

absl::StatusOr<DueMark> GetDueMark(Store& store, Micros now) {
  DueMark mark;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement last(db,
                   "SELECT coalesce((SELECT max(id) FROM notice), 0), coalesce((SELECT due FROM notice WHERE "
                   "state = 1 AND due <= ? ORDER BY due DESC LIMIT 1), 0)");
    last.Bind(now);
    if (last.Step()) last.Read(mark.last_id, mark.last_due);
    return last.status();
  });
  if (!status.ok()) return status;
  return mark;
}

absl::StatusOr<std::vector<NoticeRow>> ListNotices(Store& store, int64_t study_id) {
  return List(store,
              "SELECT id,key,study_id,channel,target,'',state,attempts,error,created,due,ended FROM notice "
              "WHERE study_id = "
              "? ORDER BY id",
              study_id);
}

absl::Status UpdateNotice(Store& store, const NoticeRow& notice) {
  return store.WriteRows([&](Database& db) -> absl::Status {
    SCALELAB_RETURN_IF_ERROR(
        Statement(db, "UPDATE notice SET state = ?, attempts = ?, error = ?, due = ?, ended = ? WHERE id = ?")
            .Run(notice.state, notice.attempts, notice.error, notice.due, notice.ended, notice.id));
    return Statement(db,
                     "DELETE FROM notice WHERE id = ? AND state > 1 AND NOT EXISTS (SELECT 1 FROM study "
                     "WHERE id = ?)")
        .Run(notice.id, notice.study_id);
  });
}

absl::StatusOr<NoticeCounts> CountNotices(Store& store) {
  NoticeCounts counts;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(db,
                  "SELECT (SELECT count(*) FROM notice WHERE state = 1), (SELECT count(*) FROM notice WHERE "
                  "state = 3)");
    if (all.Step()) all.Read(counts.pending, counts.given_up);
    return all.status();
  });
  if (!status.ok()) return status;
  return counts;
}

}  // namespace scalelab::db
