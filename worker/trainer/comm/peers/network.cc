#include "worker/trainer/comm/peers/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

std::string Text(in_addr address) {
  char text[INET_ADDRSTRLEN];
  return inet_ntop(AF_INET, &address, text, sizeof text);
}

sockaddr_in SocketAddress(const std::string& address, int port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

struct Interface {
  std::string address;
  uint32_t network = 0, mask = 0;  // in host byte order
};

struct Host {
  std::string name;
  std::string identity;  // identity of its network; the name of the host if the identity is not known
  std::vector<Interface> interfaces;

  bool Has(const std::string& address) const {
    return std::ranges::any_of(interfaces, [&](const Interface& i) { return i.address == address; });
  }
};

Host Parse(const std::string& description) {
  std::istringstream in(description);
  Host host;
  in >> host.name;
  const size_t at = host.name.rfind('@');
  host.identity = at == std::string::npos ? host.name : host.name.substr(at + 1);
  host.name = host.name.substr(0, at);
  for (Interface i; in >> i.address >> i.mask;) {
    i.network = ntohl(SocketAddress(i.address, 0).sin_addr.s_addr) & i.mask;
    host.interfaces.push_back(i);
  }
  return host;
}

// Returns a text that is equal for all processes that share a network stack: the boot id of the machine and
// the network namespace. Returns "" if /proc does not contain them.
std::string NetworkIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  if (boot.empty() || stat("/proc/self/ns/net", &space) != 0) return "";
  return boot + "/" + std::to_string(space.st_ino);
}

// Returns the source address that the kernel would use for `address`. Connecting a UDP socket sends nothing.
std::string SourceTowards(const std::string& address) {
  const Socket socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in there = SocketAddress(address, 9), here{};
  socklen_t size = sizeof here;
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size) != 0) {
    return "";
  }
  return Text(here.sin_addr);
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return *name != '\0' ? name : "?";
}

std::string DescribeHost() {
  const char* wanted = std::getenv("GLOO_SOCKET_IFNAME");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  std::ostringstream description;
  description << HostName();
  if (const std::string identity = NetworkIdentity(); !identity.empty()) description << '@' << identity;
  ifaddrs* all = nullptr;
  bool found = false;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
      if (wanted != nullptr ? std::strcmp(i->ifa_name, wanted) != 0 : (i->ifa_flags & IFF_LOOPBACK) != 0)
        continue;
      description << ' ' << Text(reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr) << ' '
                  << ntohl(reinterpret_cast<sockaddr_in*>(i->ifa_netmask)->sin_addr.s_addr);
      found = true;
    }
    freeifaddrs(all);
  }
  if (wanted != nullptr && !found) {
    throw TrainerError(std::string("GLOO_SOCKET_IFNAME names interface \"") + wanted +
                           "\", which has no IPv4 address on " + HostName() +
                           ": choose one that `ip address` shows, or leave it unset",
                       ErrorKind::kCommunication);
  }
  return description.str();
}

std::string ChooseAddress(const std::vector<std::string>& hosts, int rank) {
  const Host mine = Parse(hosts[rank]);
  if (const char* wanted = std::getenv("GLOO_SOCKET_IFNAME"); wanted != nullptr && *wanted != '\0') {
    return mine.interfaces.front().address;
  }
  std::vector<Host> others;
  for (const std::string& host : hosts) {
    // Compare the identities and not the interfaces, because the interfaces may change between the
    // descriptions of two ranks.
    if (Host other = Parse(host); other.identity != mine.identity) others.push_back(std::move(other));
  }
  if (others.empty()) return kLoopback;
  for (const Interface& here : mine.interfaces) {
    for (const Host& other : others) {
      // Skip an address that both hosts have, for example the address of a container bridge.
      if (other.Has(here.address)) continue;
      const bool shared = std::ranges::any_of(other.interfaces, [&](const Interface& there) {
        return there.network == here.network && there.mask == here.mask && !mine.Has(there.address);
      });
      if (shared) return here.address;
    }
  }
  for (const Host& other : others) {
    for (const Interface& there : other.interfaces) {
      const std::string source = mine.Has(there.address) ? "" : SourceTowards(there.address);
      if (mine.Has(source)) return source;
    }
  }
  throw TrainerError("no network connects " + mine.name + " and " + others.front().name +
                         ": set GLOO_SOCKET_IFNAME to an interface that reaches the other machine",
                     ErrorKind::kCommunication);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);  // `other` closes the old descriptor of this object
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket Listen(const std::string& address, int& port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in here = SocketAddress(address, 0);
  socklen_t size = sizeof here;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&here), size) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size) != 0) {
    throw TrainerError("cannot listen on " + address + " of " + HostName() + ": " + std::strerror(errno),
                       ErrorKind::kCommunication);
  }
  port = ntohs(here.sin_port);
  return socket;
}

Socket Connect(const std::string& address, int port, std::chrono::milliseconds timeout) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in there = SocketAddress(address, port);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there) != 0) {
    if (errno != EINPROGRESS) return Socket();
    pollfd ready{socket.get(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&ready, 1, static_cast<int>(timeout.count())) != 1 ||
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      return Socket();
    }
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

bool SendLine(const Socket& socket, const std::string& line) {
  return send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(line.size());
}

}  // namespace scalelab::trainer
