#include "tests/e2e/raw_connection.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "tests/e2e/process.h"

namespace scalelab::e2e {

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

RawConnection::RawConnection(int port) : fd_(ConnectTcp(port)) {
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

std::string RawConnection::CallHeaders() {
  // Method POST, scheme http.
  return "\x83\x86" + Header(":path", "/scalelab.v1.StudyService/ListStudies") + Header(":authority", "x") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

bool RawConnection::Send(const std::string& bytes) {
  const double end = Now() + 1;
  for (size_t sent = 0; sent < bytes.size();) {
    char ignored[65536];
    while (recv(fd_, ignored, sizeof ignored, MSG_DONTWAIT) > 0) {
    }
    const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno != EAGAIN || Now() > end)) return false;
    if (n < 0) Pause(0.001);
    sent += n > 0 ? static_cast<size_t>(n) : 0;
  }
  return true;
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
