// The server's end of encrypted connections. gRPC 1.51 can take over an accepted connection only without TLS,
// and gRPC's own TLS port would accept connections without the limits of Connections. Therefore this class
// decrypts the connection. It relays bytes between the TCP socket and one end of a pair of local sockets;
// gRPC serves the other end.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tls/certificate.h"

namespace scalelab::server {

class TlsConnection;

// One thread serves all connections. For each direction of a connection it buffers at most 16 KiB, and does
// not read more before the receiver has accepted them. Supports TLS 1.2 and 1.3, and HTTP/2 only (ALPN "h2").
class TlsRelay {
 public:
  // Takes ownership of `plain`, which carries the decrypted bytes of the connection `tcp`. Must not block.
  using Take = std::function<void(int plain, int tcp)>;

  // Closes connections that do not complete their handshake within `handshake_limit`. Returns INVALID_ARGUMENT if the
  // certificate or the key cannot be used.
  static absl::StatusOr<std::unique_ptr<TlsRelay>> Start(const tls::KeyPair& identity, Take take,
                                                         absl::Duration handshake_limit = absl::Seconds(10));
  // Closes all connections.
  ~TlsRelay();
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  // Serves an accepted connection whose socket does not block. Takes ownership of it. May be called from any thread.
  void Add(int tcp) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Shared;
  TlsRelay(std::unique_ptr<Shared> shared, Take take, absl::Duration handshake_limit);
  void Serve();
  void TakeAdded();
  // Moves bytes of a connection and closes it if it has ended.
  void Advance(uint64_t id);
  void CloseLate();

  const std::unique_ptr<Shared> shared_;
  const Take take_;
  const absl::Duration handshake_limit_;
  absl::Mutex mutex_;
  std::vector<int> added_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  // Only the thread uses the following members.
  std::unordered_map<uint64_t, std::unique_ptr<TlsConnection>> connections_;
  uint64_t last_id_ = 0;
  std::thread thread_;
};

}  // namespace scalelab::server
