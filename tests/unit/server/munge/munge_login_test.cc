#include "server/munge/munge_login.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/fakes/munged.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

// A fake credential of the account 1234 that contains its payload as plain text.
absl::StatusOr<Munge::Decoded> Plain(const std::string& credential) {
  return Munge::Decoded{credential, 1234};
}

std::string Refusal(const absl::StatusOr<uid_t>& checked) {
  EXPECT_TRUE(absl::IsUnauthenticated(checked.status())) << checked.status();
  return std::string(checked.status().message());
}

TEST(MungeLogin, AnAnsweredChallengeGivesTheAccountOnce) {
  MungeLogin login("key", Plain);
  const absl::Time now = absl::Now();
  const std::string challenge = login.Challenge(now);
  EXPECT_NE(challenge, login.Challenge(now));
  EXPECT_EQ(login.Check(challenge, now).value(), 1234u);
  EXPECT_THAT(Refusal(login.Check(challenge, now)), HasSubstr("was used before"));
  EXPECT_EQ(login.Check(login.Challenge(now), now).value(), 1234u);
}

TEST(MungeLogin, AChallengeExpiresAfterAMinute) {
  MungeLogin login("key", Plain);
  const absl::Time now = absl::Now();
  EXPECT_TRUE(login.Check(login.Challenge(now), now + absl::Seconds(58)).ok());
  EXPECT_THAT(Refusal(login.Check(login.Challenge(now), now + absl::Seconds(62))), HasSubstr("has expired"));
}

TEST(MungeLogin, OtherPayloadsAndOtherServersAreRefused) {
  MungeLogin login("key", Plain), other("other key", Plain), restarted("key", Plain);
  const absl::Time now = absl::Now();
  for (const std::string payload : {"", "slurm", ":::", "scalelab-login-1:x:y:z"})
    EXPECT_THAT(Refusal(login.Check(payload, now)), HasSubstr("was not made for a login")) << payload;
  for (const MungeLogin* foreign : {&other, &restarted})
    EXPECT_THAT(Refusal(login.Check(foreign->Challenge(now), now)), HasSubstr("for another server"));
  std::string longer = login.Challenge(now);
  longer[sizeof "scalelab-login-1:"] = '9';
  EXPECT_THAT(Refusal(login.Check(longer, now)), HasSubstr("for another server"));
}

TEST(MungeLogin, ARealMungedProvesTheAccountAndRefusesReplayAndForgery) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  const Munge munge(munged.socket());
  MungeLogin login("key", [&](const std::string& credential) { return munge.Decode(credential); });
  const absl::Time now = absl::Now();
  const std::string challenge = login.Challenge(now);
  const auto credential = munge.Encode(challenge);
  ASSERT_TRUE(credential.ok()) << credential.status();
  const auto account = login.Check(*credential, now);
  ASSERT_TRUE(account.ok()) << account.status();
  EXPECT_EQ(*account, geteuid());
  EXPECT_THAT(Refusal(login.Check(*credential, now)), HasSubstr("Replayed credential"));
  EXPECT_THAT(Refusal(login.Check(munge.Encode(challenge).value(), now)), HasSubstr("was used before"));
  std::string forged = munge.Encode(login.Challenge(now)).value();
  forged[forged.size() / 2] = forged[forged.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_THAT(Refusal(login.Check(forged, now)), HasSubstr("MUNGE refuses"));
  EXPECT_THAT(Refusal(login.Check("not a credential", now)), HasSubstr("MUNGE refuses"));
}

TEST(MungeWithoutDaemon, IsUnavailable) {
  if (!Munge::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const Munge munge("/nonexistent/socket");
  EXPECT_TRUE(absl::IsUnavailable(munge.Encode("text").status())) << munge.Encode("text").status();
  EXPECT_TRUE(absl::IsUnavailable(munge.Decode("MUNGE:AwQFAAA:").status()) ||
              absl::IsUnauthenticated(munge.Decode("MUNGE:AwQFAAA:").status()));
}

}  // namespace
}  // namespace scalelab::server
