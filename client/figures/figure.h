// Writes figures in several file formats.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/output/printer.h"
#include "client/plots/svg_elements.h"
#include "client/session/session.h"

namespace scalelab::client {

enum class FigureFormat { kSvg, kPdf, kPng, kLatex, kCsv };

// The format, the file and the style of a figure, from the options of a command.
struct FigureTarget {
  std::string format;  // "svg", "pdf", "png", "latex" or "csv"; empty: by the suffix of `file`
  std::string file;    // "-" or empty: standard output
  PictureStyle style;
  bool wanted() const { return !format.empty() || !file.empty(); }
  bool styled() const { return !style.title.empty() || style.width > 0 || !style.repeats; }
};

// The content of a figure. WriteFigure calls only the function for the chosen format.
struct FigureContent {
  std::function<std::string()> svg;
  std::function<Section()> table;      // for LaTeX
  std::function<Section()> csv_table;  // for CSV
  std::string comment;                 // a comment above a LaTeX table
};

// Returns the format of the target. INVALID_ARGUMENT if it is not known.
absl::StatusOr<FigureFormat> FigureFormatOf(const FigureTarget& target);

// Writes the figure. An existing file is replaced when the new one is complete. INVALID_ARGUMENT if a PDF or PNG would be
// written to a terminal, or if the format has no part of the style, else errors of ConvertSvg and ReplaceFile.
absl::Status WriteFigure(const FigureContent& content, const FigureTarget& target, Session& session);

}  // namespace scalelab::client
