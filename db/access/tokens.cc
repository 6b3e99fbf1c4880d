#include "db/access/access.h"
#include "db/sqlite/return_if_error.h"

namespace scalelab::db {

absl::StatusOr<int64_t> PutToken(Database& db, const TokenRow& token) {
  if (token.id != 0) {
    Statement update(
        db,
        "UPDATE access_token SET hash = ?2, user = ?3, scope = ?4, description = ?5, created = ?6, "
        "expires = ?7, last_used = ?8, revoked = ?9 WHERE id = ?1");
    SCALELAB_RETURN_IF_ERROR(update.Run(token.id, token.hash, token.user, token.scope, token.description,
                                        token.created, token.expires, token.last_used, token.revoked));
    if (update.changes() == 0) return absl::NotFoundError("there is no such token");
    return token.id;
  }
  const int64_t oldest = token.created - int64_t{kDeadTokenDays} * 24 * 3600 * 1'000'000;
  SCALELAB_RETURN_IF_ERROR(
      Statement(
          db,
          "DELETE FROM access_token WHERE (revoked > 0 AND revoked < ?1) OR (expires > 0 AND expires < ?1)")
          .Run(oldest));
  SCALELAB_RETURN_IF_ERROR(
      Statement(
          db,
          "INSERT INTO access_token (hash, user, scope, description, created, expires, last_used, revoked) "
          "VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
          .Run(token.hash, token.user, token.scope, token.description, token.created, token.expires,
               token.last_used, token.revoked));
  return db.QueryInt("SELECT max(id) FROM access_token");
}

absl::StatusOr<std::vector<TokenRow>> ListTokens(Database& db) {
  std::vector<TokenRow> tokens;
  Statement all(db,
                "SELECT id, hash, user, scope, description, created, expires, last_used, revoked FROM "
                "access_token ORDER BY id");
  while (all.Step()) {
    TokenRow& t = tokens.emplace_back();
    all.Read(t.id, t.hash, t.user, t.scope, t.description, t.created, t.expires, t.last_used, t.revoked);
  }
  if (!all.status().ok()) return all.status();
  return tokens;
}

}  // namespace scalelab::db
