#include "server/munge/munge_login.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "munge/login_text.h"
#include "tests/fakes/munged.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

const std::string kMine = "AA:" + std::string(62, '1'), kOther = "BB:" + std::string(62, '2');

// A fake credential of the account 1234 that contains its payload as plain text.
absl::StatusOr<Munge::Decoded> Plain(const std::string& credential) {
  return Munge::Decoded{credential, 1234};
}

// Returns what a client signs that sees a server with this certificate.
std::string Signed(const std::string& challenge, const std::string& fingerprint = kMine) {
  return LoginText(challenge, fingerprint).value();
}

std::string Refusal(const absl::StatusOr<uid_t>& checked) {
  EXPECT_TRUE(absl::IsUnauthenticated(checked.status())) << checked.status();
  return std::string(checked.status().message());
}

TEST(MungeLogin, AnAnsweredChallengeGivesTheAccountOnce) {
  MungeLogin login("key", kMine, Plain);
  const absl::Time now = absl::Now();
  const std::string challenge = login.Challenge(now);
  EXPECT_NE(challenge, login.Challenge(now));
  EXPECT_EQ(login.Check(Signed(challenge), now).value(), 1234u);
  EXPECT_THAT(Refusal(login.Check(Signed(challenge), now)), HasSubstr("was used before"));
  EXPECT_EQ(login.Check(Signed(login.Challenge(now)), now).value(), 1234u);
}

TEST(MungeLogin, AChallengeExpiresAfterAMinute) {
  MungeLogin login("key", kMine, Plain);
  const absl::Time now = absl::Now();
  EXPECT_TRUE(login.Check(Signed(login.Challenge(now)), now + absl::Seconds(58)).ok());
  EXPECT_THAT(Refusal(login.Check(Signed(login.Challenge(now)), now + absl::Seconds(62))),
              HasSubstr("has expired"));
}

TEST(MungeLogin, OtherPayloadsAndOtherServersAreRefused) {
  MungeLogin login("key", kMine, Plain), other("other key", kMine, Plain), restarted("key", kMine, Plain);
  const absl::Time now = absl::Now();
  for (const std::string payload : {"", "slurm", ":::", "scalelab-login-1:x:y:z"})
    EXPECT_THAT(Refusal(login.Check(payload, now)), HasSubstr("was not made for a login")) << payload;
  for (const MungeLogin* foreign : {&other, &restarted})
    EXPECT_THAT(Refusal(login.Check(Signed(foreign->Challenge(now)), now)), HasSubstr("for another server"));
  std::string longer = Signed(login.Challenge(now));
  longer[sizeof "scalelab-login-1:"] = '9';
  EXPECT_THAT(Refusal(login.Check(longer, now)), HasSubstr("for another server"));
}

TEST(MungeLogin, AChallengeThatAnotherServerPassesOnIsRefused) {
  MungeLogin login("key", kMine, Plain), plain("key", "", Plain);
  const absl::Time now = absl::Now();
  const std::string challenge = login.Challenge(now), of_plain = plain.Challenge(now);
  for (const std::string& seen : {kOther, std::string()}) {
    const std::string refusal = Refusal(login.Check(Signed(challenge, seen), now));
    EXPECT_THAT(refusal, HasSubstr("another certificate than that of this server")) << seen;
    EXPECT_THAT(refusal, HasSubstr("without a proxy, or log in with a token")) << seen;
  }
  EXPECT_THAT(Refusal(login.Check(Signed(challenge) + ":", now)), HasSubstr("another certificate"));
  EXPECT_TRUE(login.Check(Signed(challenge), now).ok()) << "the refused answers do not use it up";
  EXPECT_THAT(Refusal(plain.Check(Signed(of_plain, kOther), now)), HasSubstr("another certificate"));
  EXPECT_TRUE(plain.Check(Signed(of_plain, ""), now).ok()) << "a server without a certificate";
}

TEST(MungeLogin, AnOlderClientLearnsThatItMustBeUpdated) {
  MungeLogin login("key", kMine, Plain);
  const absl::Time now = absl::Now();
  EXPECT_THAT(Refusal(login.Check(login.Challenge(now), now)),
              HasSubstr("the client is older than the server; update scalelab"));
}

TEST(LoginText, IsTheChallengeWithTheFingerprint) {
  const std::string challenge = MungeLogin("key", kMine, Plain).Challenge(absl::Now());
  EXPECT_EQ(Signed(challenge, "AB:CD"), challenge + ":abcd");
  EXPECT_EQ(Signed(challenge, ""), challenge + ":");
}

TEST(LoginText, OtherTextsThanChallengesAreNotSigned) {
  const std::string nonce(32, 'a'), signature(64, 'b'),
      good = "scalelab-login-1:1:" + nonce + ":" + signature;
  EXPECT_TRUE(IsLoginChallenge(good));
  for (const std::string& text :
       {std::string(), std::string("launch job 5"), good + ":", " " + good, good + "\n",
        "slurm-login-1:1:" + nonce + ":" + signature, "scalelab-login-1::" + nonce + ":" + signature,
        "scalelab-login-1:1234567890123456789:" + nonce + ":" + signature,
        "scalelab-login-1:-1:" + nonce + ":" + signature, "scalelab-login-1:1:" + nonce + "a:" + signature,
        "scalelab-login-1:1:" + nonce + ":" + std::string(64, 'B'),
        "scalelab-login-1:1:" + nonce + ":" + std::string(64, 'g')}) {
    EXPECT_FALSE(IsLoginChallenge(text)) << text;
    EXPECT_TRUE(absl::IsFailedPrecondition(LoginText(text, kMine).status())) << text;
  }
}

TEST(MungeLogin, ARealMungedProvesTheAccountAndRefusesReplayAndForgery) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  const Munge munge(munged.socket());
  MungeLogin login("key", kMine, [&](const std::string& credential) { return munge.Decode(credential); });
  const absl::Time now = absl::Now();
  const std::string text = Signed(login.Challenge(now));
  const auto credential = munge.Encode(text);
  ASSERT_TRUE(credential.ok()) << credential.status();
  const auto account = login.Check(*credential, now);
  ASSERT_TRUE(account.ok()) << account.status();
  EXPECT_EQ(*account, geteuid());
  EXPECT_THAT(Refusal(login.Check(*credential, now)), HasSubstr("Replayed credential"));
  EXPECT_THAT(Refusal(login.Check(munge.Encode(text).value(), now)), HasSubstr("was used before"));
  std::string forged = munge.Encode(Signed(login.Challenge(now))).value();
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
