// Converts tables, texts and pictures to HTML. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/output/printer.h"

namespace scalelab::client {

// Returns text as it must be written between tags, without control characters.
std::string Html(absl::string_view text);
// Returns a table with the columns that tables on a terminal show; the text of `empty` if there are no rows.
std::string HtmlTable(const Section& section);
// Returns a complete page. `body` is HTML. The page follows the light or dark mode of the browser, and prints
// in black on white.
std::string HtmlPage(absl::string_view title, absl::string_view body);
// Returns an SVG document without its XML declaration, so that it can be an element of a page.
std::string HtmlPicture(absl::string_view svg);

}  // namespace scalelab::client
