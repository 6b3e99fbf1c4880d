// Reads the files of the certificate for TCP.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <sstream>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/doctor/facts.h"
#include "tls/openssl.h"

namespace scalelab::server::doctor {
namespace {

constexpr char kNoCertificate[] = "it contains no certificate in PEM form";

// Returns the content of a file. The message of an error is only the reason.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || !text) return absl::UnavailableError(errno == 0 ? "it is empty" : std::strerror(errno));
  return text.str();
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? absl::FromTimeT(timegm(&parts)) : absl::InfinitePast();
}

// A callback that prevents OpenSSL from asking for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

TlsFileFacts ReadCertificate(const std::string& setting, const std::string& path) {
  TlsFileFacts facts;
  facts.setting = setting;
  facts.path = path;
  const absl::StatusOr<std::string> text = ReadText(path);
  if (!text.ok()) {
    facts.error = std::string(text.status().message());
    return facts;
  }
  const tls::Bio reader = tls::ReaderOf(*text);
  facts.error = kNoCertificate;
  while (const tls::X509Certificate certificate = tls::NextCertificate(reader.get())) {
    const absl::Time not_after = TimeOf(X509_get0_notAfter(certificate.get()));
    if (!facts.error.empty() || not_after > facts.not_after) {
      facts.not_before = TimeOf(X509_get0_notBefore(certificate.get()));
      facts.not_after = not_after;
    }
    facts.error.clear();
    // Of tls_certificate, check the first certificate, which scalelabd presents. Of tls_authority, one valid
    // certificate is sufficient.
    if (setting != "tls_authority") break;
  }
  return facts;
}

TlsFileFacts ReadKey(const std::string& setting, const std::string& path, const std::string& certificate) {
  TlsFileFacts facts;
  facts.setting = setting;
  facts.path = path;
  facts.is_key = true;
  struct stat found {};
  if (stat(path.c_str(), &found) == 0) facts.mode = found.st_mode & 07777;
  const absl::StatusOr<std::string> text = ReadText(path), certificates = ReadText(certificate);
  if (!text.ok()) {
    facts.error = std::string(text.status().message());
    return facts;
  }
  const tls::Key key(PEM_read_bio_PrivateKey(tls::ReaderOf(*text).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) facts.error = "it contains no private key in PEM form without a passphrase";
  if (key != nullptr && certificates.ok()) {
    const tls::X509Certificate first = tls::NextCertificate(tls::ReaderOf(*certificates).get());
    if (first != nullptr && X509_check_private_key(first.get(), key.get()) != 1)
      facts.error = absl::StrCat("it is not the key of the certificate in ", certificate);
  }
  ERR_clear_error();
  return facts;
}

}  // namespace scalelab::server::doctor
