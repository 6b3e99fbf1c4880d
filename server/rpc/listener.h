// The listening sockets of the service. Accepts connections itself, because gRPC 1.51 has no limit of
// connections, and never accepts again on a listener after the process has once run out of descriptors.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/rpc/connections.h"
#include "server/rpc/socket.h"

namespace scalelab::server {

class Listener {
 public:
  // Takes ownership of the descriptor of a new connection. `uid`: the account at the other end, if it comes from the Unix
  // socket. Must not block:
  // the same thread accepts other connections and closes those that break a limit.
  using Take = std::function<void(int fd, std::optional<uid_t> uid)>;

  // Listens on all addresses. Returns FAILED_PRECONDITION if one cannot be served; the message names it. Unix
  // sockets get mode `unix_mode`. `connections` must outlive the listener.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::vector<Address>& addresses,
                                                        Connections& connections, mode_t unix_mode = 0600);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Starts a thread that calls `take` for each admitted connection. A connection over a limit is closed at once.
  void Start(Take take);
  // Ends the thread, closes the sockets and removes the Unix sockets.
  void Stop();
  // Returns the addresses served, with the ports that the system chose.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  struct Socket {
    int fd;
    std::string unix_path;  // empty for TCP
  };
  Listener(Connections& connections, mode_t unix_mode) : connections_(connections), unix_mode_(unix_mode) {}
  absl::Status Add(const Address& address);
  absl::Status AddUnix(const Address& address);
  absl::Status AddTcp(const Address& address);
  void Serve();
  // Accepts the connections that wait on the socket. Returns false if the system has no descriptor or no
  // memory for more.
  bool AcceptAll(const Socket& socket);
  bool MayLog();

  Connections& connections_;
  const mode_t unix_mode_;
  std::vector<Socket> sockets_;
  std::vector<std::string> addresses_;
  int wake_ = -1;  // an eventfd that ends the thread
  Take take_;
  absl::Duration last_logged_ = -absl::InfiniteDuration();  // Clock::Steady
  std::thread thread_;
};

}  // namespace scalelab::server
