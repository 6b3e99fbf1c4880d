#include "proto/uuid.h"

#include <sys/random.h>

#include <cstdlib>

#include "absl/strings/str_format.h"

namespace scalelab {

std::string RandomUuid() {
  unsigned char b[16];
  // Without randomness identifiers could collide. Requests of this size are never cut short (getrandom(2)).
  if (getrandom(b, sizeof b, 0) != static_cast<ssize_t>(sizeof b)) std::abort();
  b[6] = (b[6] & 0x0f) | 0x40;
  b[8] = (b[8] & 0x3f) | 0x80;
  return absl::StrFormat("%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                         b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                         b[15]);
}

}  // namespace scalelab
