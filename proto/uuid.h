// Random identifiers: request ids, and tokens of attempts and allocations.
#pragma once

#include <string>

namespace scalelab {

// Returns a random UUID (version 4 of RFC 4122) in lower case. The 122 random bits come from the kernel, so it cannot be
// guessed. May be called from any thread.
std::string RandomUuid();

}  // namespace scalelab
