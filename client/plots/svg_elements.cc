#include "client/plots/svg_elements.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/output/text.h"

namespace scalelab::client {

std::string N(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(Printable(text),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string SvgBegin(double height, absl::string_view title, int width) {
  const double scale = width > 0 ? width / kWidth : 1;
  return absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
      N(kWidth * scale), "\" height=\"", N(height * scale), "\" viewBox=\"0 0 ", N(kWidth), " ", N(height),
      "\" role=\"img\">\n<title>", Escaped(title), "</title>\n");
}

std::string Text(double x, double y, absl::string_view css, absl::string_view text) {
  return absl::StrCat("<text class=\"", css, "\" x=\"", N(x), "\" y=\"", N(y), "\">", Escaped(text),
                      "</text>\n");
}

std::string Line(double x1, double y1, double x2, double y2, absl::string_view attributes) {
  return absl::StrCat("<line x1=\"", N(x1), "\" y1=\"", N(y1), "\" x2=\"", N(x2), "\" y2=\"", N(y2), "\" ",
                      attributes, "/>\n");
}

}  // namespace scalelab::client
