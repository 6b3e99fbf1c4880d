// The open connections of the service, and their limits. gRPC 1.51 owns and closes the descriptors without a
// notification, so this class compares sockets by their inode to find those that are gone.
#pragma once

#include <sys/types.h>

#include <functional>
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
  int tcp = 768;              // of TCP listeners, so that local clients can always connect
  int per_address = 256;      // from one IP address
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

  // Returns limits that leave enough of `files` descriptors for the rest of the process.
  static ConnectionLimits For(int files);
};

// May be used from any thread.
class Connections {
 public:
  explicit Connections(const ConnectionLimits& limits) : limits_(limits) {}

  // Records the new connection. Returns an empty string, or why the connection must be closed at once.
  // `address` is the IP address of the peer; empty for a local one.
  std::string Admit(int fd, const std::string& address) ABSL_LOCKS_EXCLUDED(mutex_);
  // Records that the peer ("fd:7") has made an authenticated call.
  void MarkAuthenticated(absl::string_view peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the IP address of the peer ("fd:7"), or `peer` if its connection is not known.
  std::string AddressOf(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes connections that break a limit. Returns whether there are connections to be checked again soon.
  bool Sweep() ABSL_LOCKS_EXCLUDED(mutex_);
  int open() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    ino_t inode = 0;
    std::string address;
    bool authenticated = false;
    absl::Time since;
  };
  struct Count {
    int open = 0, unauthenticated = 0;
  };
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the memory of the process grows fast.
  bool MemoryGrows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using ByFd = std::unordered_map<int, Connection>;
  ByFd::iterator Forget(ByFd::iterator gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Refusal(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  mutable absl::Mutex mutex_;
  ByFd by_fd_ ABSL_GUARDED_BY(mutex_);
  std::unordered_set<int> unauthenticated_ ABSL_GUARDED_BY(mutex_);  // keys of by_fd_
  std::unordered_map<std::string, Count> by_address_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, absl::Time> blocked_until_ ABSL_GUARDED_BY(mutex_);  // by address
  int64_t usual_memory_ ABSL_GUARDED_BY(mutex_) = 0;  // follows the memory of the process slowly
  absl::Time memory_seen_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int tcp_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace scalelab::server
