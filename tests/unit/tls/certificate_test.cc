#include "tls/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace scalelab::tls {
namespace {

using testing::HasSubstr;

// Returns what `openssl x509` prints about a certificate.
std::string Openssl(const std::string& certificate, const std::string& options) {
  const std::string file = absl::StrCat(testing::TempDir(), "/certificate-", getpid(), ".pem");
  std::ofstream(file) << certificate;
  FILE* const pipe = popen(absl::StrCat("openssl x509 -noout ", options, " -in ", file).c_str(), "r");
  std::string text;
  char block[4096];
  for (size_t n; (n = fread(block, 1, sizeof block, pipe)) > 0;) text.append(block, n);
  EXPECT_EQ(pclose(pipe), 0);
  return text;
}

TEST(Certificate, IsValidForItsHostsForTenYears) {
  const auto pair = MakeKeyPair({"scalelab", "login1", "10.1.2.3", "::1"});
  ASSERT_TRUE(pair.ok()) << pair.status();
  const std::string text = Openssl(pair->certificate, "-text");
  EXPECT_THAT(text, HasSubstr("DNS:scalelab, DNS:login1, IP Address:10.1.2.3, IP Address:0:0:0:0:0:0:0:1"));
  EXPECT_THAT(text, HasSubstr("P-256"));
  EXPECT_THAT(text, HasSubstr("CA:FALSE"));
  EXPECT_THAT(Openssl(pair->certificate, "-checkend 315000000"), HasSubstr("will not expire"));
  EXPECT_THAT(pair->key, HasSubstr("PRIVATE KEY"));
  EXPECT_EQ(HostOf(pair->certificate).value(), "scalelab");
}

TEST(Certificate, HasTheFingerprintThatOpensslPrints) {
  const auto pair = MakeKeyPair({"login1"});
  ASSERT_TRUE(pair.ok()) << pair.status();
  const std::string fingerprint = Fingerprint(pair->certificate).value();
  const std::string printed = Openssl(pair->certificate, "-fingerprint -sha256");
  EXPECT_THAT(printed, HasSubstr("=" + fingerprint));
  EXPECT_TRUE(SameFingerprint(fingerprint, printed.substr(0, printed.find('\n'))));
  EXPECT_TRUE(SameFingerprint(fingerprint, "sha256:" + fingerprint));
  EXPECT_NE(fingerprint, Fingerprint(MakeKeyPair({"login1"})->certificate).value()) << "each key is new";
  EXPECT_FALSE(SameFingerprint(fingerprint, Fingerprint(MakeKeyPair({"login1"})->certificate).value()));
  EXPECT_FALSE(SameFingerprint(fingerprint, fingerprint.substr(3)));
}

TEST(Certificate, ATextWithoutOneIsAnError) {
  for (const std::string text : {"", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Fingerprint(text).status())) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(HostOf(text).status())) << text;
  }
}

}  // namespace
}  // namespace scalelab::tls
