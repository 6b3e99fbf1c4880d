// The interface to personal tokens and to the audit log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::db {

// Times are microseconds since the Unix epoch.
struct TokenRow {
  int64_t id = 0;
  std::string hash;  // SHA-256 of the secret, in hexadecimal
  std::string user;
  int scope = 0;  // server::Scope
  std::string description;
  int64_t created = 0;
  int64_t expires = 0;    // 0: never
  int64_t last_used = 0;  // 0: never
  int64_t revoked = 0;    // 0: not revoked
};

struct AuditRow {
  int64_t id = 0;  // increases in the order of insertion
  int64_t time = 0;
  std::string user;  // empty: unknown
  std::string source, address, action, target;
  std::string result;  // name of a gRPC status code
  std::string detail;
  int64_t count = 1;     // number of equal calls that this row counts
  bool refused = false;  // true: a call that was refused; false: a call that changed something
};

struct AuditFilter {
  std::string user;  // empty: all
  int64_t since = 0;
  int64_t before_id = 0;  // only rows with smaller ids; 0: all
  bool refused_only = false;
  int limit = 100;
};

// Any thread may call the methods; all of them block. Errors are those of db::Store.
class AccessStore {
 public:
  virtual ~AccessStore() = default;

  // Inserts the token if its id is 0, else overwrites the token with that id. Returns its id, which is never used twice.
  // An insertion also deletes tokens that expired or were revoked more than kDeadTokenDays days before it.
  virtual absl::StatusOr<int64_t> PutToken(const TokenRow& token) = 0;
  // Returns all tokens, oldest first.
  virtual absl::StatusOr<std::vector<TokenRow>> ListTokens() = 0;
  // Appends the rows in one transaction; their ids are ignored. Then deletes the oldest rows of changes above
  // kAuditChanges, and the oldest rows of refusals above kAuditRefusals.
  virtual absl::Status AppendAudit(const std::vector<AuditRow>& rows) = 0;
  // Returns the rows that match, newest first.
  virtual absl::StatusOr<std::vector<AuditRow>> ListAudit(const AuditFilter& filter) = 0;
};

inline constexpr int kDeadTokenDays = 30;
// Numbers of rows that are kept. A flood of refused calls cannot displace the rows of changes.
inline constexpr int64_t kAuditChanges = 1'000'000, kAuditRefusals = 100'000;

}  // namespace scalelab::db
