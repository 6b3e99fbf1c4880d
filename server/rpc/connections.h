// The open connections of the service, and their limits. gRPC 1.51 owns and closes the descriptors without a
// notification, so this class compares the inodes of sockets to find connections that have ended.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace scalelab::server {

struct ConnectionLimits {
  int total = 1024;           // of all listeners
  int tcp = 768;              // over TCP; it is below the total, so that local clients can always connect
  int per_address = 256;      // from one IP address, or one other account on the Unix socket
  int unauthenticated = 128;  // from one IP address, without an authenticated call so far
  // A connection is closed if it has no authenticated call within this time, or sends more bytes before. The first
  // request may have 4 MiB.
  absl::Duration authentication_time = absl::Seconds(20);
  int64_t unauthenticated_bytes = 6 << 20;
  // All connections without an authenticated call are closed when the memory of the process grows by more than this
  // much faster than kSlowGrowth, and their addresses may not connect for a while: gRPC 1.51 spends about 10 KB on
  // each stream, also on streams above its limit if the peer does not acknowledge the limit.
  int64_t memory_growth = int64_t{128} << 20;
  absl::Duration penalty = absl::Seconds(10);

  // Returns limits that leave enough of `files` descriptors for the rest of the process. A connection over
  // TLS takes three descriptors.
  static ConnectionLimits For(int files, bool tls);
};

// May be used from any thread.
class Connections {
 public:
  explicit Connections(const ConnectionLimits& limits) : limits_(limits) {}

  // Records the new connection. Returns an empty string, or why the connection must be closed at once.
  // `address` is the IP address of the peer; empty for a local one. `uid`: the account of a local peer.
  std::string Admit(int fd, const std::string& address, std::optional<uid_t> uid = {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the name of the account at the other end of a Unix socket.
  void SetUser(int fd, const std::string& user) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that the descriptor `plain` carries the decrypted bytes of the connection `tcp`.
  void SetPlain(int plain, int tcp) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that the peer ("fd:7") has made an authenticated call.
  void MarkAuthenticated(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the IP address of the peer ("fd:7"), "uid 1234" if it is another account of this machine, or `peer`.
  std::string PeerOf(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the name of the account of the peer ("fd:7"); empty on TCP. gRPC keeps the descriptor open while
  // it has a call of the connection, so the result never belongs to a later connection with the same number.
  std::string UserOf(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes connections that break a limit. Returns whether there are connections to be checked again soon.
  bool Sweep() ABSL_LOCKS_EXCLUDED(mutex_);
  int open() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    ino_t inode = 0;
    bool tcp = false;
    std::string peer;  // IP address, or "uid 1234"; empty for the account of this process
    bool authenticated = false;
    absl::Duration since;  // Clock::Steady
    std::string user;      // account at the other end of the Unix socket
    int plain = -1;        // the descriptor from which gRPC reads the decrypted bytes
  };
  struct Count {
    int open = 0, unauthenticated = 0;
  };
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the memory of the process grows fast.
  bool MemoryGrows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using ByFd = std::unordered_map<int, Connection>;
  // Returns the connection of a peer of gRPC ("fd:7").
  ByFd::const_iterator Find(absl::string_view peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the records of this descriptor, because its number now belongs to another connection.
  void Reuse(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ByFd::iterator Forget(ByFd::iterator gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Refusal(const std::string& peer, bool tcp) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  mutable absl::Mutex mutex_;
  ByFd by_fd_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<int, int> tcp_of_plain_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<int> unauthenticated_ ABSL_GUARDED_BY(mutex_);  // keys of by_fd_
  std::unordered_map<std::string, Count> by_peer_ ABSL_GUARDED_BY(mutex_);
  // By peer, as Clock::Steady.
  std::unordered_map<std::string, absl::Duration> blocked_until_ ABSL_GUARDED_BY(mutex_);
  int64_t usual_memory_ ABSL_GUARDED_BY(mutex_) = 0;  // follows the memory of the process, but grows slowly
  absl::Duration memory_seen_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();  // Clock::Steady
  int tcp_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace scalelab::server
