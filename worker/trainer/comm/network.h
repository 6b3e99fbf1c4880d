// Addresses and TCP connections between the nodes of a run. IPv4.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace scalelab::trainer {

// What a rank tells the others about its machine, in one line: host name and addresses. GLOO_SOCKET_IFNAME
// names the only interface to consider; throws TrainerError when that one has no address.
std::string DescribeHost();
std::string HostName();

// The address of this rank's machine under which the others reach it, by the descriptions of all ranks:
// loopback where all ranks share a machine, else an address in a network that another machine is in too, else
// the one from which the kernel would speak to another machine.
std::string ChooseAddress(const std::vector<std::string>& hosts, int rank);

// A file descriptor that closes itself.
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

// Listens on a free port of `address`; throws TrainerError.
Socket Listen(const std::string& address, int& port);
// Not valid when the other side refuses or does not accept in time.
Socket Connect(const std::string& address, int port, std::chrono::milliseconds timeout);
// Sends what fits into the socket's buffer; false when the connection is gone. For short lines only.
bool SendLine(const Socket& socket, const std::string& line);

}  // namespace scalelab::trainer
