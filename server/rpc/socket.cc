#include "server/rpc/socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

// sun_path ends with a zero byte.
constexpr size_t kLongestUnixPath = sizeof(sockaddr_un::sun_path) - 1;

absl::StatusOr<Address> ParseUnix(std::string path) {
  if (absl::StartsWith(path, "///")) path.erase(0, 2);  // unix:///path is another spelling of unix:/path
  if (path.empty())
    return absl::InvalidArgumentError("unix: needs a path, for example unix:/run/scalelab/scalelab.sock");
  std::error_code error;
  Address address;
  address.unix_path = std::filesystem::absolute(path, error).lexically_normal().string();
  if (error)
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' is no valid path: ", error.message()));
  if (address.unix_path.size() > kLongestUnixPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path ", address.unix_path, " has ", address.unix_path.size(),
                     " bytes, and a Unix socket takes ", kLongestUnixPath, "; choose a shorter path"));
  }
  return address;
}

}  // namespace

std::string Address::text() const {
  return unix_path.empty() ? absl::StrCat(host, ":", port) : absl::StrCat("unix:", unix_path);
}

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  if (absl::StartsWith(text, "unix:")) return ParseUnix(text.substr(5));
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' ", why, "; write unix:PATH or HOST:PORT, for example 0.0.0.0:7600 or [::1]:7600"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong("has no port");
  Address address;
  address.host = text.substr(0, colon);
  if (address.host.empty()) return wrong("has no host");
  const bool brackets = address.host.front() == '[' && address.host.back() == ']';
  if (!brackets && address.host.find_first_of(":/[] ") != std::string::npos) return wrong("is no address");
  if (!absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 || address.port > 65535) {
    return wrong("has no port from 0 to 65535");
  }
  return address;
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("cannot stat the socket ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is no socket; move it, or choose another address with --listen"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() > kLongestUnixPath)
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " is too long"));
  std::memcpy(address.sun_path, path.data(), path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return absl::InternalError(absl::StrCat("cannot create a socket: ", std::strerror(errno)));
  const int connected = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  close(probe);
  if (connected == 0 || error == EAGAIN) {  // EAGAIN: a program listens, and its backlog is full
    return absl::FailedPreconditionError(absl::StrCat("another program listens on ", path,
                                                      "; stop it, or choose another address with --listen"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot remove the old socket ", path, ": ", std::strerror(errno),
                     "; remove it, or choose another address with --listen"));
  }
  return absl::OkStatus();
}

}  // namespace scalelab::server
