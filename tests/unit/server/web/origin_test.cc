// Tests of the sites that may use the dashboard.
#include "server/web/origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

TEST(SitePolicy, LoopbackHostsAreAllowedWithAnyPort) {
  const SitePolicy policy = *SitePolicy::For("");
  for (const char* host :
       {"localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:65535", "127.9.8.7", "[::1]", "[::1]:80"})
    EXPECT_TRUE(policy.AllowsHost(host)) << host;
}

TEST(SitePolicy, OtherHostsAreRefusedWithoutAProxy) {
  const SitePolicy policy = *SitePolicy::For("");
  for (const char* host : {"", "example.org", "localhost.example.org", "127.0.0.1.example.org",
                           "127.example.a.b", "1127.0.0.1", "127.0.0.1:", "127.0.0.1:80a", "localhost:123456",
                           "[::2]", "localhost/x", "user@localhost", "::1", "[::1", "127.0.0.1, example.org"})
    EXPECT_FALSE(policy.AllowsHost(host)) << host;
}

TEST(SitePolicy, TheHostOfTheProxyIsAllowedToo) {
  const SitePolicy policy = *SitePolicy::For("https://Lab.example.org/scalelab/");
  EXPECT_TRUE(policy.AllowsHost("lab.example.org"));
  EXPECT_TRUE(policy.AllowsHost("localhost:8080"));
  EXPECT_FALSE(policy.AllowsHost("lab.example.org:444"));
  EXPECT_FALSE(policy.AllowsHost("example.org"));
  EXPECT_TRUE(policy.encrypted());
}

TEST(SitePolicy, AnOriginMustBeThatOfThePage) {
  const SitePolicy plain = *SitePolicy::For("");
  EXPECT_TRUE(plain.AllowsOrigin("", "localhost:8080"));
  EXPECT_TRUE(plain.AllowsOrigin("http://localhost:8080", "localhost:8080"));
  for (const char* origin :
       {"null", "http://localhost:8081", "http://127.0.0.1:8080", "https://localhost:8080",
        "http://example.org", "http://localhost:8080.example.org"})
    EXPECT_FALSE(plain.AllowsOrigin(origin, "localhost:8080")) << origin;
  const SitePolicy proxied = *SitePolicy::For("https://lab.example.org/");
  EXPECT_TRUE(proxied.AllowsOrigin("https://lab.example.org", "lab.example.org"));
  EXPECT_FALSE(proxied.AllowsOrigin("https://evil.example.org", "lab.example.org"));
}

TEST(SitePolicy, OtherFormsOfAddressesAreMistakes) {
  for (const char* url : {"lab.example.org", "https://lab.example.org", "ftp://lab.example.org/", "https:///",
                          "https://a b/", "https://user@lab.example.org/", "https://lab.example.org/?x/"})
    EXPECT_TRUE(absl::IsInvalidArgument(SitePolicy::For(url).status())) << url;
  EXPECT_TRUE(CheckWebAddress("127.0.0.1:8080").ok());
  EXPECT_TRUE(CheckWebAddress("[::1]:0").ok());
  for (const char* address : {"0.0.0.0:8080", "10.0.0.1:80", "unix:/tmp/x", "8080", "example.org:80"})
    EXPECT_FALSE(CheckWebAddress(address).ok()) << address;
}

}  // namespace
}  // namespace scalelab::server
