// A stand-in for systemd: the socket to which a service sends its notifications.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <string>

namespace scalelab {

class NotifySocket {
 public:
  enum class Kind { kPath, kAbstract };
  explicit NotifySocket(Kind kind = Kind::kPath) {
    std::string pattern = "/tmp/scalelab-notify-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    address_ = directory_ + "/socket";
    if (kind == Kind::kAbstract) address_[0] = '@';
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    address_.copy(name.sun_path, sizeof name.sun_path - 1);
    if (kind == Kind::kAbstract) name.sun_path[0] = '\0';
    const size_t size = offsetof(sockaddr_un, sun_path) + address_.size() + (kind == Kind::kAbstract ? 0 : 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(size)), 0);
  }
  ~NotifySocket() {
    close(fd_);
    unlink((directory_ + "/socket").c_str());
    rmdir(directory_.c_str());
  }
  NotifySocket(const NotifySocket&) = delete;

  // Returns the value of NOTIFY_SOCKET for this socket.
  const std::string& address() const { return address_; }
  // Waits for the next notification and returns it. Returns an empty string if none arrives within `seconds`.
  std::string Next(int seconds = 60) {
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, seconds * 1000) != 1) return "";
    char text[8192];
    const ssize_t size = recv(fd_, text, sizeof text, 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }
  // Returns a notification that has arrived; an empty string if there is none.
  std::string Arrived() { return Next(0); }

 private:
  std::string directory_, address_;
  const int fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
};

}  // namespace scalelab
