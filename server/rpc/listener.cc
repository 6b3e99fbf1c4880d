#include "server/rpc/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr int kBacklog = 1024;
constexpr int kSweepMs = 20;         // between two checks, while a connection is not authenticated
constexpr int kIdleSweepMs = 5'000;  // else
constexpr int kNoDescriptorsMs = 100;

absl::Status CannotServe(const Address& address, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot serve on ", address.text(), ": ", why,
                   "; is it an address of this machine that no other program "
                   "uses? If not, choose another --listen"));
}

std::string AddressText(const sockaddr_storage& from, socklen_t size) {
  char host[NI_MAXHOST] = "";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&from), size, host, sizeof host, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "unknown address";
  return host;
}

// Returns the account of the process that connected to the Unix socket, at the time when it connected.
std::optional<uid_t> AccountOf(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || size != sizeof peer) return std::nullopt;
  return peer.uid;
}

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  if (address->sa_family == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<uint16_t>(port));
  else
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
}

// Returns a listening socket, or -1 with errno.
int ListenOn(const addrinfo& info) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // connections in TIME_WAIT do not matter
  if (info.ai_family == AF_INET6) {
    // [::] serves both families.
    const int only_v6 =
        IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<sockaddr_in6*>(info.ai_addr)->sin6_addr) ? 0 : 1;
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  }
  if (bind(fd, info.ai_addr, info.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::vector<Address>& addresses,
                                                         Connections& connections, mode_t unix_mode) {
  std::unique_ptr<Listener> listener(new Listener(connections, unix_mode));
  listener->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0)
    return absl::InternalError(absl::StrCat("cannot create an eventfd: ", std::strerror(errno)));
  for (const Address& address : addresses) {
    if (absl::Status added = listener->Add(address); !added.ok()) return added;
  }
  return listener;
}

Listener::~Listener() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

absl::Status Listener::Add(const Address& address) {
  return address.unix_path.empty() ? AddTcp(address) : AddUnix(address);
}

absl::Status Listener::AddUnix(const Address& address) {
  if (auto s = RemoveStaleSocket(address.unix_path); !s.ok()) return s;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.unix_path.data(), address.unix_path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return CannotServe(address, std::strerror(errno));
  // Set the mode between bind and listen, because nobody can connect before listen.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
      chmod(address.unix_path.c_str(), unix_mode_) != 0 || listen(fd, kBacklog) != 0) {
    const int error = errno;
    close(fd);
    return CannotServe(address, std::strerror(error));
  }
  sockets_.push_back({fd, address.unix_path});
  addresses_.push_back(address.text());
  return absl::OkStatus();
}

absl::Status Listener::AddTcp(const Address& address) {
  absl::string_view host = address.host;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(), "0", &hints, &found);
  if (error != 0) return CannotServe(address, gai_strerror(error));
  Address served = address;
  absl::Status failed = absl::OkStatus();
  size_t listening = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SetPort(info->ai_addr, served.port);
    const int fd = ListenOn(*info);
    if (fd < 0) {
      // Continue after an error: a name may have an address of a family that this machine does not support.
      if (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)
        failed = CannotServe(address, std::strerror(errno));
      continue;
    }
    ++listening;
    sockets_.push_back({fd, ""});
    served.port = PortOf(fd);
  }
  freeaddrinfo(found);
  if (!failed.ok()) return failed;
  if (listening == 0) return CannotServe(address, "it is no address of this machine");
  addresses_.push_back(served.text());
  return absl::OkStatus();
}

void Listener::Start(Take take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Serve(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof one);
    thread_.join();
  }
  for (const Socket& socket : sockets_) {
    close(socket.fd);
    if (!socket.unix_path.empty()) unlink(socket.unix_path.c_str());
  }
  sockets_.clear();
}

void Listener::Serve() {
  std::vector<pollfd> polled;
  for (const Socket& socket : sockets_) polled.push_back({socket.fd, POLLIN, 0});
  polled.push_back({wake_, POLLIN, 0});
  pollfd* const wake = &polled.back();
  absl::Duration next_sweep = Clock::System().Steady();
  int period = kSweepMs;
  while (true) {
    const int ready = poll(polled.data(), polled.size(), period);
    if (ready < 0 && errno != EINTR) spdlog::error("poll of the listeners failed: {}", std::strerror(errno));
    if (ready > 0 && (wake->revents & POLLIN) != 0) return;
    bool resources = true;
    for (size_t i = 0; ready > 0 && i < sockets_.size(); ++i) {
      if (polled[i].revents != 0) resources = AcceptAll(sockets_[i]) && resources;
    }
    if (ready > 0) period = kSweepMs;
    if (Clock::System().Steady() >= next_sweep) {
      period = connections_.Sweep() ? kSweepMs : kIdleSweepMs;
      next_sweep = Clock::System().Steady() + absl::Milliseconds(kSweepMs);
    }
    // Without descriptors, connections wait in the backlog and their sockets stay ready. Sleep, because poll
    // would return at once.
    if (!resources) (void)poll(wake, 1, kNoDescriptorsMs);
  }
}

// Limits the log to one line in ten seconds.
bool Listener::MayLog() {
  if (Clock::System().Steady() - last_logged_ < absl::Seconds(10)) return false;
  last_logged_ = Clock::System().Steady();
  return true;
}

bool Listener::AcceptAll(const Socket& socket) {
  const bool local = !socket.unix_path.empty();
  for (int i = 0; i < kBacklog; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    const int fd =
        accept4(socket.fd, reinterpret_cast<sockaddr*>(&from), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return true;
      if (error == EINTR || error == ECONNABORTED || error == EPROTO) continue;
      if (MayLog()) spdlog::error("cannot accept a connection, trying again: {}", std::strerror(error));
      return false;
    }
    if (!local) {
      const int on = 1;
      (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    std::optional<uid_t> uid;
    if (local) {
      uid = AccountOf(fd);
      if (!uid.has_value()) {
        close(fd);
        continue;
      }
    }
    const std::string why = connections_.Admit(fd, local ? "" : AddressText(from, size), uid);
    if (why.empty()) {
      take_(fd, uid);
      continue;
    }
    close(fd);
    if (MayLog()) spdlog::warn("a connection was closed at once: {}", why);
  }
  return true;
}

}  // namespace scalelab::server
