#include "client/figures/figure.h"

#include <array>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/figures/convert_svg.h"
#include "client/figures/latex_table.h"
#include "client/output/file.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {
namespace {

struct NamedFormat {
  FigureFormat format;
  absl::string_view name, suffix;
};
constexpr std::array<NamedFormat, 5> kFormats = {{{FigureFormat::kSvg, "svg", ".svg"},
                                                  {FigureFormat::kPdf, "pdf", ".pdf"},
                                                  {FigureFormat::kPng, "png", ".png"},
                                                  {FigureFormat::kLatex, "latex", ".tex"},
                                                  {FigureFormat::kCsv, "csv", ".csv"}}};

absl::StatusOr<std::string> CsvText(Section section) {
  std::ostringstream out;
  const scalelab::v1::ReadPointsResponse unused;  // CSV has no use for the message
  const auto printer = MakePrinter(OutputFormat::kCsv, out, Terminal());
  Answer answer{unused, {}};
  answer.sections.push_back(std::move(section));
  if (const absl::Status status = printer->Print(answer); !status.ok()) return status;
  return out.str();
}

absl::StatusOr<std::string> FigureBytes(const FigureContent& content, FigureFormat format) {
  switch (format) {
    case FigureFormat::kPdf:
      return ConvertSvg(content.svg(), "pdf");
    case FigureFormat::kPng:
      return ConvertSvg(content.svg(), "png");
    case FigureFormat::kLatex:
      return LatexTable(content.table(), content.comment);
    case FigureFormat::kCsv:
      return CsvText(content.csv_table());
    case FigureFormat::kSvg:
      break;
  }
  return content.svg();
}

}  // namespace

absl::StatusOr<FigureFormat> FigureFormatOf(const FigureTarget& target) {
  const std::string file = absl::AsciiStrToLower(target.file);
  for (const NamedFormat& known : kFormats) {
    if (target.format.empty() ? absl::EndsWith(file, known.suffix) : target.format == known.name)
      return known.format;
  }
  if (!target.format.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", target.format, " is not known; known: svg, pdf, png, latex, csv"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--file ", target.file,
      ": the name does not show the format; use .svg, .pdf, .png, .tex or .csv, or add --format"));
}

absl::Status WriteFigure(const FigureContent& content, const FigureTarget& target, Session& session) {
  const auto format = FigureFormatOf(target);
  if (!format.ok()) return format.status();
  const bool to_out = target.file.empty() || target.file == "-";
  const bool binary = *format == FigureFormat::kPdf || *format == FigureFormat::kPng;
  if (to_out && binary && session.io().out_terminal.tty) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", target.format,
                     " is not for a terminal; name a file, for example --file curve.", target.format));
  }
  const bool table = *format == FigureFormat::kLatex || *format == FigureFormat::kCsv;
  if (table && (!target.style.title.empty() || target.style.width > 0))
    return absl::InvalidArgumentError("--title and --width are for pictures: .svg, .pdf and .png");
  if (*format == FigureFormat::kCsv && !target.style.repeats)
    return absl::InvalidArgumentError("--no-n is for pictures and LaTeX; CSV has all columns");
  const auto bytes = FigureBytes(content, *format);
  if (!bytes.ok()) return bytes.status();
  if (to_out) {
    session.io().out << *bytes;
    return Flush(session.io().out);
  }
  if (const absl::Status status = ReplaceFile(target.file, *bytes); !status.ok()) return status;
  session.Say(absl::StrCat("wrote ", target.file));
  return absl::OkStatus();
}

}  // namespace scalelab::client
