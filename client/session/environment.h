// Variables of the environment.
#pragma once

#include <cstdlib>
#include <string>

namespace scalelab::client {

// Returns the value of the variable; empty if it is not set.
inline std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace scalelab::client
