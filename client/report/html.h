// HTML made of the sections that tables show. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/output/printer.h"

namespace scalelab::client {

// Returns text as it must be written between tags, without control characters.
std::string Html(absl::string_view text);
// Returns a table with the columns that tables on a terminal show; the text of `empty` if there are no rows.
std::string HtmlTable(const Section& section);
// Returns a complete page. `body` is HTML. The page has a light and a dark form, and prints in black on white.
std::string HtmlPage(absl::string_view title, absl::string_view body);
// Returns an SVG document as an element of a page, which is the document without its XML declaration.
std::string HtmlPicture(absl::string_view svg);

}  // namespace scalelab::client
