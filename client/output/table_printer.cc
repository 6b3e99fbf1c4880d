#include "client/output/table_printer.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

constexpr int kGap = 2;
constexpr int kNarrowest = 12;  // minimum width of a truncated column

}  // namespace

std::string Colored(const std::string& text, Tone tone, bool color) {
  if (!color || text.empty()) return text;
  switch (tone) {
    case Tone::kGood:
      return absl::StrCat("\033[32m", text, "\033[0m");
    case Tone::kBad:
      return absl::StrCat("\033[31m", text, "\033[0m");
    case Tone::kBusy:
      return absl::StrCat("\033[36m", text, "\033[0m");
    case Tone::kDim:
      return absl::StrCat("\033[2m", text, "\033[0m");
    case Tone::kPlain:
      break;
  }
  return text;
}

absl::Status TablePrinter::Print(const Answer& answer) {
  bool first = true;
  for (const Section& section : answer.sections) {
    if (!section.in_tables) continue;
    if (!first) out_ << '\n';
    first = false;
    PrintSection(section);
  }
  return Flush(out_);
}

void TablePrinter::PrintSection(const Section& section) {
  std::vector<size_t> shown;
  for (size_t i = 0; i < section.columns.size(); ++i) {
    const Column::In in = section.columns[i].in;
    if (in == Column::In::kAll || in == Column::In::kTables || (in == Column::In::kWide && wide_))
      shown.push_back(i);
  }
  std::vector<std::vector<Cell>> lines;
  if (section.header) {
    std::vector<Cell> header;
    for (const size_t i : shown)
      header.emplace_back(absl::AsciiStrToUpper(section.columns[i].title), Tone::kDim);
    lines.push_back(std::move(header));
  }
  section.rows([&](const std::vector<Cell>& row) {
    std::vector<Cell> line;
    for (const size_t i : shown) line.emplace_back(Printable(row.at(i).text), row.at(i).tone);
    lines.push_back(std::move(line));
  });
  if (!section.title.empty()) out_ << Printable(section.title) << '\n';
  if (lines.size() == (section.header ? 1U : 0U) && !section.empty.empty()) {
    out_ << section.empty << '\n';
    return;
  }

  std::vector<int> widths(shown.size(), 0);
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(line[c].text));
  }
  if (terminal_.tty && !wide_) {
    int total =
        std::accumulate(widths.begin(), widths.end(), 0) + kGap * (static_cast<int>(widths.size()) - 1);
    for (size_t c = 0; c < widths.size() && total > terminal_.width; ++c) {
      if (!section.columns[shown[c]].elastic) continue;
      const int narrower = std::max(std::min(kNarrowest, widths[c]), widths[c] - (total - terminal_.width));
      total -= widths[c] - narrower;
      widths[c] = narrower;
    }
  }
  const absl::string_view ellipsis = terminal_.unicode ? "…" : "~";
  for (const auto& line : lines) {
    std::string text;
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string cut = Cut(line[c].text, widths[c], ellipsis);
      const std::string pad(static_cast<size_t>(widths[c] - DisplayWidth(cut)), ' ');
      const std::string shown_text = Colored(cut, line[c].tone, terminal_.color);
      const bool right = section.columns[shown[c]].right;
      const bool last = c + 1 == line.size();
      if (c > 0) text.append(kGap, ' ');
      absl::StrAppend(&text, right ? pad : "", shown_text, right || last ? "" : pad);
    }
    out_ << std::string(absl::StripTrailingAsciiWhitespace(text)) << '\n';
  }
}

}  // namespace scalelab::client
