#include "tls/fetch.h"

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tls/openssl.h"

namespace scalelab::tls {
namespace {

// Returns a connected socket, or UNAVAILABLE.
absl::StatusOr<int> Connect(const std::string& host, const std::string& port, absl::Duration timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return absl::UnavailableError(absl::StrCat("cannot find ", host, ": ", gai_strerror(error)));
  const absl::Cleanup free = [&] { freeaddrinfo(found); };
  const timeval limit = absl::ToTimeval(timeout);
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    // SO_SNDTIMEO also limits connect().
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0) return fd;
    error = errno;
    close(fd);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot connect to ", host, ":", port, ": ", std::strerror(error)));
}

// Blocks SIGPIPE in this thread: OpenSSL writes without MSG_NOSIGNAL, and a program that does not speak TLS
// may close the connection.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{0, 0};
    while (sigtimedwait(&sigpipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t sigpipe_{}, before_{};
};

}  // namespace

absl::StatusOr<Presented> FetchCertificate(const std::string& host, const std::string& port,
                                           absl::Duration timeout) {
  absl::string_view bare = host;
  if (absl::ConsumePrefix(&bare, "[")) absl::ConsumeSuffix(&bare, "]");
  const std::string name(bare);
  const absl::StatusOr<int> fd = Connect(name, port, timeout);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup close_fd = [&] { close(*fd); };

  const WithoutSigpipe without_sigpipe;
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::InternalError("cannot use OpenSSL: " + TakeError());
  SSL_CTX_set_default_verify_paths(context.get());
  // The result of the verification is only reported.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const Ssl ssl(SSL_new(context.get()));
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof kHttp2);
  SSL_set_fd(ssl.get(), *fd);
  X509_VERIFY_PARAM* const checked = SSL_get0_param(ssl.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(checked, name.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(checked, name.c_str(), name.size());
    SSL_set_tlsext_host_name(ssl.get(), name.c_str());
  }
  ERR_clear_error();
  if (SSL_connect(ssl.get()) != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program at ", host, ":", port, " does not answer with TLS (", TakeError(), ")"));
  }
  Presented presented;
  presented.trusted = SSL_get_verify_result(ssl.get()) == X509_V_OK;
  const X509Certificate own(SSL_get1_peer_certificate(ssl.get()));
  if (own != nullptr) Append(presented.certificate, own.get());
  SSL_shutdown(ssl.get());
  if (own == nullptr)
    return absl::FailedPreconditionError(
        absl::StrCat("the server at ", host, ":", port, " has no certificate"));
  return presented;
}

}  // namespace scalelab::tls
