// Finds out whether the server can listen on the addresses of the configuration.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/doctor/facts.h"
#include "server/rpc/socket.h"

namespace scalelab::server::doctor {
namespace {

// Resolves a host name. If that fails, returns null and sets `*error`. The caller frees the result.
addrinfo* LookUp(std::string host, const std::string& port, std::string* error) {
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int code = getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  if (code != 0) *error = absl::StrCat("the name ", host, " does not resolve: ", gai_strerror(code));
  return code == 0 ? found : nullptr;
}

bool Loopback(const addrinfo& info) {
  if (info.ai_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(info.ai_addr)->sin_addr.s_addr) >> 24) == 127;
  return info.ai_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(info.ai_addr)->sin6_addr);
}

void ReadTcp(const Address& address, AddressFacts& facts) {
  addrinfo* const found = LookUp(address.host, absl::StrCat(address.port), &facts.error);
  if (found == nullptr) return;
  const absl::Cleanup free_it = [found] { freeaddrinfo(found); };
  int error = 0;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    error = bind(fd, info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    close(fd);
    // bind(2) fails with EADDRINUSE if another socket listens on the address.
    if (error == 0 || error == EADDRINUSE) break;
  }
  facts.in_use = error == EADDRINUSE;
  if (error == EADDRNOTAVAIL) {
    facts.error = absl::StrCat(address.host, " is not an address of this machine");
  } else if (error != 0 && !facts.in_use) {
    facts.error = std::strerror(error);
  }
}

// Finds the directories on the path of a socket that others or this group may not enter, from `directory` upwards.
void ReadParents(const std::filesystem::path& directory, AddressFacts& facts) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::canonical(directory, error);
  if (error) at = directory;
  struct stat found {};
  for (;; at = at.parent_path()) {
    if (stat(at.c_str(), &found) == 0) {
      const bool others = (found.st_mode & S_IXOTH) != 0;
      // The kernel checks the bits for the group instead of those for others.
      const bool group = found.st_gid == getegid() ? (found.st_mode & S_IXGRP) != 0 : others;
      if (!others && facts.closed_to_others.empty()) facts.closed_to_others = at.string();
      if (!group && facts.closed_to_group.empty()) facts.closed_to_group = at.string();
    }
    if (at == at.parent_path()) break;
  }
}

void ReadUnixSocket(const std::string& path, AddressFacts& facts) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  struct stat found {};
  if (stat(directory.c_str(), &found) != 0) {
    facts.error = absl::StrCat("its directory ", directory.string(), ": ", std::strerror(errno));
    return;
  }
  ReadParents(directory, facts);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const absl::Cleanup close_it = [fd] { close(fd); };
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  facts.in_use = connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0;
  if (!facts.in_use && access(directory.c_str(), W_OK | X_OK) != 0)
    facts.error = absl::StrCat("its directory ", directory.string(), ": ", std::strerror(errno));
}

}  // namespace

AddressFacts ReadAddress(const std::string& text) {
  AddressFacts facts;
  facts.text = text;
  const absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) {
    facts.error = std::string(address.status().message());
    return facts;
  }
  facts.unix_socket = !address->unix_path.empty();
  if (facts.unix_socket) {
    ReadUnixSocket(address->unix_path, facts);
  } else {
    ReadTcp(*address, facts);
  }
  return facts;
}

NameFacts Resolve(const std::string& host) {
  NameFacts facts;
  addrinfo* const found = LookUp(host, "", &facts.error);
  if (found == nullptr) return facts;
  const absl::Cleanup free_it = [found] { freeaddrinfo(found); };
  facts.loopback = true;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next)
    facts.loopback = facts.loopback && Loopback(*info);
  return facts;
}

}  // namespace scalelab::server::doctor
