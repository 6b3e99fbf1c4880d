#include "client/plots/canvas.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace scalelab::client {
namespace {

// Returns the character U+2800 plus one bit per dot, in UTF-8.
std::string Braille(int dots) {
  return {'\xe2', static_cast<char>(0xa0 | (dots >> 6)), static_cast<char>(0x80 | (dots & 0x3f))};
}

}  // namespace

Canvas::Canvas(int width, int height, bool unicode, bool color)
    : width_(width),
      height_(height),
      unicode_(unicode),
      color_(color),
      cells_(static_cast<size_t>(width) * static_cast<size_t>(height)) {}

Canvas::Cell* Canvas::At(int column, int row) {
  if (column < 0 || row < 0 || column >= width_ || row >= height_) return nullptr;
  return &cells_[static_cast<size_t>(row) * static_cast<size_t>(width_) + static_cast<size_t>(column)];
}

void Canvas::Put(int column, int row, absl::string_view glyph, int color) {
  if (Cell* cell = At(column, row)) *cell = {std::string(glyph), 0, color};
}

void Canvas::PutBelow(int column, int row, absl::string_view glyph, int color) {
  if (const Cell* cell = At(column, row); cell != nullptr && cell->glyph.empty())
    Put(column, row, glyph, color);
}

void Canvas::Dot(double x, double y, int color) {
  const int column = static_cast<int>(std::floor(x)), row = static_cast<int>(std::floor(y));
  Cell* cell = At(column, row);
  if (cell == nullptr || !cell->glyph.empty()) return;
  static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  const int dx = std::clamp(static_cast<int>((x - column) * 2), 0, 1);
  const int dy = std::clamp(static_cast<int>((y - row) * 4), 0, 3);
  cell->dots |= kBits[dy][dx];
  cell->color = color;
}

void Canvas::Line(double x0, double y0, double x1, double y1, int color) {
  const int steps = std::max(1, static_cast<int>(std::max(std::abs(x1 - x0) * 2, std::abs(y1 - y0) * 4)));
  for (int i = 0; i <= steps; ++i) {
    const double t = static_cast<double>(i) / steps;
    Dot(x0 + t * (x1 - x0), y0 + t * (y1 - y0), color);
  }
}

std::string Canvas::Row(int row) const {
  std::string line;
  for (int column = 0; column < width_; ++column) {
    const Cell& cell =
        cells_[static_cast<size_t>(row) * static_cast<size_t>(width_) + static_cast<size_t>(column)];
    std::string glyph = cell.glyph;
    if (glyph.empty() && cell.dots != 0) glyph = unicode_ ? Braille(cell.dots) : ".";
    if (glyph.empty()) {
      line += ' ';
    } else if (color_ && cell.color != 0) {
      absl::StrAppend(&line, "\033[", cell.color, "m", glyph, "\033[0m");
    } else {
      line += glyph;
    }
  }
  return std::string(absl::StripTrailingAsciiWhitespace(line));
}

}  // namespace scalelab::client
