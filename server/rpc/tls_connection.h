// One encrypted connection of TlsRelay: the state of its TLS session and of its two sockets.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "tls/openssl.h"

namespace scalelab::server {

// A direction holds at most one block: the largest TLS record, so that no decrypted bytes stay in OpenSSL.
inline constexpr size_t kRelayBlock = 16 << 10;

class TlsConnection {
 public:
  // Takes ownership of `tcp`. `handshake_limit` is a time of Clock::Steady. `epoll` reports events of the sockets with the
  // data 2 * `id` or 2 * `id` + 1.
  TlsConnection(SSL_CTX* context, int epoll, uint64_t id, int tcp, absl::Duration handshake_limit);
  ~TlsConnection();  // closes its sockets
  TlsConnection(const TlsConnection&) = delete;

  // Moves bytes as long as possible without blocking, but at most a fixed number of blocks, so that other
  // connections are served too. `block` is scratch space of kRelayBlock bytes. Returns false when the
  // connection has ended. Sets `*plain` to gRPC's end of the local sockets when the handshake is complete;
  // the caller owns it.
  bool Advance(char* block, int* plain);
  // Returns the time of Clock::Steady at which the connection must be closed if it has not made progress by then.
  absl::Duration limit() const { return limit_; }
  int tcp() const { return tcp_.fd; }

 private:
  struct Socket {
    int fd = -1;
    uint32_t events = 0;  // registered at epoll
    uint64_t data = 0;
  };
  enum class Step { kProgress, kBlocked, kBroken };

  Step Handshake(int* plain);
  // From the peer to gRPC.
  Step Up(char* block);
  // From gRPC to the peer.
  Step Down(char* block);
  Step SendUp(const char* data, size_t size);
  Step SendDown(const char* data, size_t size);
  // Interprets the result of an operation of OpenSSL.
  Step Blocked(int result);
  void Linger();
  void WaitForEvents();
  void SetEvents(Socket& socket, uint32_t events) const;

  const int epoll_;
  const tls::Ssl ssl_;
  Socket tcp_, plain_;
  bool ready_ = false;          // the handshake is complete
  bool write_blocked_ = false;  // OpenSSL waits until it can write to the TCP socket
  bool peer_ended_ = false;     // the peer sends no more
  bool plain_ended_ = false;    // gRPC sends no more
  std::string up_, down_;       // bytes that their receiver has not taken yet
  absl::Duration limit_;
};

}  // namespace scalelab::server
