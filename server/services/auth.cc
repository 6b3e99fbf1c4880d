#include "server/services/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

std::string Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  return it == context.client_metadata().end() ? "" : std::string(it->second.data(), it->second.size());
}

std::string Bearer(const grpc::ServerContextBase& context) {
  const std::string value = Metadata(context, "authorization");
  absl::string_view token = value;
  return absl::ConsumePrefix(&token, "Bearer ") ? std::string(token) : "";
}

// Compares in constant time.
bool Same(const std::string& a, const std::string& b) {
  return a.size() == b.size() && !a.empty() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

absl::Status Auth::CheckToken(const grpc::ServerContextBase& context) const {
  const std::string token = Bearer(context);
  if (Same(token, client_token_)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnauthenticated, "BAD_TOKEN",
                   absl::StrCat(token.empty() ? "this server requires a token over TCP"
                                              : "the token is not the one of this server",
                                "; give the file client.token of its data directory with --token-file or "
                                "SCALELAB_TOKEN_FILE"));
}

absl::StatusOr<std::string> Auth::CheckWorker(const grpc::ServerContextBase& context) const {
  std::string allocation = Metadata(context, "x-scalelab-allocation");
  if (!allocation.empty() && Same(Bearer(context), SecretFor(allocation))) return allocation;
  return MakeError(absl::StatusCode::kUnauthenticated, "BAD_ALLOCATION_SECRET",
                   "the allocation secret is not one of this server");
}

std::string Auth::SecretFor(const std::string& allocation_token) const {
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()),
       reinterpret_cast<const unsigned char*>(allocation_token.data()), allocation_token.size(), mac, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(mac), size));
}

absl::Status Access::CheckClient(const grpc::ServerContextBase& context) const {
  if (local_) return absl::OkStatus();
  absl::Status checked = auth_.CheckToken(context);
  if (checked.ok()) connections_.MarkAuthenticated(context.peer());
  return checked;
}

absl::StatusOr<std::string> Access::CheckWorker(const grpc::ServerContextBase& context) const {
  absl::StatusOr<std::string> allocation = auth_.CheckWorker(context);
  if (allocation.ok() && !local_) connections_.MarkAuthenticated(context.peer());
  return allocation;
}

std::string Access::PeerOf(const grpc::ServerContextBase& context) const {
  const std::string connection = context.peer();
  return local_ ? connection : connections_.AddressOf(connection);
}

}  // namespace scalelab::server
