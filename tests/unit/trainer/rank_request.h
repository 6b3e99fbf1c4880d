// The protocol with which forked_rank.cc requests a rank from trainer_template.cc, on a Unix socket
// of type SOCK_STREAM.
//
// The request begins with its size in 8 bytes. With these come kDescriptors descriptors: standard input,
// output and error, and the working directory. Then follow the arguments, an empty string, and the
// environment; each string ends with a zero byte. Each byte after that is a signal for the rank. The template
// answers with the wait status of the rank, as an int.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

namespace scalelab::trainer {

constexpr size_t kDescriptors = 4;

// Sets `address` to an abstract socket, which leaves no file. Returns its size, or 0 if the name is empty or too long.
inline socklen_t TemplateAddress(const char* name, sockaddr_un& address) {
  address = {AF_UNIX, {}};
  const size_t size = name == nullptr ? 0 : std::strlen(name);
  if (size == 0 || size >= sizeof address.sun_path) return 0;
  std::memcpy(address.sun_path + 1, name, size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

}  // namespace scalelab::trainer
