#include "server/tls_identity.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/rpc/socket.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

absl::StatusOr<std::string> ReadPem(const std::string& setting, const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !absl::StrContains(text.str(), "-----BEGIN ")) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, ": ", path,
                     " is no PEM file that this account can read; check its path, its mode and its content"));
  }
  return text.str();
}

// Returns the names and addresses that clients may use for this machine.
std::vector<std::string> Hosts(const ServerConfig& config) {
  char name[256] = "";
  (void)gethostname(name, sizeof name - 1);
  std::vector<std::string> hosts = {"scalelab", name, "localhost", "127.0.0.1", "::1"};
  std::vector<std::string> addresses = config.listen;
  if (!config.worker_server.empty()) addresses.push_back(config.worker_server);
  for (const std::string& text : addresses) {
    const auto address = ParseAddress(text);
    if (!address.ok() || !address->unix_path.empty()) continue;
    absl::string_view host = address->host;
    if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
    if (host != "0.0.0.0" && host != "::" && std::find(hosts.begin(), hosts.end(), host) == hosts.end())
      hosts.emplace_back(host);
  }
  return hosts;
}

// Reads the key and the certificate in the data directory, or makes them. Both are in one file, so that they
// always belong together.
absl::StatusOr<tls::KeyPair> OwnPair(const ServerConfig& config, const DataDir& data_dir) {
  const auto pem = data_dir.Secret("tls.pem", [&]() -> absl::StatusOr<std::string> {
    const auto made = tls::MakeKeyPair(Hosts(config));
    if (!made.ok()) return made.status();
    return made->key + made->certificate;
  });
  if (!pem.ok()) return pem.status();
  return tls::KeyPair{tls::CertificatesOf(*pem), *pem};
}

absl::Status UseSiteCertificate(const ServerConfig& config, TlsIdentity& identity) {
  const auto certificate = ReadPem("tls_certificate", config.tls_certificate);
  const auto key = ReadPem("tls_key", config.tls_key);
  if (!certificate.ok()) return certificate.status();
  if (!key.ok()) return key.status();
  identity.pair = tls::KeyPair{*certificate, *key};
  if (config.tls_authority.empty()) return absl::OkStatus();
  const auto authority = ReadPem("tls_authority", config.tls_authority);
  if (!authority.ok()) return authority.status();
  identity.worker_certificate = tls::CertificatesOf(*authority);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TlsIdentity> PrepareTls(const ServerConfig& config, const DataDir& data_dir) {
  TlsIdentity identity;
  if (std::all_of(config.listen.begin(), config.listen.end(),
                  [](const std::string& address) { return absl::StartsWith(address, "unix:"); }))
    return identity;
  if (config.insecure) {
    spdlog::warn("TCP connections are not encrypted, because insecure is true");
    identity.address_prefix = "insecure:";
    return identity;
  }
  if (!config.tls_certificate.empty()) {
    if (absl::Status used = UseSiteCertificate(config, identity); !used.ok()) return used;
  } else {
    auto own = OwnPair(config, data_dir);
    if (!own.ok()) return own.status();
    identity.worker_certificate = own->certificate;
    identity.pair = *std::move(own);
  }
  const auto fingerprint = tls::Fingerprint(identity.pair->certificate);
  if (!fingerprint.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.tls_certificate.empty() ? data_dir.path() + "/tls.pem" : config.tls_certificate,
                     ": ", fingerprint.status().message(), "; replace the file"));
  }
  spdlog::info("SHA-256 fingerprint of the certificate for TCP: {}", *fingerprint);
  return identity;
}

}  // namespace scalelab::server
