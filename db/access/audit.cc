#include <algorithm>

#include "db/access/access.h"
#include "db/sqlite/return_if_error.h"

namespace scalelab::db {
namespace {

// DeleteOldest is called once for this number of inserted rows.
constexpr int64_t kDeleteEvery = 1024;

absl::Status DeleteOldest(Database& db, bool refused, int64_t kept) {
  return Statement(db,
                   "DELETE FROM audit_entry WHERE refused = ?1 AND id <= (SELECT id FROM audit_entry WHERE "
                   "refused = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)")
      .Run(refused, kept);
}

}  // namespace

absl::Status AppendAudit(Database& db, const std::vector<AuditRow>& rows, int64_t changes_kept,
                         int64_t refusals_kept) {
  const absl::StatusOr<int64_t> before = db.QueryInt("SELECT ifnull(max(id), 0) FROM audit_entry");
  if (!before.ok()) return before.status();
  int64_t id = *before;
  {
    Statement insert(
        db,
        "INSERT INTO audit_entry (id, time, user, source, address, action, target, result, detail, "
        "count, refused) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    for (const AuditRow& row : rows) {
      SCALELAB_RETURN_IF_ERROR(insert.Run(++id, row.time, row.user, row.source, row.address, row.action,
                                          row.target, row.result, row.detail, row.count, row.refused));
    }
  }
  if (id / kDeleteEvery == *before / kDeleteEvery) return absl::OkStatus();
  SCALELAB_RETURN_IF_ERROR(DeleteOldest(db, false, changes_kept));
  return DeleteOldest(db, true, refusals_kept);
}

absl::StatusOr<std::vector<AuditRow>> ListAudit(Database& db, const AuditFilter& filter) {
  std::vector<AuditRow> rows;
  Statement select(
      db,
      "SELECT id, time, user, source, address, action, target, result, detail, count, refused FROM "
      "audit_entry WHERE id < ?1 AND time >= ?2 AND (?3 = '' OR user = ?3) AND refused >= ?4 ORDER BY "
      "id DESC LIMIT ?5");
  select.Bind(filter.before_id == 0 ? INT64_MAX : filter.before_id, filter.since, filter.user,
              filter.refused_only, std::max(filter.limit, 0));
  while (select.Step()) {
    AuditRow& r = rows.emplace_back();
    select.Read(r.id, r.time, r.user, r.source, r.address, r.action, r.target, r.result, r.detail, r.count,
                r.refused);
  }
  if (!select.status().ok()) return select.status();
  return rows;
}

}  // namespace scalelab::db
