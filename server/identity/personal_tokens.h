// Tokens that users create for themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "db/access/access_store.h"
#include "server/identity/identity.h"

namespace scalelab::server {

inline constexpr absl::string_view kPersonalTokenPrefix = "slt_";

// A token is 256 random bits. The store and this class have only the hash of it. This class keeps all hashes
// in memory, so that a check does not read the database. Thread-safe.
class PersonalTokens {
 public:
  static constexpr absl::Duration kDefaultLifetime = absl::Hours(24 * 30);
  static constexpr absl::Duration kLongestLifetime = absl::Hours(24 * 400);
  static constexpr size_t kTokensPerUser = 100;  // that are valid
  static constexpr size_t kLongestDescription = 200;

  explicit PersonalTokens(db::AccessStore& store) : store_(store) {}

  // Reads the tokens from the store. Must be called before the other methods.
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Created {
    db::TokenRow row;
    std::string secret;
  };
  // Stores a new token of `user`. Removes all tokens that expired or were revoked more than
  // db::kDeadTokenDays ago. Returns RESOURCE_EXHAUSTED if the user has too many. Blocks.
  absl::StatusOr<Created> Create(const std::string& user, Scope scope, absl::Duration lifetime,
                                 const std::string& description, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the token with this secret, or UNAUTHENTICATED if there is none, or if it has expired or was revoked.
  absl::StatusOr<db::TokenRow> Verify(absl::string_view secret, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the tokens of `user` (empty: of all users), newest first, without those that expired or were revoked more
  // than db::kDeadTokenDays ago.
  std::vector<db::TokenRow> List(const std::string& user, absl::Time now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns NOT_FOUND if there is no such token.
  absl::StatusOr<db::TokenRow> Get(int64_t id) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a token at once, and returns it. Blocks.
  absl::StatusOr<db::TokenRow> Revoke(int64_t id, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stores the times at which tokens were used. Blocks.
  absl::Status StoreUses() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<std::string> HashOf(int64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  db::AccessStore& store_;
  absl::Mutex changing_;  // one change at a time; held while the store writes
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, db::TokenRow> by_hash_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> used_ ABSL_GUARDED_BY(mutex_);  // hashes of tokens whose time of use is not stored
};

}  // namespace scalelab::server
