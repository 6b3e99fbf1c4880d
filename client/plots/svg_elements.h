// Elements of SVG pictures as text. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace scalelab::client {

// The width of a picture, and the margins of its panels.
inline constexpr double kWidth = 980;
inline constexpr double kLeft = 68;
inline constexpr double kRight = 24;

// Colours that people with any colour vision can distinguish (Okabe and Ito 2008), without yellow.
inline constexpr std::array<absl::string_view, 7> kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                             "#E69F00", "#56B4E9", "#444444"};

// Maximum number of names in the legend of a picture. The legend ends with the number of the other names.
inline constexpr size_t kMostLegendLines = 40;

// What users may change in a picture.
struct PictureStyle {
  std::string title = {};  // empty: the picture's own
  int width = 0;           // pixels; 0: kWidth. Everything in the picture has the same scale.
  bool repeats = true;     // show numbers of repeats
};

struct Box {
  double x, y, width, height;
};

// Formats a coordinate with at most two decimals, without trailing zeros. This keeps pictures small, and is
// precise to a fraction of a pixel.
std::string N(double value);
// Returns text as it must be written between tags and in attributes, without control characters.
std::string Escaped(absl::string_view text);
// Returns the beginning of a document, up to its title. Coordinates go up to kWidth and `height` for any width.
std::string SvgBegin(double height, absl::string_view title, int width);
// Returns a text element. `css` names classes of the picture's style.
std::string Text(double x, double y, absl::string_view css, absl::string_view text);
std::string Line(double x1, double y1, double x2, double y2, absl::string_view attributes);

}  // namespace scalelab::client
