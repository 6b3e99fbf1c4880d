// Tests of personal tokens, session tokens and secrets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/identity/personal_tokens.h"
#include "server/identity/secrets.h"
#include "server/identity/session_tokens.h"
#include "tests/unit/server/identity/memory_access_store.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

std::vector<int64_t> Ids(const std::vector<db::TokenRow>& rows) {
  std::vector<int64_t> ids;
  for (const db::TokenRow& row : rows) ids.push_back(row.id);
  return ids;
}

TEST(Secrets, HashesAndSignaturesAreThoseOfTheStandards) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hmac("Jefe", "what do ya want for nothing?"),  // RFC 4231, test case 2
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Secrets, AreRandomAndComparedAsAWhole) {
  EXPECT_THAT(*RandomSecret(), SizeIs(64));
  EXPECT_NE(*RandomSecret(), *RandomSecret());
  EXPECT_TRUE(SameSecret("secret", "secret"));
  EXPECT_FALSE(SameSecret("secret", "secreT"));
  EXPECT_FALSE(SameSecret("secret", "secret1"));
  EXPECT_FALSE(SameSecret("", ""));
}

class PersonalTokensTest : public testing::Test {
 protected:
  PersonalTokens::Created Create(const std::string& user, absl::Duration lifetime = absl::Hours(1)) {
    return *tokens_.Create(user, Scope::kSubmit, lifetime, "laptop", kNow);
  }
  std::string Reason(const std::string& secret, absl::Time now) {
    const auto token = tokens_.Verify(secret, now);
    if (token.ok()) return "";
    EXPECT_TRUE(absl::IsUnauthenticated(token.status()));
    return ReasonOf(token.status());
  }
  MemoryAccessStore store_;
  PersonalTokens tokens_{store_};
};

TEST_F(PersonalTokensTest, TheStoreHasOnlyTheHash) {
  const auto created = Create("alice");
  EXPECT_TRUE(absl::StartsWith(created.secret, kPersonalTokenPrefix));
  EXPECT_THAT(created.secret, SizeIs(kPersonalTokenPrefix.size() + 64));
  ASSERT_THAT(store_.tokens, SizeIs(1));
  EXPECT_EQ(store_.tokens[0].hash, Sha256(created.secret));
  const auto token = tokens_.Verify(created.secret, kNow);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(token->user, "alice");
  EXPECT_EQ(token->scope, static_cast<int>(Scope::kSubmit));
}

TEST_F(PersonalTokensTest, WrongExpiredAndRevokedTokensAreRefused) {
  const auto created = Create("alice");
  EXPECT_EQ(Reason("slt_guess", kNow), "BAD_TOKEN");
  EXPECT_EQ(Reason("", kNow), "BAD_TOKEN");
  EXPECT_EQ(Reason(created.secret, kNow + absl::Hours(1) - absl::Microseconds(1)), "");
  EXPECT_EQ(Reason(created.secret, kNow + absl::Hours(1)), "TOKEN_EXPIRED");
  ASSERT_TRUE(tokens_.Revoke(created.row.id, kNow).ok());
  EXPECT_EQ(Reason(created.secret, kNow), "TOKEN_REVOKED");
  EXPECT_TRUE(tokens_.Revoke(created.row.id, kNow).ok()) << "revoking again succeeds";
  EXPECT_TRUE(absl::IsNotFound(tokens_.Revoke(99, kNow).status()));
}

TEST_F(PersonalTokensTest, ARestartKeepsTokensAndRevocations) {
  const auto valid = Create("alice"), revoked = Create("alice");
  ASSERT_TRUE(tokens_.Revoke(revoked.row.id, kNow).ok());
  PersonalTokens restarted(store_);
  ASSERT_TRUE(restarted.Load().ok());
  EXPECT_TRUE(restarted.Verify(valid.secret, kNow).ok());
  EXPECT_FALSE(restarted.Verify(revoked.secret, kNow).ok());
}

TEST_F(PersonalTokensTest, AFailedRevocationIsReportedAndHasNoEffect) {
  const auto created = Create("alice");
  store_.status = absl::ResourceExhaustedError("the disk is full");
  EXPECT_FALSE(tokens_.Revoke(created.row.id, kNow).ok());
  EXPECT_TRUE(tokens_.Verify(created.secret, kNow).ok());
}

TEST_F(PersonalTokensTest, AListHasTheTokensOfOneUserOrOfAll) {
  Create("alice");
  Create("bob");
  const auto last = Create("alice");
  EXPECT_THAT(Ids(tokens_.List("alice", kNow)), ElementsAre(3, 1));
  EXPECT_THAT(Ids(tokens_.List("", kNow)), ElementsAre(3, 2, 1));
  ASSERT_TRUE(tokens_.Revoke(last.row.id, kNow).ok());
  EXPECT_THAT(Ids(tokens_.List("alice", kNow + absl::Hours(24 * 29))), ElementsAre(3, 1));
  EXPECT_THAT(tokens_.List("alice", kNow + absl::Hours(24 * 31)), IsEmpty());
}

TEST_F(PersonalTokensTest, AUserHasALimitedNumberOfValidTokens) {
  for (size_t i = 0; i < PersonalTokens::kTokensPerUser; ++i) Create("alice");
  EXPECT_TRUE(
      absl::IsResourceExhausted(tokens_.Create("alice", Scope::kRead, absl::Hours(1), "", kNow).status()));
  EXPECT_TRUE(tokens_.Create("bob", Scope::kRead, absl::Hours(1), "", kNow).ok());
  EXPECT_TRUE(tokens_.Create("alice", Scope::kRead, absl::Hours(1), "", kNow + absl::Hours(2)).ok());
}

TEST_F(PersonalTokensTest, ANewTokenRemovesThoseThatExpiredOrWereRevokedLongAgo) {
  const auto expired = Create("alice"), revoked = Create("bob", absl::Hours(24 * 300));
  const auto valid = Create("bob", absl::Hours(24 * 300));
  ASSERT_TRUE(tokens_.Revoke(revoked.row.id, kNow).ok());
  ASSERT_TRUE(tokens_.Verify(expired.secret, kNow).ok());  // its use is not stored yet
  const auto create = [&](int days) {
    return tokens_.Create("carol", Scope::kRead, absl::Hours(1), "", kNow + absl::Hours(24 * days));
  };
  ASSERT_TRUE(create(29).ok());
  for (const auto& token : {expired, revoked, valid}) EXPECT_TRUE(tokens_.Get(token.row.id).ok());
  ASSERT_TRUE(create(31).ok());
  for (const auto& token : {expired, revoked})
    EXPECT_TRUE(absl::IsNotFound(tokens_.Get(token.row.id).status()));
  EXPECT_TRUE(tokens_.Get(valid.row.id).ok());
  EXPECT_TRUE(tokens_.StoreUses().ok());
}

TEST_F(PersonalTokensTest, TheTimeOfTheLastUseIsStoredOnceAnHour) {
  const auto created = Create("alice", absl::Hours(10));
  const int before = store_.writes;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(tokens_.Verify(created.secret, kNow + absl::Seconds(i)).ok());
  ASSERT_TRUE(tokens_.StoreUses().ok());
  EXPECT_EQ(store_.writes, before + 1);
  EXPECT_EQ(store_.tokens[0].last_used, absl::ToUnixMicros(kNow));
  ASSERT_TRUE(tokens_.Verify(created.secret, kNow + absl::Hours(2)).ok());
  ASSERT_TRUE(tokens_.StoreUses().ok());
  ASSERT_TRUE(tokens_.StoreUses().ok());
  EXPECT_EQ(store_.writes, before + 2);
}

TEST(SessionTokens, NameTheUserUntilTheyExpire) {
  const SessionTokens sessions("key");
  const std::string token = sessions.Issue("alice", "munge", kNow, Scope::kSubmit);
  const auto claims = sessions.Verify(token, kNow + SessionTokens::kLifetime - absl::Microseconds(1));
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(claims->user, "alice");
  EXPECT_EQ(claims->source, "munge");
  EXPECT_EQ(claims->scope, Scope::kSubmit);
  EXPECT_EQ(ReasonOf(sessions.Verify(token, kNow + SessionTokens::kLifetime).status()), "SESSION_EXPIRED");
}

TEST(SessionTokens, AForgedTokenIsRefused) {
  const SessionTokens sessions("key");
  const std::string token = sessions.Issue("alice", "munge", kNow);
  EXPECT_EQ(ReasonOf(SessionTokens("another key").Verify(token, kNow).status()), "BAD_SESSION");
  // A forged token: the claims of another user with the signature of this token.
  const std::string other = SessionTokens("another key").Issue("root", "munge", kNow);
  const std::string forged = other.substr(0, other.find('.')) + token.substr(token.find('.'));
  EXPECT_EQ(ReasonOf(sessions.Verify(forged, kNow).status()), "BAD_SESSION");
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    EXPECT_FALSE(sessions.Verify(changed, kNow).ok()) << i;
  }
  for (const char* text : {"", "sls_", "sls_.", "sls_a.b.c", "slt_x"})
    EXPECT_FALSE(sessions.Verify(text, kNow).ok()) << text;
}

}  // namespace
}  // namespace scalelab::server
