#include "client/plots/svg_plot.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/output/text.h"
#include "client/plots/factor_bars.h"
#include "client/plots/svg_elements.h"
#include "client/plots/svg_panel.h"

namespace scalelab::client {
namespace {

constexpr double kTop = 92;
constexpr double kPanelHeight = 320;
constexpr double kBetween = 84;     // horizontal distance between two panels
constexpr double kPanelBelow = 72;  // the axis of a panel, and the space below it
constexpr double kLegendLine = 21;
constexpr double kNoteLine = 16;
constexpr size_t kNoteColumns = 150, kMostNoteLines = 12;
constexpr int kTitleColumns = 68, kSubtitleColumns = 130, kSeriesColumns = 70;

// Returns the legend of lines and marks, with its entries side by side.
std::string MarkLegend(double y, const std::vector<PlotSeries>& series, bool ideal) {
  std::string out;
  double x = kLeft;
  if (ideal) {
    out += Line(x, y, x + 26, y, "class=\"ideal\"") + Text(x + 36, y + 4, "legend", "ideal");
    x += 110;
  }
  out += absl::StrCat("<path d=\"M", N(x + 13), " ", N(y - 7),
                      "v14m-3.5-14h7m-7 14h7\" class=\"axis\" fill=\"none\"/>\n");
  out += Text(x + 36, y + 4, "legend", "95% interval");
  x += 150;
  const bool lost = std::any_of(series.begin(), series.end(), [](const auto& s) { return !s.lost.empty(); });
  if (!lost) return out;
  absl::StrAppend(&out, "<path d=\"M", N(x + 9), " ", N(y - 4),
                  "l8 8m0-8l-8 8\" class=\"axis\" stroke-width=\"2\"/>\n",
                  Text(x + 36, y + 4, "legend", "no result (failed, out of memory or cancelled)"));
  return out;
}

size_t LegendLines(const std::vector<PlotSeries>& series) {
  return std::min(series.size(), kMostLegendLines + 1) + 1;
}

std::string Legend(double top, const std::vector<PlotSeries>& series, bool ideal) {
  std::string out = MarkLegend(top, series, ideal);
  double y = top + kLegendLine;
  for (size_t i = 0; i < series.size() && i < kMostLegendLines; ++i, y += kLegendLine) {
    out += Line(kLeft, y, kLeft + 26, y,
                absl::StrCat("stroke=\"", kColors[i % kColors.size()], "\" stroke-width=\"1.8\""));
    out += SeriesMark(i, kLeft + 13, y, "");
    absl::StrAppend(&out, "<text class=\"legend\" x=\"", N(kLeft + 36), "\" y=\"", N(y + 4), "\">",
                    Escaped(Cut(series[i].label, kSeriesColumns, "…")),
                    "<tspan class=\"dim\" dx=\"10\">base case ", Escaped(series[i].baseline),
                    "</tspan></text>\n");
  }
  if (series.size() > kMostLegendLines) {
    out += Text(kLeft + 36, y + 4, "legend",
                absl::StrCat("and ", series.size() - kMostLegendLines, " more series"));
  }
  return out;
}

// Appends the text, wrapped to the width of the picture.
void AddWrapped(absl::string_view text, std::vector<std::string>& lines) {
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && line.size() + word.size() > kNoteColumns) lines.push_back(std::exchange(line, ""));
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  lines.push_back(std::move(line));
}

// Returns the numbers of values, if `repeats`, and the notes on the curve.
std::vector<std::string> NoteLines(const scalelab::v1::GetCurveResponse& curve, bool repeats) {
  std::vector<std::string> lines;
  if (const std::string note = repeats ? RepeatsNote(curve) : ""; !note.empty()) AddWrapped(note, lines);
  for (const std::string& note : CurveNotes(curve)) AddWrapped(absl::StrCat("note: ", note), lines);
  if (lines.size() <= kMostNoteLines) return lines;
  lines.resize(kMostNoteLines);
  lines.back() = "more notes are below the table of scalelab curve";
  return lines;
}

}  // namespace

std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve, const std::vector<Quantity>& panels,
                    const PictureStyle& style) {
  const std::string& title = style.title.empty() ? curve.display_name() : style.title;
  const std::vector<PlotSeries> series = SeriesOf(curve, panels.front());
  const bool two = panels.size() > 1;
  const double inner = kWidth - kLeft - kRight;
  const double width = two ? (inner - kBetween) / 2 : inner;
  const auto rows = static_cast<double>(two ? (panels.size() + 1) / 2 : 1);
  const double legend_top = kTop + rows * (kPanelHeight + kPanelBelow);
  const std::vector<std::string> notes = NoteLines(curve, style.repeats);
  const double notes_top = legend_top + kLegendLine * static_cast<double>(LegendLines(series)) + 4;
  const double bars_top = notes_top + kNoteLine * static_cast<double>(notes.size());
  const double height = bars_top + FactorBarsHeight(curve);

  std::string out = absl::StrCat(
      SvgBegin(height, title, style.width),
      "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
      ".head{font-size:19px;font-weight:600}.sub{font-size:13px;fill:#555}.tick{font-size:12px;fill:#555}"
      ".title{font-size:13px}.note{font-size:11px;fill:#555}.legend{font-size:13px}.dim{fill:#777}.middle{"
      "text-anchor:middle}.end{text-"
      "anchor:end}"
      ".grid{stroke:#e6e6e6;stroke-width:1}.axis{stroke:#666;stroke-width:1}"
      ".ideal{stroke:#888;stroke-width:1.4;stroke-dasharray:5 4}</style>\n",
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  out += Text(kLeft, 38, "head", Cut(title, kTitleColumns, "…"));
  out += Text(kLeft, 62, "sub", Cut(Subtitle(curve), kSubtitleColumns, "…"));
  bool ideal = false;
  for (size_t i = 0; i < panels.size(); ++i) {
    const size_t row = i / 2, column = i % 2;
    const double x = kLeft + static_cast<double>(column) * (width + kBetween);
    const double y = kTop + static_cast<double>(row) * (kPanelHeight + kPanelBelow);
    out += CurvePanel({x, y, width, kPanelHeight}, SeriesOf(curve, panels[i]), panels[i], style.repeats);
    ideal = ideal || panels[i] == Quantity::kSpeedup || panels[i] == Quantity::kEfficiency;
  }
  out += Legend(legend_top, series, ideal);
  for (size_t i = 0; i < notes.size(); ++i)
    out += Text(kLeft, notes_top + kNoteLine * static_cast<double>(i), "note", notes[i]);
  return absl::StrCat(out, FactorBars(bars_top, curve, style.repeats), "</svg>\n");
}

std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve) {
  return SvgPlot(curve, UsualPanels(curve));
}

}  // namespace scalelab::client
