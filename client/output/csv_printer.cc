#include "client/output/csv_printer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace scalelab::client {
namespace {

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

absl::Status CsvPrinter::Print(const Answer& answer) {
  const Section& section = answer.sections.at(answer.main);
  std::vector<size_t> shown;
  for (size_t i = 0; i < section.columns.size(); ++i) {
    const Column::In in = section.columns[i].in;
    if (in == Column::In::kAll || in == Column::In::kCsv) shown.push_back(i);
  }
  const auto line = [this, &shown](const auto& text_of) {
    std::string text;
    for (const size_t i : shown) {
      absl::StrAppend(&text, i == shown.front() ? "" : ",", Quoted(text_of(i)));
    }
    out_ << text << '\n';
  };
  line([&section](size_t i) { return section.columns[i].title; });
  section.rows([&line](const std::vector<Cell>& row) { line([&row](size_t i) { return row.at(i).text; }); });
  return Flush(out_);
}

}  // namespace scalelab::client
