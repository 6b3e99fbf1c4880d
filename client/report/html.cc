#include "client/report/html.h"

#include "absl/strings/str_cat.h"
#include "client/plots/svg_elements.h"

namespace scalelab::client {
namespace {

constexpr char kStyle[] =
    ":root{color-scheme:light "
    "dark;--text:#1b1b1b;--dim:#5a5a5a;--line:#d8d8d8;--back:#fff;--good:#00663f;--bad:#a33100}"
    "@media(prefers-color-scheme:dark){:root{--text:#e8e8e8;--dim:#a8a8a8;--line:#444;--back:#16181b;--good:#"
    "5fd0a0;--bad:#ff9466}}"
    "@media print{:root{--text:#000;--dim:#444;--line:#bbb;--back:#fff;--good:#000;--bad:#000}}"
    "body{font:16px/1.5 system-ui,-apple-system,'Segoe "
    "UI',Helvetica,Arial,sans-serif;color:var(--text);background:var(--back);"
    "max-width:1080px;margin:0 auto;padding:24px 16px 64px}"
    "h1{font-size:28px;margin:0 0 4px}h2{font-size:20px;margin:40px 0 8px;border-bottom:1px solid "
    "var(--line);padding-bottom:4px}"
    "p{margin:8px 0}.dim{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--bad)}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid "
    "var(--line);vertical-align:top;white-space:nowrap}"
    "td.text{white-space:normal;min-width:8em}.facts "
    "td:last-child{white-space:normal;overflow-wrap:anywhere}"
    "th{color:var(--dim);font-weight:600;white-space:normal}.right{text-align:right}"
    "pre{border:1px solid var(--line);padding:12px;overflow-x:auto;font-size:13px}"
    "svg{max-width:100%;height:auto;background:#fff;border:1px solid var(--line);margin:8px 0}";

bool Shown(const Column& column) { return column.in == Column::In::kAll || column.in == Column::In::kTables; }

const char* ToneClass(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "good";
    case Tone::kBad:
      return "bad";
    case Tone::kDim:
      return "dim";
    default:
      return "";
  }
}

std::string Attributes(const Column& column, Tone tone) {
  std::string classes = column.right ? "right" : column.elastic ? "text" : "";
  if (const absl::string_view of_tone = ToneClass(tone); !of_tone.empty())
    absl::StrAppend(&classes, classes.empty() ? "" : " ", of_tone);
  return classes.empty() ? "" : absl::StrCat(" class=\"", classes, "\"");
}

}  // namespace

std::string Html(absl::string_view text) { return Escaped(text); }

std::string HtmlTable(const Section& section) {
  std::string rows;
  section.rows([&](const std::vector<Cell>& row) {
    rows += "<tr>";
    for (size_t i = 0; i < section.columns.size() && i < row.size(); ++i) {
      const Column& column = section.columns[i];
      if (!Shown(column)) continue;
      absl::StrAppend(&rows, "<td", Attributes(column, row[i].tone), ">", Html(row[i].text), "</td>");
    }
    rows += "</tr>\n";
  });
  if (rows.empty())
    return section.empty.empty() ? "" : absl::StrCat("<p class=\"dim\">", Html(section.empty), "</p>\n");
  std::string head;
  if (section.header) {
    for (const Column& column : section.columns) {
      if (Shown(column))
        absl::StrAppend(&head, "<th scope=\"col\"", column.right ? " class=\"right\"" : "", ">",
                        Html(column.title), "</th>");
    }
    head = absl::StrCat("<thead><tr>", head, "</tr></thead>\n");
  }
  return absl::StrCat("<div class=\"wide\" tabindex=\"0\"><table", section.header ? "" : " class=\"facts\"",
                      ">\n", head, "<tbody>\n", rows, "</tbody></table></div>\n");
}

std::string HtmlPage(absl::string_view title, absl::string_view body) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<title>",
      Html(title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<main>\n", body,
      "</main>\n</body>\n</html>\n");
}

std::string HtmlPicture(absl::string_view svg) {
  if (const size_t begin = svg.find("<svg"); begin != absl::string_view::npos) svg.remove_prefix(begin);
  return std::string(svg);
}

}  // namespace scalelab::client
