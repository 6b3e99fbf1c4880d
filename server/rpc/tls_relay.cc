#include "server/rpc/tls_relay.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/rpc/tls_connection.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"
#include "tls/openssl.h"

namespace scalelab::server {
namespace {

constexpr uint64_t kWake = 0;  // the data of the eventfd; connections have ids from 1
constexpr int kCheckMs = 500;  // between two checks of time limits

absl::Status Unusable(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", tls::TakeError()));
}

int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  unsigned char* match = nullptr;
  if (SSL_select_next_proto(&match, size, kHttp2, sizeof kHttp2, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = match;
  return SSL_TLSEXT_ERR_OK;
}

// Keys with a passphrase are refused; without this callback OpenSSL would ask for it on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::Status UseCertificates(SSL_CTX* context, const std::string& pem) {
  const tls::Bio reader = tls::ReaderOf(pem);
  const tls::X509Certificate own = tls::NextCertificate(reader.get());
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1)
    return Unusable("the certificate of the server cannot be used");
  while (tls::X509Certificate authority = tls::NextCertificate(reader.get())) {
    if (SSL_CTX_add0_chain_cert(context, authority.get()) != 1)
      return Unusable("a certificate of an authority cannot be used");
    (void)authority.release();  // the context owns it
  }
  return absl::OkStatus();
}

absl::StatusOr<tls::Context> NewContext(const tls::KeyPair& identity) {
  tls::Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return Unusable("cannot use OpenSSL");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // HTTP/2 marks the ends of its messages, so an end of the connection without the closing alert of TLS is harmless.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // With SSL_MODE_RELEASE_BUFFERS, an idle connection holds no buffers.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseHttp2, nullptr);
  if (absl::Status used = UseCertificates(context.get(), identity.certificate); !used.ok()) return used;
  const tls::Bio reader = tls::ReaderOf(identity.key);
  const tls::Key key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return Unusable("the key of the server is no private key without a passphrase");
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1 || SSL_CTX_check_private_key(context.get()) != 1)
    return Unusable("the key of the server does not belong to its certificate");
  return context;
}

}  // namespace

// The state of the thread.
struct TlsRelay::Shared {
  ~Shared() {
    if (wake >= 0) close(wake);
    if (epoll >= 0) close(epoll);
  }
  tls::Context context;
  int epoll = -1;
  int wake = -1;  // an eventfd: there are new connections, or the thread must end
  std::array<char, kRelayBlock> block;
};

absl::StatusOr<std::unique_ptr<TlsRelay>> TlsRelay::Start(const tls::KeyPair& identity, Take take,
                                                          absl::Duration handshake_limit) {
  auto shared = std::make_unique<Shared>();
  auto context = NewContext(identity);
  if (!context.ok()) return context.status();
  shared->context = *std::move(context);
  shared->epoll = epoll_create1(EPOLL_CLOEXEC);
  shared->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  if (shared->epoll < 0 || shared->wake < 0 ||
      epoll_ctl(shared->epoll, EPOLL_CTL_ADD, shared->wake, &event) != 0)
    return absl::InternalError(absl::StrCat("cannot wait for connections: ", std::strerror(errno)));
  return std::unique_ptr<TlsRelay>(new TlsRelay(std::move(shared), std::move(take), handshake_limit));
}

TlsRelay::TlsRelay(std::unique_ptr<Shared> shared, Take take, absl::Duration handshake_limit)
    : shared_(std::move(shared)), take_(std::move(take)), handshake_limit_(handshake_limit) {
  thread_ = std::thread([this] { Serve(); });
}

TlsRelay::~TlsRelay() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  const uint64_t one = 1;
  (void)!write(shared_->wake, &one, sizeof one);
  thread_.join();
  for (const int tcp : added_) close(tcp);
}

void TlsRelay::Add(int tcp) {
  {
    absl::MutexLock lock(&mutex_);
    added_.push_back(tcp);
  }
  const uint64_t one = 1;
  (void)!write(shared_->wake, &one, sizeof one);
}

void TlsRelay::TakeAdded() {
  uint64_t ignored = 0;
  (void)!read(shared_->wake, &ignored, sizeof ignored);
  std::vector<int> added;
  {
    absl::MutexLock lock(&mutex_);
    added.swap(added_);
  }
  for (const int tcp : added) {
    const uint64_t id = ++last_id_;
    connections_[id] = std::make_unique<TlsConnection>(shared_->context.get(), shared_->epoll, id, tcp,
                                                       Clock::System().Steady() + handshake_limit_);
    Advance(id);
  }
}

void TlsRelay::Advance(uint64_t id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;  // an earlier event of the same round has ended it
  int plain = -1;
  const bool open = found->second->Advance(shared_->block.data(), &plain);
  if (plain >= 0) take_(plain, found->second->tcp());
  if (!open) connections_.erase(found);
}

void TlsRelay::CloseLate() {
  const absl::Duration now = Clock::System().Steady();
  for (auto it = connections_.begin(); it != connections_.end();)
    it = it->second->limit() < now ? connections_.erase(it) : std::next(it);
}

void TlsRelay::Serve() {
  // OpenSSL writes without MSG_NOSIGNAL.
  sigset_t sigpipe;
  sigemptyset(&sigpipe);
  sigaddset(&sigpipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
  std::array<epoll_event, 256> events;
  absl::Duration next_check = Clock::System().Steady();
  while (true) {
    const int ready =
        epoll_wait(shared_->epoll, events.data(), events.size(), connections_.empty() ? -1 : kCheckMs);
    if (ready < 0 && errno != EINTR) {
      spdlog::error("cannot wait for encrypted connections: {}", std::strerror(errno));
      absl::SleepFor(absl::Milliseconds(kCheckMs));
    }
    for (int i = 0; i < ready; ++i) {
      if (events[i].data.u64 == kWake)
        TakeAdded();
      else
        Advance(events[i].data.u64 / 2);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) break;
    }
    if (Clock::System().Steady() < next_check) continue;
    CloseLate();
    next_check = Clock::System().Steady() + absl::Milliseconds(kCheckMs);
  }
  connections_.clear();
}

}  // namespace scalelab::server
