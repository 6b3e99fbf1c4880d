#include "server/identity/secrets.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Hex(const unsigned char* bytes, size_t size) {
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes), size));
}

}  // namespace

absl::StatusOr<std::string> RandomSecret() {
  std::array<unsigned char, 32> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return absl::InternalError(absl::StrCat("cannot get random bytes: ", std::strerror(errno)));
  return Hex(random.data(), random.size());
}

std::string Sha256(absl::string_view text) {
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), hash, &size, EVP_sha256(), nullptr);
  return Hex(hash, size);
}

std::string Hmac(absl::string_view key, absl::string_view text) {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(text), text.size(), mac, &size);
  return Hex(mac, size);
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && !a.empty() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace scalelab::server
