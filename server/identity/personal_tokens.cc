#include "server/identity/personal_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/identity/secrets.h"

namespace scalelab::server {
namespace {

// Precision of the time of the last use. It is low, so that a token that is used often causes few writes.
constexpr absl::Duration kUsePrecision = absl::Hours(1);

bool IsDead(const db::TokenRow& token, int64_t now) {
  return token.revoked != 0 || (token.expires != 0 && token.expires <= now);
}

// Returns whether the token expired or was revoked more than db::kDeadTokenDays ago.
bool IsLongDead(const db::TokenRow& token, absl::Time now) {
  const int64_t oldest = absl::ToUnixMicros(now - absl::Hours(24 * db::kDeadTokenDays));
  return (token.revoked != 0 && token.revoked < oldest) || (token.expires != 0 && token.expires < oldest);
}

absl::Status NoToken(int64_t id) {
  return MakeError(absl::StatusCode::kNotFound, "TOKEN_NOT_FOUND",
                   absl::StrCat("there is no token ", id, "; `scalelab token list` shows your tokens"));
}

}  // namespace

absl::Status PersonalTokens::Load() {
  absl::StatusOr<std::vector<db::TokenRow>> tokens = store_.ListTokens();
  if (!tokens.ok()) return tokens.status();
  absl::MutexLock lock(&mutex_);
  for (db::TokenRow& token : *tokens) by_hash_[token.hash] = std::move(token);
  return absl::OkStatus();
}

absl::StatusOr<PersonalTokens::Created> PersonalTokens::Create(const std::string& user, Scope scope,
                                                               absl::Duration lifetime,
                                                               const std::string& description,
                                                               absl::Time now) {
  absl::MutexLock changing(&changing_);
  const int64_t micros = absl::ToUnixMicros(now);
  {
    absl::MutexLock lock(&mutex_);
    const auto valid = std::count_if(by_hash_.begin(), by_hash_.end(), [&](const auto& entry) {
      return entry.second.user == user && !IsDead(entry.second, micros);
    });
    if (static_cast<size_t>(valid) >= kTokensPerUser) {
      return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_TOKENS",
                       absl::StrCat(user, " has ", valid,
                                    " valid tokens, the maximum; revoke one of them with "
                                    "`scalelab token revoke`"));
    }
  }
  const absl::StatusOr<std::string> random = RandomSecret();
  if (!random.ok()) return random.status();
  Created created;
  created.secret = absl::StrCat(kPersonalTokenPrefix, *random);
  db::TokenRow& row = created.row;
  row.hash = Sha256(created.secret);
  row.user = user;
  row.scope = static_cast<int>(scope);
  row.description = description;
  row.created = micros;
  row.expires = absl::ToUnixMicros(now + lifetime);
  const absl::StatusOr<int64_t> id = store_.PutToken(row);
  if (!id.ok()) return id.status();
  row.id = *id;
  absl::MutexLock lock(&mutex_);
  // The store has deleted these tokens too.
  absl::erase_if(by_hash_, [&](const auto& entry) { return IsLongDead(entry.second, now); });
  by_hash_[row.hash] = row;
  return created;
}

absl::StatusOr<db::TokenRow> PersonalTokens::Verify(absl::string_view secret, absl::Time now) {
  const auto refused = [](absl::string_view reason, absl::string_view why) {
    return MakeError(absl::StatusCode::kUnauthenticated, reason, why);
  };
  const std::string hash = Sha256(secret);
  const int64_t micros = absl::ToUnixMicros(now);
  absl::MutexLock lock(&mutex_);
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end())
    return refused("BAD_TOKEN",
                   "the token is not one of this server; create one with `scalelab token create`");
  db::TokenRow& token = found->second;
  if (token.revoked != 0)
    return refused(
        "TOKEN_REVOKED",
        absl::StrCat("token ", token.id, " was revoked; create another one with `scalelab token create`"));
  if (IsDead(token, micros))
    return refused(
        "TOKEN_EXPIRED",
        absl::StrCat("token ", token.id, " expired on ",
                     absl::FormatTime("%Y-%m-%d", absl::FromUnixMicros(token.expires), absl::UTCTimeZone()),
                     "; create another one with `scalelab token create`"));
  if (micros - token.last_used >= absl::ToInt64Microseconds(kUsePrecision)) {
    token.last_used = micros;
    used_.push_back(hash);
  }
  return token;
}

std::vector<db::TokenRow> PersonalTokens::List(const std::string& user, absl::Time now) const {
  std::vector<db::TokenRow> tokens;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [hash, token] : by_hash_) {
      if (!IsLongDead(token, now) && (user.empty() || token.user == user)) tokens.push_back(token);
    }
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const db::TokenRow& a, const db::TokenRow& b) { return a.id > b.id; });
  return tokens;
}

absl::StatusOr<std::string> PersonalTokens::HashOf(int64_t id) const {
  for (const auto& [hash, token] : by_hash_) {
    if (token.id == id) return hash;
  }
  return NoToken(id);
}

absl::StatusOr<db::TokenRow> PersonalTokens::Get(int64_t id) const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<std::string> hash = HashOf(id);
  if (!hash.ok()) return hash.status();
  return by_hash_.at(*hash);
}

absl::StatusOr<db::TokenRow> PersonalTokens::Revoke(int64_t id, absl::Time now) {
  absl::MutexLock changing(&changing_);
  absl::StatusOr<db::TokenRow> token = Get(id);
  if (!token.ok() || token->revoked != 0) return token;
  token->revoked = absl::ToUnixMicros(now);
  if (const absl::StatusOr<int64_t> stored = store_.PutToken(*token); !stored.ok()) return stored.status();
  absl::MutexLock lock(&mutex_);
  by_hash_.at(token->hash).revoked = token->revoked;
  return token;
}

absl::Status PersonalTokens::StoreUses() {
  absl::MutexLock changing(&changing_);
  std::vector<db::TokenRow> used;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& hash : std::exchange(used_, {})) {
      // Create may have removed the token since its last use.
      if (const auto token = by_hash_.find(hash); token != by_hash_.end()) used.push_back(token->second);
    }
  }
  absl::Status status;
  for (const db::TokenRow& token : used) {
    const absl::StatusOr<int64_t> stored = store_.PutToken(token);
    // A token that the store has deleted needs no time of use.
    if (!stored.ok() && !absl::IsNotFound(stored.status())) status = stored.status();
  }
  return status;
}

}  // namespace scalelab::server
