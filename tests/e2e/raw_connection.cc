#include "tests/e2e/raw_connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/e2e/process.h"
#include "tls/openssl.h"

namespace scalelab::e2e {

int FreeTcpPort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(fd);
  return bound ? ntohs(address.sin_port) : 0;
}

int ConnectTcp(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

struct RawConnection::Tls {
  tls::Context context;
  tls::Ssl ssl;
};

RawConnection::RawConnection(int port) : fd_(ConnectTcp(port)) {
  if (fd_ < 0) return;
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  auto session = std::make_unique<Tls>();
  session->context.reset(SSL_CTX_new(TLS_client_method()));
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(session->context.get(), kHttp2, sizeof kHttp2);
  SSL_CTX_set_mode(session->context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  session->ssl.reset(SSL_new(session->context.get()));
  SSL_set_fd(session->ssl.get(), fd_);
  // A server over its limits may never answer the handshake.
  const timeval limit{2, 0};
  (void)setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (SSL_connect(session->ssl.get()) != 1) return;
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  tls_ = std::move(session);
  Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  Send(Frame(kSettings, 0, 0, ""));
}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

std::string RawConnection::Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  const auto byte = [](size_t value, int shift) { return static_cast<char>(value >> shift & 0xff); };
  return std::string({byte(payload.size(), 16), byte(payload.size(), 8), byte(payload.size(), 0), type, flags,
                      byte(stream, 24), byte(stream, 16), byte(stream, 8), byte(stream, 0)}) +
         payload;
}

std::string RawConnection::Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) +
         value;
}

std::string RawConnection::CallHeaders(const std::string& method) {
  // The first bytes encode the method POST and the scheme https.
  return "\x83\x87" + Header(":path", method) + Header(":authority", "x") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

bool RawConnection::Send(const std::string& bytes) {
  if (tls_ == nullptr) return false;
  const double end = Now() + 1;
  for (size_t sent = 0; sent < bytes.size();) {
    char ignored[65536];
    while (SSL_read(tls_->ssl.get(), ignored, sizeof ignored) > 0) {
    }
    ERR_clear_error();
    const int n = SSL_write(tls_->ssl.get(), bytes.data() + sent, static_cast<int>(bytes.size() - sent));
    if (n <= 0 && (SSL_get_error(tls_->ssl.get(), n) != SSL_ERROR_WANT_WRITE || Now() > end)) return false;
    if (n <= 0) Pause(0.001);
    sent += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return true;
}

std::string RawConnection::ReceiveUntil(const std::string& text, double seconds) {
  std::string received;
  for (const double end = Now() + seconds; tls_ != nullptr && Now() < end;) {
    char piece[4096];
    const int n = SSL_read(tls_->ssl.get(), piece, sizeof piece);
    if (n > 0) received.append(piece, static_cast<size_t>(n));
    if (received.find(text) != std::string::npos) break;
    const bool waits = n <= 0 && SSL_get_error(tls_->ssl.get(), n) == SSL_ERROR_WANT_READ;
    ERR_clear_error();
    if (n <= 0 && !waits) break;
    pollfd readable{fd_, POLLIN, 0};
    if (waits) poll(&readable, 1, 10);
  }
  return received;
}

void Flood(int port, double seconds, const std::string& first, const std::function<std::string()>& next,
           const std::function<void()>& sent) {
  for (const double start = Now(); Now() - start < seconds;) {
    RawConnection connection(port);
    bool open = connection.Send(first);
    while (open && Now() - start < seconds) {
      open = connection.Send(next());
      sent();
    }
  }
}

void FloodWithHeaders(int port, double seconds, const std::function<void()>& sent) {
  std::string header, frames;
  for (int i = 0; i < 150; ++i) header += RawConnection::Header("a", std::string(100, 'x'));
  for (int i = 0; i < 16; ++i) frames += RawConnection::Frame(RawConnection::kContinuation, 0, 1, header);
  Flood(
      port, seconds, RawConnection::Frame(RawConnection::kHeaders, 0, 1, RawConnection::CallHeaders()),
      [&] { return frames; }, sent);
}

void FloodWithCalls(int port, double seconds, const std::function<void()>& sent) {
  uint32_t stream = 1;
  const auto next = [&] {
    std::string frames;
    for (int i = 0; i < 100; ++i, stream += 2)
      frames += RawConnection::Frame(RawConnection::kHeaders, 4, stream, RawConnection::CallHeaders());
    return frames;
  };
  Flood(port, seconds, "", next, sent);
}

void FloodWithResets(int port, double seconds, const std::function<void()>& sent) {
  uint32_t stream = 1;
  const auto next = [&] {
    std::string frames;
    for (int i = 0; i < 100; ++i, stream += 2) {
      frames += RawConnection::Frame(RawConnection::kHeaders, 4, stream, RawConnection::CallHeaders());
      frames += RawConnection::Frame(RawConnection::kReset, 0, stream, std::string("\0\0\0\x08", 4));
    }
    return frames;
  };
  Flood(port, seconds, "", next, sent);
}

}  // namespace scalelab::e2e
