#include "server/munge/munge_login.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "munge/login_text.h"

namespace scalelab::server {
namespace {

constexpr size_t kMostUsed = 65'536;
constexpr size_t kNonceBytes = 16;

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(mac), size));
}

// Returns random bytes in hexadecimal. OpenSSL's generator fails only if the system has none.
std::string RandomHex() {
  std::array<char, kNonceBytes> bytes{};
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()) != 1) std::abort();
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

absl::Status Refused(absl::string_view why, absl::string_view what_to_do = "log in again") {
  return absl::UnauthenticatedError(absl::StrCat("the MUNGE credential ", why, "; ", what_to_do));
}

}  // namespace

MungeLogin::MungeLogin(const std::string& server_key, std::string fingerprint, Decode decode)
    : key_(Hmac(server_key, absl::StrCat("munge challenges of process ", RandomHex()))),
      fingerprint_(std::move(fingerprint)),
      decode_(std::move(decode)) {}

std::string MungeLogin::Signed(const std::string& text) const {
  return absl::StrCat(text, ":", Hmac(key_, text));
}

std::string MungeLogin::Challenge(absl::Time now) const {
  return Signed(absl::StrCat(kLoginPurpose, ":", absl::ToUnixSeconds(now + kValid), ":", RandomHex()));
}

absl::StatusOr<uid_t> MungeLogin::Check(const std::string& credential, absl::Time now) {
  const absl::StatusOr<Munge::Decoded> decoded = decode_(credential);
  if (!decoded.ok()) return decoded.status();
  // The first four parts are the challenge, the fifth is the certificate.
  std::vector<std::string> parts = absl::StrSplit(decoded->payload, absl::MaxSplits(':', 4));
  const bool has_certificate = parts.size() == 5;
  if (has_certificate) parts.pop_back();
  const std::string challenge = absl::StrJoin(parts, ":");
  int64_t expires = 0;
  if (!IsLoginChallenge(challenge) || !absl::SimpleAtoi(parts[1], &expires))
    return Refused("was not made for a login to scalelab");
  const std::string expected = Signed(absl::StrCat(parts[0], ":", parts[1], ":", parts[2]));
  if (expected.size() != challenge.size() ||
      CRYPTO_memcmp(expected.data(), challenge.data(), expected.size()) != 0)
    return Refused("is for another server, or for this one before its restart");
  const absl::Time expiry = absl::FromUnixSeconds(expires);
  if (expiry < now) return Refused("has expired: it answers a challenge that is older than a minute");
  if (!has_certificate) {
    return Refused(
        "does not contain the certificate of the server, because the client is older than the server",
        "update scalelab on the machine of the client");
  }
  if (decoded->payload != LoginText(challenge, fingerprint_).value_or("")) {
    return Refused("was made on a connection with another certificate than that of this server",
                   "connect to this server without a proxy, or log in with a token");
  }
  if (absl::Status used = Use(challenge, expiry, now); !used.ok()) return used;
  return decoded->uid;
}

absl::Status MungeLogin::Use(const std::string& challenge, absl::Time expires, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (used_.size() >= kMostUsed)
    std::erase_if(used_, [now](const auto& entry) { return entry.second < now; });
  if (used_.size() >= kMostUsed)
    return absl::ResourceExhaustedError("there were too many logins within a minute; try again later");
  if (!used_.emplace(challenge, expires).second) return Refused("was used before");
  return absl::OkStatus();
}

}  // namespace scalelab::server
