// Places in study files.
#pragma once

#include <compare>

namespace scalelab::client {

// A place in a file, both from 1. Of an entry of a mapping it is the place of its key.
struct Position {
  int line = 1;
  int column = 1;
  auto operator<=>(const Position&) const = default;
};

}  // namespace scalelab::client
