#include "server/rpc/connections.h"

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
#include "planted/bug.h"
#include "server/time/clock.h"

namespace scalelab::server {
namespace {

// Number of descriptors that are reserved for the database, the log, the processes of workers and calls in progress.
constexpr int kOwnFiles = 96;
// Bytes per second.
constexpr double kSlowGrowth = 16 << 20;

// Returns the inode of the socket; 0 if the descriptor is not an open socket.
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

// Resets the connection. The system discards the bytes that were received and not yet read, which can be megabytes.
// After shutdown(2), gRPC would still read them and allocate memory for their streams. Does not close the
// descriptor: gRPC, or the relay of an encrypted connection, detects the end and closes it.
void Abort(int fd) {
  sockaddr none{};
  none.sa_family = AF_UNSPEC;  // dissolves the association; see connect(2)
  if (connect(fd, &none, sizeof none) != 0) shutdown(fd, SHUT_RDWR);
}

int64_t ResidentBytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns 7 for the peer "fd:7"; -1 if `peer` has another form.
int Descriptor(absl::string_view peer) {
  int fd = -1;
  return absl::ConsumePrefix(&peer, "fd:") && absl::SimpleAtoi(peer, &fd) ? fd : -1;
}

}  // namespace

ConnectionLimits ConnectionLimits::For(int files, bool tls) {
  ConnectionLimits limits;
  const int usable = std::max(1, files - std::max(kOwnFiles, files / 4));
  const int for_tcp = usable * 3 / 4;
  limits.tcp = tls ? for_tcp / 3 : for_tcp;
  limits.total = usable - for_tcp + limits.tcp;
  limits.per_address = std::max(8, limits.tcp / 2);
  limits.unauthenticated = std::clamp(limits.per_address / 4, 8, 1024);
  return limits;
}

std::string Connections::Refusal(const std::string& peer, bool tcp) {
  if (static_cast<int>(by_fd_.size()) >= limits_.total)
    return absl::StrCat("there are ", by_fd_.size(), " connections, the maximum");
  if (peer.empty()) return "";
  if (const auto blocked = blocked_until_.find(peer); blocked != blocked_until_.end()) {
    if (blocked->second > Clock::System().Steady())
      return absl::StrCat(peer, " has used much memory without an authenticated call");
    blocked_until_.erase(blocked);
  }
  if (tcp && tcp_ >= limits_.tcp) return absl::StrCat("there are ", tcp_, " TCP connections, the maximum");
  const auto count = by_peer_.find(peer);
  if (count == by_peer_.end()) return "";
  if (count->second.open >= limits_.per_address && !Planted(Bug::kConnectionLimitIgnored))
    return absl::StrCat(peer, " has ", count->second.open,
                        " connections, the maximum for one address or account");
  if (count->second.unauthenticated >= limits_.unauthenticated) {
    return absl::StrCat(peer, " has ", count->second.unauthenticated,
                        " connections without an authenticated call, the maximum");
  }
  return "";
}

std::string Connections::Admit(int fd, const std::string& address, std::optional<uid_t> uid) {
  const bool tcp = !address.empty();
  const bool other_account = uid.has_value() && *uid != geteuid();
  const std::string peer = other_account ? absl::StrCat("uid ", *uid) : address;
  absl::MutexLock lock(&mutex_);
  Reuse(fd);
  std::string why = Refusal(peer, tcp);
  if (!why.empty()) {
    ForgetClosed();
    why = Refusal(peer, tcp);
    if (!why.empty()) return why;
  }
  by_fd_[fd] = {InodeOf(fd), tcp, peer, !tcp, Clock::System().Steady(), "", -1};
  if (peer.empty()) return "";
  ++by_peer_[peer].open;
  if (!tcp) return "";
  ++tcp_;
  unauthenticated_.insert(fd);
  ++by_peer_[peer].unauthenticated;
  return "";
}

void Connections::SetUser(int fd, const std::string& user) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = by_fd_.find(fd); found != by_fd_.end()) found->second.user = user;
}

void Connections::Reuse(int fd) {
  if (const auto old = by_fd_.find(fd); old != by_fd_.end()) Forget(old);
  const auto plain = tcp_of_plain_.find(fd);
  if (plain == tcp_of_plain_.end()) return;
  by_fd_.at(plain->second).plain = -1;
  tcp_of_plain_.erase(plain);
}

void Connections::SetPlain(int plain, int tcp) {
  absl::MutexLock lock(&mutex_);
  Reuse(plain);
  const auto found = by_fd_.find(tcp);
  if (found == by_fd_.end()) return;
  found->second.plain = plain;
  tcp_of_plain_[plain] = tcp;
}

Connections::ByFd::const_iterator Connections::Find(absl::string_view peer) const {
  const int fd = Descriptor(peer);
  const auto plain = tcp_of_plain_.find(fd);
  return by_fd_.find(plain == tcp_of_plain_.end() ? fd : plain->second);
}

Connections::ByFd::iterator Connections::Forget(ByFd::iterator gone) {
  const Connection& connection = gone->second;
  if (connection.plain >= 0) tcp_of_plain_.erase(connection.plain);
  if (connection.tcp) {
    --tcp_;
    unauthenticated_.erase(gone->first);
  }
  if (!connection.peer.empty()) {
    Count& count = by_peer_[connection.peer];
    --count.open;
    if (!connection.authenticated) --count.unauthenticated;
    if (count.open == 0) by_peer_.erase(connection.peer);
  }
  return by_fd_.erase(gone);
}

void Connections::ForgetClosed() {
  for (auto it = by_fd_.begin(); it != by_fd_.end();)
    it = InodeOf(it->first) == it->second.inode ? std::next(it) : Forget(it);
}

void Connections::MarkAuthenticated(absl::string_view peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = Find(peer);
  if (found == by_fd_.end() || found->second.authenticated) return;
  Connection& connection = by_fd_[found->first];
  connection.authenticated = true;
  unauthenticated_.erase(found->first);
  --by_peer_[connection.peer].unauthenticated;
}

std::string Connections::PeerOf(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = Find(peer);
  return found == by_fd_.end() || found->second.peer.empty() ? peer : found->second.peer;
}

std::string Connections::UserOf(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = Find(peer);
  return found == by_fd_.end() ? "" : found->second.user;
}

bool Connections::MemoryGrows() {
  const int64_t memory = ResidentBytes();
  const absl::Duration now = Clock::System().Steady();
  const double seconds = absl::ToDoubleSeconds(std::min(now - memory_seen_, absl::Seconds(60)));
  usual_memory_ = std::min(memory, usual_memory_ + static_cast<int64_t>(kSlowGrowth * seconds));
  // After a pause without connections, growth is measured from the present memory.
  if (now - memory_seen_ > absl::Seconds(1)) usual_memory_ = memory;
  memory_seen_ = now;
  return memory - usual_memory_ > limits_.memory_growth;
}

bool Connections::Sweep() {
  absl::MutexLock lock(&mutex_);
  if (unauthenticated_.empty()) return false;
  const bool memory_grows = MemoryGrows();
  const absl::Duration late = Clock::System().Steady() - limits_.authentication_time;
  std::vector<int> closed;
  for (const int fd : unauthenticated_) {
    const Connection& connection = by_fd_.at(fd);
    if (InodeOf(fd) != connection.inode) {
      closed.push_back(fd);
      continue;
    }
    if (memory_grows || connection.since < late || BytesReceived(fd) > limits_.unauthenticated_bytes)
      Abort(fd);
    if (memory_grows) blocked_until_[connection.peer] = Clock::System().Steady() + limits_.penalty;
  }
  for (const int fd : closed) Forget(by_fd_.find(fd));
  return !unauthenticated_.empty();
}

int Connections::open() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(by_fd_.size());
}

}  // namespace scalelab::server
