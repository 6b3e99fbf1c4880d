#include "worker/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace scalelab::worker {
namespace {

constexpr int kFirst = 20000, kCount = 10000;

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int reuse = 1;  // connections of an earlier program that are still closing do not matter
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const bool free =
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && listen(fd, 1) == 0;
  close(fd);
  return free;
}

}  // namespace

int FreePort(absl::string_view token) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const unsigned char c : token) hash = (hash ^ c) * 1099511628211ull;
  for (int i = 0; i < kCount; ++i) {
    const int port = kFirst + static_cast<int>((hash + static_cast<uint64_t>(i)) % kCount);
    if (IsFree(port)) return port;
  }
  return 0;
}

}  // namespace scalelab::worker
