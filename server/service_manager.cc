#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr char kVariable[] = "NOTIFY_SOCKET";
// systemd ignores a notification of more than 4096 bytes, and one with a null byte. A line break begins
// another field.
constexpr size_t kLongestStatus = 2000;

std::string StatusField(absl::string_view text) {
  std::string line(text.substr(0, kLongestStatus));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return absl::StrCat("STATUS=", line);
}

absl::Status SendDatagram(const std::string& address, absl::Duration timeout, const std::string& text) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // The name of an abstract socket begins with a null byte and has none at its end.
  const bool abstract = address[0] == '@';
  if (!abstract && address[0] != '/')
    return absl::InvalidArgumentError("it must be an absolute path, or begin with @");
  if (address.size() >= sizeof name.sun_path) return absl::InvalidArgumentError("it is too long");
  address.copy(name.sun_path, address.size());
  if (abstract) name.sun_path[0] = '\0';
  const size_t size = offsetof(sockaddr_un, sun_path) + address.size() + (abstract ? 0 : 1);

  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  const absl::Cleanup close_it = [fd] { close(fd); };
  const timeval limit = absl::ToTimeval(timeout);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
    return absl::ErrnoToStatus(errno, "setsockopt");
  ssize_t sent = 0;
  do {
    sent = sendto(fd, text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&name),
                  static_cast<socklen_t>(size));
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  return errno == EAGAIN ? absl::DeadlineExceededError("its queue is full")
                         : absl::ErrnoToStatus(errno, "sendto");
}

}  // namespace

ServiceManager ServiceManager::FromEnvironment() {
  const char* const address = std::getenv(kVariable);
  ServiceManager manager(address == nullptr ? "" : address);
  unsetenv(kVariable);
  return manager;
}

ServiceManager::ServiceManager(std::string address, absl::Duration timeout)
    : address_(std::move(address)), timeout_(timeout) {}

void ServiceManager::Ready(absl::string_view status) const {
  Send(absl::StrCat("READY=1\n", StatusField(status)));
}

void ServiceManager::Failed(absl::string_view error) const { Send(StatusField(error)); }

void ServiceManager::Reloading() const {
  Send(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", absl::ToInt64Microseconds(Clock::System().Steady())));
}

void ServiceManager::Stopping() const { Send("STOPPING=1"); }

void ServiceManager::Send(const std::string& notification) const {
  if (address_.empty()) return;
  const absl::Status sent = SendDatagram(address_, timeout_, notification);
  if (sent.ok()) return;
  spdlog::warn("cannot send {} to the service manager at {} (NOTIFY_SOCKET): {}",
               notification.substr(0, notification.find('=')), address_, std::string(sent.message()));
}

}  // namespace scalelab::server
