#include "client/session/server_trust.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tls/certificate.h"
#include "tls/fetch.h"

namespace scalelab::client {
namespace {

// Returns the certificates by address.
absl::StatusOr<std::map<std::string, std::string>> ReadAll() {
  std::map<std::string, std::string> all;
  const std::string path = KnownServersFile();
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (words.empty()) continue;
    std::string certificate;
    if (words.size() != 2 || !absl::Base64Unescape(words[1], &certificate) ||
        !tls::Fingerprint(certificate).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number,
                       ": the line is not \"HOST:PORT CERTIFICATE\": remove it, and run `scalelab login`"));
    }
    all[words[0]] = certificate;
  }
  return all;
}

absl::Status Changed(const ServerOptions& server, const std::string& presented) {
  const std::string& address = server.address.text;
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate of ", address, " has changed: its SHA-256 fingerprint is ", presented,
                   ", and you have accepted ", tls::Fingerprint(server.certificate).value_or("none"),
                   ". Another computer may have taken the place of the server. Ask its operator for the "
                   "fingerprint; if it is the new one, "
                   "run `scalelab login ",
                   address, "`"));
}

}  // namespace

std::string KnownServersFile() { return ConfigDirectory() + "/known_servers"; }

absl::StatusOr<std::string> KnownCertificate(const std::string& address) {
  auto all = ReadAll();
  if (!all.ok()) return all.status();
  return (*all)[address];
}

absl::Status AcceptCertificate(const std::string& address, const std::string& certificate) {
  auto all = ReadAll();
  if (!all.ok()) return all.status();
  (*all)[address] = certificate;
  const std::string path = KnownServersFile(), part = absl::StrCat(path, ".", getpid());
  std::error_code error;
  std::filesystem::create_directories(ConfigDirectory(), error);  // the write below reports a failure
  std::ofstream file(part, std::ios::trunc);
  for (const auto& [name, text] : *all) file << name << ' ' << absl::Base64Escape(text) << '\n';
  file.close();
  if (!file || rename(part.c_str(), path.c_str()) != 0)
    return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  return absl::OkStatus();
}

absl::Status WhyNotTrusted(const ServerOptions& server, absl::Duration timeout) {
  const ServerAddress& address = server.address;
  const auto presented = tls::FetchCertificate(address.host, address.port, timeout);
  if (absl::IsFailedPrecondition(presented.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        presented.status().message(),
        ": is it a scalelab server? One with `insecure: true` has the address insecure:", address.text));
  }
  if (!presented.ok()) return absl::OkStatus();
  const auto fingerprint = tls::Fingerprint(presented->certificate);
  if (!fingerprint.ok()) return fingerprint.status();
  if (!server.certificate.empty()) {
    const bool same = tls::Fingerprint(server.certificate).value_or("") == *fingerprint;
    return same ? absl::OkStatus() : Changed(server, *fingerprint);
  }
  if (presented->trusted) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate of ", address.text, " is not known (SHA-256 fingerprint ", *fingerprint,
                   "): run `scalelab login ", address.text, "` to compare and accept it"));
}

}  // namespace scalelab::client
