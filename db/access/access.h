// The SQL of AccessStore, with its contract. The caller has exclusive use of the connection.
#pragma once

#include <vector>

#include "db/access/access_store.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// The functions that write run in a transaction of the caller.
absl::StatusOr<int64_t> PutToken(Database& db, const TokenRow& token);
absl::StatusOr<std::vector<TokenRow>> ListTokens(Database& db);
absl::Status AppendAudit(Database& db, const std::vector<AuditRow>& rows, int64_t changes_kept,
                         int64_t refusals_kept);
absl::StatusOr<std::vector<AuditRow>> ListAudit(Database& db, const AuditFilter& filter);

}  // namespace scalelab::db
