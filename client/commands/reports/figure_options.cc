#include "client/commands/reports/figure_options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace scalelab::client {

void AddFigureOptions(CLI::App& command, FigureTarget& target) {
  command.add_option(
      "--file", target.file,
      "Write to this file in place of printing: .svg, .pdf, .png, .tex or .csv; - is standard output");
  command
      .add_option("--format", target.format,
                  "svg, pdf, png, latex or csv; by default that of the file's name. To standard output "
                  "without --file")
      ->check(CLI::IsMember({"svg", "pdf", "png", "latex", "csv"}));
  command.add_option("--title", target.style.title,
                     "Title of the picture, in place of the name of the study");
  command.add_option("--width", target.style.width, "Width of the picture in pixels; 980 if not given")
      ->check(CLI::Range(100, 10'000));
}

CLI::Validator IsSvgFile() {
  return CLI::Validator(
      [](const std::string& name) {
        return absl::EndsWith(name, ".svg") ? std::string()
                                            : absl::StrCat("'", name,
                                                           "' does not end in .svg; other formats have "
                                                           "--file, and standard output has --format");
      },
      "");
}

void AddPanels(CLI::App& command, std::vector<std::string>& panels, PictureStyle& style) {
  command
      .add_option("--panels", panels,
                  absl::StrCat("What the picture or the table in a file shows: ",
                               absl::StrJoin(kQuantityNames, ", ")))
      ->delimiter(',')
      // For completion and --help. QuantitiesOf refuses other names, and its message lists the known ones.
      ->check(CLI::Validator(absl::StrCat("{", absl::StrJoin(kQuantityNames, ","), "}")));
  command.add_flag_callback(
      "--no-n", [&style] { style.repeats = false; },
      "Leave the numbers of repeats out of the picture or LaTeX table");
}

absl::Status CheckPanels(const std::vector<Quantity>& panels, const FigureTarget& target,
                         const std::string& svg, absl::string_view fixed_table) {
  if (panels.empty() || (!target.wanted() && !svg.empty())) return absl::OkStatus();
  if (!target.wanted()) {
    return absl::InvalidArgumentError(
        "--panels chooses what a figure shows; add --file, for example --file curve.pdf");
  }
  const auto format = FigureFormatOf(target);
  if (!format.ok()) return format.status();
  const bool table = *format == FigureFormat::kLatex || *format == FigureFormat::kCsv;
  if (!table || fixed_table.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--panels is for pictures here (.svg, .pdf and .png), because ", fixed_table, "; leave it out"));
}

absl::Status CheckStyle(const FigureTarget& target, const std::string& svg) {
  if (target.wanted() && !svg.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--svg ", svg,
                                                   " has no effect with --file or --format, which write one "
                                                   "figure in place of printing; leave out one of them"));
  }
  if (!target.styled() || target.wanted() || !svg.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--title, --width and --no-n choose how a figure looks; add --file, for example --file curve.pdf");
}

}  // namespace scalelab::client
