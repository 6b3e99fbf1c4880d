// Owners of OpenSSL's objects.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace scalelab::tls {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using X509Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Freed<SSL_free>>;

// Returns the oldest error of this thread as text, and forgets all errors of this thread.
inline std::string TakeError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "unknown error" : reason;
}

// Returns a reader of `text`, which must outlive it.
inline Bio ReaderOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Returns the next certificate of a PEM text; null if there is none.
inline X509Certificate NextCertificate(BIO* reader) {
  X509Certificate certificate(PEM_read_bio_X509(reader, nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

// Appends the certificate to a PEM text.
inline void Append(std::string& pem, X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  char* text = nullptr;
  PEM_write_bio_X509(out.get(), certificate);
  const long size = BIO_get_mem_data(out.get(), &text);
  pem.append(text, static_cast<size_t>(size));
}

}  // namespace scalelab::tls
