#include "server/rpc/tls_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/time/clock.h"

namespace scalelab::server {
namespace {

// Maximum number of blocks that one connection may move before other connections are served.
constexpr int kTurn = 16;
// Time limit for the rest of a connection after one side has ended.
constexpr absl::Duration kLinger = absl::Seconds(5);

}  // namespace

TlsConnection::TlsConnection(SSL_CTX* context, int epoll, uint64_t id, int tcp,
                             absl::Duration handshake_limit)
    : epoll_(epoll), ssl_(SSL_new(context)), limit_(handshake_limit) {
  tcp_ = {tcp, 0, 2 * id};
  plain_.data = 2 * id + 1;
  if (ssl_ != nullptr) SSL_set_fd(ssl_.get(), tcp);
}

TlsConnection::~TlsConnection() {
  close(tcp_.fd);
  if (plain_.fd >= 0) close(plain_.fd);
}

bool TlsConnection::Advance(char* block, int* plain) {
  if (ssl_ == nullptr) return false;
  write_blocked_ = false;
  if (!ready_) {
    const Step step = Handshake(plain);
    if (step == Step::kBlocked) WaitForEvents();
    if (step != Step::kProgress) return step == Step::kBlocked;
  }
  for (int i = 0; i < kTurn; ++i) {
    const Step up = Up(block), down = Down(block);
    if (up == Step::kBroken || down == Step::kBroken) return false;
    if (peer_ended_ && plain_ended_ && down_.empty()) return false;
    if (up == Step::kBlocked && down == Step::kBlocked) break;
  }
  WaitForEvents();
  return true;
}

TlsConnection::Step TlsConnection::Blocked(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kBlocked;
    case SSL_ERROR_WANT_WRITE:
      write_blocked_ = true;
      return Step::kBlocked;
    default:
      return Step::kBroken;
  }
}

TlsConnection::Step TlsConnection::Handshake(int* plain) {
  ERR_clear_error();
  if (const int result = SSL_accept(ssl_.get()); result != 1) return Blocked(result);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return Step::kBroken;
  plain_.fd = pair[0];
  *plain = pair[1];
  ready_ = true;
  limit_ = absl::InfiniteDuration();  // Connections limits the time until the first authenticated call
  return Step::kProgress;
}

TlsConnection::Step TlsConnection::SendUp(const char* data, size_t size) {
  const ssize_t sent = send(plain_.fd, data, size, MSG_NOSIGNAL);
  const bool blocked = sent < 0 && errno == EAGAIN;
  // Any other error means that gRPC has closed its end. Further bytes of the peer are dropped.
  up_.assign(data, blocked ? size : 0);
  if (sent > 0) up_.assign(data + sent, size - static_cast<size_t>(sent));
  return blocked ? Step::kBlocked : Step::kProgress;
}

TlsConnection::Step TlsConnection::Up(char* block) {
  if (!up_.empty()) {
    const std::string waiting = std::move(up_);
    return SendUp(waiting.data(), waiting.size());
  }
  if (peer_ended_) return Step::kBlocked;
  ERR_clear_error();
  const int received = SSL_read(ssl_.get(), block, kRelayBlock);
  if (received > 0) return SendUp(block, static_cast<size_t>(received));
  if (SSL_get_error(ssl_.get(), received) != SSL_ERROR_ZERO_RETURN) return Blocked(received);
  peer_ended_ = true;
  shutdown(plain_.fd, SHUT_WR);
  Linger();
  return Step::kProgress;
}

TlsConnection::Step TlsConnection::SendDown(const char* data, size_t size) {
  ERR_clear_error();
  const int sent = SSL_write(ssl_.get(), data, static_cast<int>(size));
  if (sent <= 0) {
    const Step step = Blocked(sent);
    down_.assign(data, size);
    return step;
  }
  down_.assign(data + sent, size - static_cast<size_t>(sent));
  return Step::kProgress;
}

TlsConnection::Step TlsConnection::Down(char* block) {
  if (!down_.empty()) {
    const std::string waiting = std::move(down_);
    return SendDown(waiting.data(), waiting.size());
  }
  if (plain_ended_) return Step::kBlocked;
  const ssize_t received = recv(plain_.fd, block, kRelayBlock, 0);
  if (received > 0) return SendDown(block, static_cast<size_t>(received));
  if (received < 0 && errno == EAGAIN) return Step::kBlocked;
  plain_ended_ = true;
  // Do not close the socket yet: the system could discard gRPC's last bytes on their way to the peer.
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  shutdown(tcp_.fd, SHUT_WR);
  Linger();
  return Step::kProgress;
}

void TlsConnection::Linger() { limit_ = std::min(limit_, Clock::System().Steady() + kLinger); }

void TlsConnection::WaitForEvents() {
  const bool reads = !ready_ || (up_.empty() && !peer_ended_);
  SetEvents(tcp_, (reads ? EPOLLIN : 0U) | (write_blocked_ ? EPOLLOUT : 0U));
  if (!ready_) return;
  SetEvents(plain_, (down_.empty() && !plain_ended_ ? EPOLLIN : 0U) | (up_.empty() ? 0U : EPOLLOUT));
}

// Does not register a socket without events, because epoll would report the end of its peer again and again.
void TlsConnection::SetEvents(Socket& socket, uint32_t events) const {
  if (events == socket.events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = socket.data;
  const int change = socket.events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  (void)epoll_ctl(epoll_, change, socket.fd, &event);
  socket.events = events;
}

}  // namespace scalelab::server
