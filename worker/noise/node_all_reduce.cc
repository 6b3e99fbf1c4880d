#include "worker/noise/node_all_reduce.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

constexpr size_t kNumbers = size_t{1} << 18;  // 1 MiB of floats
// Each thread sends a piece before it receives one, so the buffers of the connection must hold a piece.
constexpr size_t kPiece = size_t{1} << 14;
constexpr int kBuffer = 4 * kPiece * sizeof(float);
constexpr double kAllReduceWarmUp = 0.1;  // share of the budget
constexpr timeval kTimeout{1, 0};

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

void SetOptions(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kBuffer, sizeof kBuffer);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kBuffer, sizeof kBuffer);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof kTimeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof kTimeout);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Returns two connected sockets; -1 for both if that fails.
std::pair<int, int> Connect() {
  const Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.fd(), generic, size) != 0 || listen(listener.fd(), 1) != 0 ||
      getsockname(listener.fd(), generic, &size) != 0)
    return {-1, -1};
  SetOptions(listener.fd());  // the timeout applies to accept too
  const int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  SetOptions(first);
  const int second =
      connect(first, generic, size) == 0 ? accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC) : -1;
  if (second < 0) {
    close(first);
    return {-1, -1};
  }
  SetOptions(second);
  return {first, second};
}

bool SendAll(int fd, const float* numbers, size_t count) {
  const auto* bytes = reinterpret_cast<const char*>(numbers);
  for (size_t left = count * sizeof(float); left > 0;) {
    const ssize_t sent = send(fd, bytes, left, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    left -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, float* numbers, size_t count) {
  auto* bytes = reinterpret_cast<char*>(numbers);
  for (size_t left = count * sizeof(float); left > 0;) {
    const ssize_t got = recv(fd, bytes, left, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got;
    left -= static_cast<size_t>(got);
  }
  return true;
}

// One of the two threads of the all-reduce. Each thread adds up one half of the numbers, and receives the
// sums of the other half from the other thread.
class Rank {
 public:
  Rank(int fd, bool first) : fd_(fd), first_(first), numbers_(kNumbers, 1.0F), received_(kPiece) {}
  // Both threads must call AllReduce. Returns false if the connection to the other thread fails.
  bool AllReduce() {
    const size_t half = kNumbers / 2, own = first_ ? 0 : half, other = half - own;
    for (size_t at = 0; at < half; at += kPiece) {
      if (!SendAll(fd_, &numbers_[other + at], kPiece) || !ReceiveAll(fd_, received_.data(), kPiece))
        return false;
      for (size_t i = 0; i < kPiece; ++i) numbers_[own + at + i] += received_[i];
    }
    for (size_t at = 0; at < half; at += kPiece) {
      if (!SendAll(fd_, &numbers_[own + at], kPiece) || !ReceiveAll(fd_, &numbers_[other + at], kPiece))
        return false;
    }
    for (float& number : numbers_) number *= 0.5F;  // the average, so that the numbers do not grow
    return true;
  }

 private:
  const int fd_;
  const bool first_;
  std::vector<float> numbers_, received_;
};

}  // namespace

std::optional<double> NodeAllReduceRate(absl::Duration budget, const std::atomic<bool>& stop) {
  const auto [first, second] = Connect();
  if (first < 0) return std::nullopt;
  const Socket of_other(second);
  std::thread other;
  try {
    other = std::thread([fd = of_other.fd()] {
      Rank rank(fd, false);
      while (rank.AllReduce()) {
      }
    });
  } catch (const std::system_error&) {  // the limit of processes is reached
    close(first);
    return std::nullopt;
  }
  std::optional<double> rate;
  {
    const Socket own(first);  // closing it ends the other thread
    Rank rank(own.fd(), true);
    const absl::Duration begin = SteadyNow(), end = begin + budget;
    absl::Duration since = begin, now = begin;
    double reduced = 0;
    bool warm = false;
    while (rank.AllReduce()) {
      now = SteadyNow();
      ++reduced;
      if (now >= end || stop.load(std::memory_order_relaxed)) {
        rate = reduced * kNumbers * sizeof(float) / absl::ToDoubleSeconds(now - since);
        break;
      }
      if (warm || now < begin + kAllReduceWarmUp * budget) continue;
      warm = true;
      reduced = 0;
      since = now;
    }
  }
  other.join();
  return rate;
}

}  // namespace scalelab::worker
