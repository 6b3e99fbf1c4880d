// Drawing with characters, for plots on a terminal. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::client {

// A grid of characters and, below them, a finer grid of dots (2 x 4 per character, as in braille). Places outside of the
// grid are ignored.
class Canvas {
 public:
  Canvas(int width, int height, bool unicode, bool color);

  // Replaces the glyph at this place. `color` is an ANSI colour; 0: none.
  void Put(int column, int row, absl::string_view glyph, int color);
  // Puts the glyph only if the place has none.
  void PutBelow(int column, int row, absl::string_view glyph, int color);
  // Draws a dot at this place, in characters from the top left.
  void Dot(double x, double y, int color);
  // Draws a line of dots.
  void Line(double x0, double y0, double x1, double y1, int color);
  // Returns a row without trailing spaces.
  std::string Row(int row) const;

 private:
  struct Cell {
    std::string glyph;
    int dots = 0;
    int color = 0;
  };
  Cell* At(int column, int row);

  const int width_, height_;
  const bool unicode_, color_;
  std::vector<Cell> cells_;
};

}  // namespace scalelab::client
