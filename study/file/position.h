// Positions in study files.
#pragma once

#include <compare>

namespace scalelab {

// A line and column, both from 1. The position of a mapping's entry is that of its key.
struct Position {
  int line = 1;
  int column = 1;
  // NOLINTNEXTLINE(modernize-use-nullptr): the compiler adds the 0.
  auto operator<=>(const Position&) const = default;
};

}  // namespace scalelab
