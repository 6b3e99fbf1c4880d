// IPv4 addresses and TCP connections between the nodes of a run.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace scalelab::trainer {

// Returns one line for the other ranks with the host name, the identity of the network stack and the IPv4
// addresses of this machine: "name@identity address mask address mask". If GLOO_SOCKET_IFNAME is set, uses
// only this interface, and throws TrainerError if it has no address.
std::string DescribeHost();
std::string HostName();

// Returns the address at which the other ranks reach this rank's machine, given the descriptions of all
// ranks. Returns the loopback address if all ranks are on one machine. Otherwise prefers an address in a
// network that contains another machine too. If there is none, returns the source address that the kernel
// chooses for connections to another machine.
std::string ChooseAddress(const std::vector<std::string>& hosts, int rank);

// An owned file descriptor, closed by the destructor.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Listens on a free port of `address` and sets `port` to it. Throws TrainerError.
Socket Listen(const std::string& address, int& port);
// Connects to `address`. Returns an invalid socket if the other side refuses or `timeout` expires.
Socket Connect(const std::string& address, int port, std::chrono::milliseconds timeout);
// Sends a short line without blocking. Returns false if the connection is closed or the line does not fit
// into the socket's buffer.
bool SendLine(const Socket& socket, const std::string& line);

}  // namespace scalelab::trainer
