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

void AddPanels(CLI::App& command, std::vector<std::string>& panels) {
  command
      .add_option(
          "--panels", panels,
          absl::StrCat("What the picture or LaTeX table shows: ", absl::StrJoin(kQuantityNames, ", ")))
      ->delimiter(',');
}

}  // namespace scalelab::client
