#include "client/output/table_printer.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

constexpr int kGap = 2;
constexpr int kLeastRoom = 30;  // columns that a wrapped sentence needs
// Minimum width of a truncated column; the second is used if the table is still too wide.
constexpr int kNarrow = 12, kNarrowest = 6;
constexpr size_t kMostSentences = 5;  // complete texts of truncated cells

// Breaks a sentence between words. A word that is longer than a line, such as a path, stays whole.
std::vector<std::string> WrapWords(const std::string& text, int width) {
  std::vector<std::string> lines = {""};
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    std::string& line = lines.back();
    if (line.empty()) {
      line = std::string(word);
    } else if (DisplayWidth(line) + 1 + DisplayWidth(word) <= width) {
      absl::StrAppend(&line, " ", word);
    } else {
      lines.emplace_back(word);
    }
  }
  return lines;
}

// A table as it is printed.
struct Grid {
  std::vector<const Column*> columns;
  std::vector<std::vector<Cell>> lines;
  std::vector<int> widths;
  std::vector<std::string> dropped;  // titles

  void Measure() {
    widths.assign(columns.size(), 0);
    for (const auto& line : lines) {
      for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(line[c].text));
    }
  }
  int Width() const {
    return std::accumulate(widths.begin(), widths.end(), 0) + kGap * (static_cast<int>(widths.size()) - 1);
  }
  // Returns the width of the table if no elastic column is wider than `narrow`.
  int Least(int narrow) const {
    int total = kGap * (static_cast<int>(widths.size()) - 1);
    for (size_t c = 0; c < widths.size(); ++c)
      total += columns[c]->elastic ? std::min(narrow, widths[c]) : widths[c];
    return total;
  }
  void Drop(size_t c) {
    const auto at = static_cast<std::ptrdiff_t>(c);
    dropped.push_back(absl::AsciiStrToUpper(columns[c]->title));
    columns.erase(columns.begin() + at);
    widths.erase(widths.begin() + at);
    for (auto& line : lines) line.erase(line.begin() + at);
  }
  void FitInto(int width) {
    while (Least(kNarrow) > width) {
      const auto widest = std::max_element(columns.begin(), columns.end(),
                                           [](auto* a, auto* b) { return a->drop < b->drop; });
      if (widest == columns.end() || (*widest)->drop == 0) break;
      Drop(static_cast<size_t>(widest - columns.begin()));
    }
    int total = Width();
    for (; total > width; --total) {
      size_t widest = widths.size();  // index of the widest elastic column
      for (size_t c = 0; c < widths.size(); ++c) {
        if (columns[c]->elastic && (widest == widths.size() || widths[c] > widths[widest])) widest = c;
      }
      if (widest == widths.size() || widths[widest] <= kNarrowest) return;
      --widths[widest];
    }
  }
};

// Returns the notes below a table: the number of rows that are left out, and complete sentences that are truncated in
// the table, for example "run 401, message: rank 3 failed".
std::vector<std::string> NotesOf(const Section& section, const Grid& grid, size_t left_out) {
  std::vector<std::string> notes;
  if (left_out > 0)
    notes.push_back(absl::StrCat("and ", left_out, " more rows: ", section.more_rows, "-o wide shows all"));
  size_t sentences = 0;
  for (size_t row = section.header ? 1 : 0; row < grid.lines.size(); ++row) {
    const std::vector<Cell>& line = grid.lines[row];
    for (size_t c = 0; c < line.size(); ++c) {
      if (!grid.columns[c]->sentence || DisplayWidth(line[c].text) <= grid.widths[c]) continue;
      if (++sentences > kMostSentences) continue;
      notes.push_back(absl::StrCat(grid.columns[0]->title, " ", line[0].text, ", ", grid.columns[c]->title,
                                   ": ", line[c].text));
    }
  }
  if (sentences > kMostSentences)
    notes.push_back(absl::StrCat("and ", sentences - kMostSentences, " more texts: -o wide shows all"));
  return notes;
}

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
  const bool on_terminal = terminal_.tty && !wide_;
  std::vector<std::vector<Cell>> lines;
  if (section.header) {
    std::vector<Cell> header;
    for (const size_t i : shown)
      header.emplace_back(absl::AsciiStrToUpper(section.columns[i].title), Tone::kDim);
    lines.push_back(std::move(header));
  }
  const size_t most_lines =
      on_terminal && section.most_rows > 0 ? lines.size() + section.most_rows : SIZE_MAX;
  size_t left_out = 0;  // rows
  section.rows([&](const std::vector<Cell>& row) {
    if (lines.size() == most_lines) {
      ++left_out;
      return;
    }
    std::vector<Cell> line;
    for (const size_t i : shown) line.emplace_back(Printable(row.at(i).text), row.at(i).tone);
    lines.push_back(std::move(line));
  });
  if (!section.title.empty()) out_ << Printable(section.title) << '\n';
  if (lines.size() == (section.header ? 1U : 0U) && !section.empty.empty()) {
    out_ << section.empty << '\n';
    return;
  }

  Grid grid;
  for (const size_t i : shown) grid.columns.push_back(&section.columns[i]);
  grid.lines = std::move(lines);
  grid.Measure();
  const bool fits = on_terminal && !grid.widths.empty();
  if (fits) grid.FitInto(terminal_.width);
  // Further lines of a wrapped column are indented to its start. The last column of a section without a header
  // is always wrapped.
  const int before_sentence = grid.Width() - (grid.widths.empty() ? 0 : grid.widths.back());
  const int room = terminal_.width - before_sentence;
  const bool wraps = fits && (!section.header || grid.columns.back()->wrapped) &&
                     grid.Width() > terminal_.width && room >= kLeastRoom;
  const absl::string_view ellipsis = terminal_.unicode ? "…" : "~";
  for (auto& line : grid.lines) {
    std::string text;
    std::vector<std::string> sentence;
    if (wraps) {
      sentence = WrapWords(line.back().text, room);
      line.back().text = sentence.front();
    }
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string cut = Cut(line[c].text, grid.widths[c], ellipsis);
      const std::string pad(static_cast<size_t>(grid.widths[c] - DisplayWidth(cut)), ' ');
      const std::string shown_text = Colored(cut, line[c].tone, terminal_.color);
      const bool right = grid.columns[c]->right;
      const bool last = c + 1 == line.size();
      if (c > 0) text.append(kGap, ' ');
      absl::StrAppend(&text, right ? pad : "", shown_text, right || last ? "" : pad);
    }
    out_ << std::string(absl::StripTrailingAsciiWhitespace(text)) << '\n';
    for (size_t i = 1; i < sentence.size(); ++i)
      out_ << std::string(static_cast<size_t>(before_sentence), ' ')
           << Colored(sentence[i], line.back().tone, terminal_.color) << '\n';
  }
  if (!grid.dropped.empty()) {
    const std::string words = absl::StrCat("left out, see -o wide: ", absl::StrJoin(grid.dropped, ", "));
    for (const std::string& line : WrapWords(words, terminal_.width))
      out_ << Colored(line, Tone::kDim, terminal_.color) << '\n';
  }
  for (const std::string& note : NotesOf(section, grid, left_out))
    out_ << absl::StrJoin(WrapWords(note, terminal_.width - kGap), "\n  ") << '\n';
}

}  // namespace scalelab::client
