#include "tls/certificate.h"

#include <openssl/ec.h>
#include <openssl/rand.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tls/openssl.h"

namespace scalelab::tls {
namespace {

constexpr long kDay = 24 * 60 * 60;
constexpr long kValidDays = 3650;

absl::Status CannotMake(absl::string_view what) {
  return absl::InternalError(absl::StrCat("cannot make ", what, ": ", TakeError()));
}

absl::StatusOr<X509Certificate> First(const std::string& pem) {
  X509Certificate certificate = NextCertificate(ReaderOf(pem).get());
  if (certificate == nullptr)
    return absl::InvalidArgumentError("the text contains no certificate in PEM form");
  return certificate;
}

// Returns "DNS:login1,IP:10.0.0.1" for names and addresses.
std::string AlternativeNames(const std::vector<std::string>& hosts) {
  return absl::StrJoin(hosts, ",", [](std::string* out, const std::string& host) {
    ASN1_OCTET_STRING* const address = a2i_IPADDRESS(host.c_str());
    absl::StrAppend(out, address == nullptr ? "DNS:" : "IP:", host);
    ASN1_OCTET_STRING_free(address);
    ERR_clear_error();
  });
}

bool AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool SetSerialNumber(X509* certificate) {
  uint64_t number = 0;
  return RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof number) == 1 &&
         ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), number >> 1) == 1;
}

bool SetName(X509* certificate) {
  X509_NAME* const name = X509_get_subject_name(certificate);
  const auto* text = reinterpret_cast<const unsigned char*>("scalelab");
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0) == 1 &&
         X509_set_issuer_name(certificate, name) == 1;
}

std::string Text(const GENERAL_NAME& name) {
  if (name.type == GEN_DNS) {
    return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name.d.dNSName)),
                       static_cast<size_t>(ASN1_STRING_length(name.d.dNSName)));
  }
  if (name.type != GEN_IPADD || ASN1_STRING_length(name.d.iPAddress) != 4) return "";
  const unsigned char* bytes = ASN1_STRING_get0_data(name.d.iPAddress);
  return absl::StrCat(bytes[0], ".", bytes[1], ".", bytes[2], ".", bytes[3]);
}

}  // namespace

absl::StatusOr<KeyPair> MakeKeyPair(const std::vector<std::string>& hosts) {
  const Key key(EVP_EC_gen("P-256"));
  const X509Certificate certificate(X509_new());
  if (key == nullptr || certificate == nullptr) return CannotMake("a key");
  // The certificate is valid from a time in the past, because the clocks of clients may be behind.
  const bool filled = X509_set_version(certificate.get(), 2) == 1 && SetSerialNumber(certificate.get()) &&
                      SetName(certificate.get()) &&
                      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDay) != nullptr &&
                      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kValidDays * kDay) != nullptr &&
                      X509_set_pubkey(certificate.get(), key.get()) == 1 &&
                      AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:FALSE") &&
                      AddExtension(certificate.get(), NID_ext_key_usage, "serverAuth") &&
                      AddExtension(certificate.get(), NID_subject_alt_name, AlternativeNames(hosts));
  if (!filled || X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0)
    return CannotMake("a certificate for " + absl::StrJoin(hosts, ", "));
  KeyPair pair;
  Append(pair.certificate, certificate.get());
  const Bio out(BIO_new(BIO_s_mem()));
  char* text = nullptr;
  if (PEM_write_bio_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return CannotMake("a key");
  const long size = BIO_get_mem_data(out.get(), &text);
  pair.key.assign(text, static_cast<size_t>(size));
  return pair;
}

std::string CertificatesOf(const std::string& pem) {
  std::string certificates;
  const Bio reader = ReaderOf(pem);
  while (const X509Certificate next = NextCertificate(reader.get())) Append(certificates, next.get());
  return certificates;
}

absl::StatusOr<std::string> Fingerprint(const std::string& certificate) {
  const auto first = First(certificate);
  if (!first.ok()) return first.status();
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_digest(first->get(), EVP_sha256(), hash, &size) != 1) return CannotMake("a fingerprint");
  return absl::StrJoin(hash, hash + size, ":", [](std::string* out, unsigned char byte) {
    absl::StrAppend(out, absl::AsciiStrToUpper(absl::StrCat(absl::Hex(byte, absl::kZeroPad2))));
  });
}

bool SameFingerprint(const std::string& a, const std::string& b) {
  const auto digits = [](const std::string& text) {
    constexpr size_t kDigits = 64;
    const std::string plain = absl::AsciiStrToUpper(absl::StrReplaceAll(text, {{":", ""}, {" ", ""}}));
    return plain.size() > kDigits ? plain.substr(plain.size() - kDigits) : plain;
  };
  return digits(a) == digits(b);
}

absl::StatusOr<std::string> HostOf(const std::string& certificate) {
  const auto first = First(certificate);
  if (!first.ok()) return first.status();
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(first->get(), NID_subject_alt_name, nullptr, nullptr));
  std::string host;
  for (int i = 0; host.empty() && i < sk_GENERAL_NAME_num(names); ++i)
    host = Text(*sk_GENERAL_NAME_value(names, i));
  GENERAL_NAMES_free(names);
  return absl::StrReplaceAll(host, {{"*", "any"}});
}

}  // namespace scalelab::tls
