#include "server/services/connections.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace scalelab::server {
namespace {

// Descriptors of the database, the log, the workers' processes and calls in progress.
constexpr int kOwnFiles = 96;
// In bytes a second.
constexpr double kSlowGrowth = 16 << 20;

// Returns 0 if the descriptor is no open socket.
ino_t InodeOf(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

int64_t BytesReceived(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns -1 if `peer` is not of the form "fd:7".
int Descriptor(absl::string_view peer) {
  int fd = -1;
  return absl::ConsumePrefix(&peer, "fd:") && absl::SimpleAtoi(peer, &fd) ? fd : -1;
}

}  // namespace

ConnectionLimits ConnectionLimits::For(int files) {
  ConnectionLimits limits;
  limits.total = std::max(1, files - std::max(kOwnFiles, files / 4));
  limits.tcp = limits.total * 3 / 4;
  limits.per_address = std::max(8, limits.tcp / 2);
  limits.unauthenticated = std::clamp(limits.per_address / 4, 8, 1024);
  return limits;
}

std::string Connections::Refusal(const std::string& address) {
  if (static_cast<int>(by_fd_.size()) >= limits_.total)
    return absl::StrCat("there are ", by_fd_.size(), " connections, the maximum");
  if (address.empty()) return "";
  if (const auto blocked = blocked_until_.find(address); blocked != blocked_until_.end()) {
    if (blocked->second > absl::Now())
      return absl::StrCat(address, " has used much memory without an authenticated call");
    blocked_until_.erase(blocked);
  }
  if (tcp_ >= limits_.tcp) return absl::StrCat("there are ", tcp_, " TCP connections, the maximum");
  const auto count = by_address_.find(address);
  if (count == by_address_.end()) return "";
  if (count->second.open >= limits_.per_address)
    return absl::StrCat(address, " has ", count->second.open, " connections, the maximum for one address");
  if (count->second.unauthenticated >= limits_.unauthenticated) {
    return absl::StrCat(address, " has ", count->second.unauthenticated,
                        " connections without an authenticated call, the maximum");
  }
  return "";
}

std::string Connections::Admit(int fd, const std::string& address) {
  absl::MutexLock lock(&mutex_);
  // The number of this descriptor may be that of a closed connection.
  if (const auto old = by_fd_.find(fd); old != by_fd_.end()) Forget(old);
  std::string why = Refusal(address);
  if (!why.empty()) {
    ForgetClosed();
    why = Refusal(address);
    if (!why.empty()) return why;
  }
  by_fd_[fd] = {InodeOf(fd), address, address.empty(), absl::Now()};
  if (address.empty()) return "";
  ++tcp_;
  unauthenticated_.insert(fd);
  ++by_address_[address].open;
  ++by_address_[address].unauthenticated;
  return "";
}

Connections::ByFd::iterator Connections::Forget(ByFd::iterator gone) {
  const Connection& connection = gone->second;
  if (!connection.address.empty()) {
    --tcp_;
    unauthenticated_.erase(gone->first);
    Count& count = by_address_[connection.address];
    --count.open;
    if (!connection.authenticated) --count.unauthenticated;
    if (count.open == 0) by_address_.erase(connection.address);
  }
  return by_fd_.erase(gone);
}

void Connections::ForgetClosed() {
  for (auto it = by_fd_.begin(); it != by_fd_.end();)
    it = InodeOf(it->first) == it->second.inode ? std::next(it) : Forget(it);
}

void Connections::MarkAuthenticated(absl::string_view peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_fd_.find(Descriptor(peer));
  if (found == by_fd_.end() || found->second.authenticated) return;
  found->second.authenticated = true;
  unauthenticated_.erase(found->first);
  --by_address_[found->second.address].unauthenticated;
}

std::string Connections::AddressOf(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_fd_.find(Descriptor(peer));
  return found == by_fd_.end() || found->second.address.empty() ? peer : found->second.address;
}

bool Connections::MemoryGrows() {
  const int64_t memory = ResidentBytes();
  const absl::Time now = absl::Now();
  const double seconds = absl::ToDoubleSeconds(std::min(now - memory_seen_, absl::Seconds(60)));
  usual_memory_ = std::min(memory, usual_memory_ + static_cast<int64_t>(kSlowGrowth * seconds));
  // The first connection after a pause starts from the memory of now.
  if (now - memory_seen_ > absl::Seconds(1)) usual_memory_ = memory;
  memory_seen_ = now;
  return memory - usual_memory_ > limits_.memory_growth;
}

bool Connections::Sweep() {
  absl::MutexLock lock(&mutex_);
  if (unauthenticated_.empty()) return false;
  const bool memory_grows = MemoryGrows();
  const absl::Time late = absl::Now() - limits_.authentication_time;
  std::vector<int> closed;
  for (const int fd : unauthenticated_) {
    const Connection& connection = by_fd_.at(fd);
    if (InodeOf(fd) != connection.inode) {
      closed.push_back(fd);
      continue;
    }
    // gRPC notices the end of the connection.
    if (memory_grows || connection.since < late || BytesReceived(fd) > limits_.unauthenticated_bytes)
      shutdown(fd, SHUT_RDWR);
    if (memory_grows) blocked_until_[connection.address] = absl::Now() + limits_.penalty;
  }
  for (const int fd : closed) Forget(by_fd_.find(fd));
  return !unauthenticated_.empty();
}

int Connections::open() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(by_fd_.size());
}

}  // namespace scalelab::server
