#include "client/plots/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"
#include "client/plots/factor_bars.h"
#include "client/plots/svg_elements.h"

namespace scalelab::client {
namespace {

constexpr double kTop = 92;
constexpr double kPanelHeight = 320;
constexpr double kBetween = 84;
constexpr double kInset = 22;  // distance between the frame and the first point
constexpr double kDodge = 5;   // distance between points of two series with equal ranks
constexpr double kLegendLine = 21;
constexpr double kNoteLine = 16;
constexpr size_t kNoteColumns = 150, kMostNoteLines = 12;

// Series also differ in shape, for prints without colour.
std::string Mark(size_t index, double x, double y, absl::string_view tooltip) {
  const absl::string_view color = kColors[index % kColors.size()];
  const std::string head = absl::StrCat("fill=\"", color, "\" stroke=\"#fff\" stroke-width=\"1\"");
  const std::string tail = tooltip.empty() ? "/>\n"
                                           : absl::StrCat("><title>", Escaped(tooltip), "</title></",
                                                          index % 4 == 0 ? "circle" : "path", ">\n");
  switch (index % 4) {
    case 0:
      return absl::StrCat("<circle cx=\"", N(x), "\" cy=\"", N(y), "\" r=\"4.5\" ", head, tail);
    case 1:
      return absl::StrCat("<path d=\"M", N(x - 4.2), " ", N(y - 4.2), "h8.4v8.4h-8.4z\" ", head, tail);
    case 2:
      return absl::StrCat("<path d=\"M", N(x), " ", N(y - 5.6), "l5.4 9.4h-10.8z\" ", head, tail);
    default:
      return absl::StrCat("<path d=\"M", N(x), " ", N(y - 5.8), "l5.8 5.8l-5.8 5.8l-5.8-5.8z\" ", head, tail);
  }
}

std::string TickText(double value, Quantity quantity) {
  return N(quantity == Quantity::kEfficiency ? value * 100 : value);
}

std::string Tooltip(const PlotSeries& series, const PlotPoint& p, Quantity quantity) {
  const auto number = [quantity](double v) {
    return quantity == Quantity::kEfficiency ? Percent(v) + "%" : Short(v);
  };
  std::string text =
      absl::StrCat(series.label, ", ", N(p.ranks), p.ranks == 1 ? " rank" : " ranks", ": ", number(p.value));
  if (p.low) absl::StrAppend(&text, " [", number(*p.low), ", ", number(*p.high), "]");
  return absl::StrCat(text, ", n=", p.n);
}

std::string Panel(const Box& box, const std::vector<PlotSeries>& series, Quantity quantity) {
  const Scale xs = RanksScale(series);
  const Scale ys = ValueScale(series, quantity);
  const auto x_of = [&](double ranks) { return box.x + kInset + xs(ranks) * (box.width - 2 * kInset); };
  const auto y_of = [&](double value) { return box.y + (1 - std::clamp(ys(value), 0.0, 1.0)) * box.height; };
  const double bottom = box.y + box.height;
  std::string out;

  for (const double tick : ys.ticks) {
    out += Line(box.x, y_of(tick), box.x + box.width, y_of(tick), "class=\"grid\"");
    out += Text(box.x - 8, y_of(tick) + 4, "tick end", TickText(tick, quantity));
  }
  double last_label = -1e9;
  for (const double tick : xs.ticks) {
    out += Line(x_of(tick), bottom, x_of(tick), bottom + 5, "class=\"axis\"");
    if (x_of(tick) - last_label < 22) continue;
    last_label = x_of(tick);
    out += Text(last_label, bottom + 19, "tick middle", N(tick));
  }
  out += Line(box.x, bottom, box.x + box.width, bottom, "class=\"axis\"");
  out += Line(box.x, box.y, box.x, bottom, "class=\"axis\"");
  out += Text(box.x + box.width / 2, bottom + 40, "title middle", "ranks");
  const double middle = box.y + box.height / 2;
  absl::StrAppend(&out, "<text class=\"title middle\" transform=\"translate(", N(box.x - 46), " ", N(middle),
                  ") rotate(-90)\">", Escaped(AxisTitle(quantity)), "</text>\n");

  if (quantity == Quantity::kSpeedup) {
    for (const double baseline : Baselines(series)) {
      out += Line(x_of(xs.min), y_of(xs.min / baseline), x_of(xs.max), y_of(xs.max / baseline),
                  "class=\"ideal\"");
    }
  } else if (quantity == Quantity::kEfficiency) {
    out += Line(box.x, y_of(1), box.x + box.width, y_of(1), "class=\"ideal\"");
  }

  std::string marks;  // drawn above all lines
  for (size_t i = 0; i < series.size(); ++i) {
    const absl::string_view color = kColors[i % kColors.size()];
    const double dodge = (static_cast<double>(i) - (static_cast<double>(series.size()) - 1) / 2) * kDodge;
    std::string points;
    for (const PlotPoint& p : series[i].points) {
      const double x = x_of(p.ranks) + dodge;
      absl::StrAppend(&points, points.empty() ? "" : " ", N(x), ",", N(y_of(p.value)));
      if (p.low) {
        const std::string stroke = absl::StrCat("stroke=\"", color, "\" stroke-width=\"1.4\"");
        out += Line(x, y_of(*p.low), x, y_of(*p.high), stroke);
        out += Line(x - 3.5, y_of(*p.low), x + 3.5, y_of(*p.low), stroke);
        out += Line(x - 3.5, y_of(*p.high), x + 3.5, y_of(*p.high), stroke);
      }
      marks += Mark(i, x, y_of(p.value), Tooltip(series[i], p, quantity));
    }
    if (series[i].points.size() > 1) {
      absl::StrAppend(&out, "<polyline points=\"", points, "\" fill=\"none\" stroke=\"", color,
                      "\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>\n");
    }
    for (const LostPoint& lost : series[i].lost) {
      absl::StrAppend(&marks, "<path d=\"M", N(x_of(lost.ranks) + dodge * 2 - 4), " ", N(bottom - 14),
                      "l8 8m0-8l-8 8\" stroke=\"", color, "\" stroke-width=\"2\" fill=\"none\"><title>",
                      Escaped(absl::StrCat(series[i].label, ", ", N(lost.ranks), " ranks: ", lost.why)),
                      "</title></path>\n");
    }
  }
  return absl::StrCat("<g>\n", out, marks, "</g>\n");
}

std::string Legend(double top, const std::vector<PlotSeries>& series, bool ideal) {
  std::string out;
  double y = top;
  for (size_t i = 0; i < series.size(); ++i, y += kLegendLine) {
    out += Line(kLeft, y, kLeft + 26, y,
                absl::StrCat("stroke=\"", kColors[i % kColors.size()], "\" stroke-width=\"1.8\""));
    out += Mark(i, kLeft + 13, y, "");
    absl::StrAppend(&out, "<text class=\"legend\" x=\"", N(kLeft + 36), "\" y=\"", N(y + 4), "\">",
                    Escaped(series[i].label), "<tspan class=\"dim\" dx=\"10\">base case ",
                    Escaped(series[i].baseline), "</tspan></text>\n");
  }
  const double x = kWidth / 2 + 110;
  y = top;
  if (ideal) {
    out += Line(x, y, x + 26, y, "class=\"ideal\"");
    out += Text(x + 36, y + 4, "legend", "ideal");
    y += kLegendLine;
  }
  out += absl::StrCat("<path d=\"M", N(x + 13), " ", N(y - 7),
                      "v14m-3.5-14h7m-7 14h7\" class=\"axis\" fill=\"none\"/>\n");
  out += Text(x + 36, y + 4, "legend", "95% interval");
  const bool lost = std::any_of(series.begin(), series.end(), [](const auto& s) { return !s.lost.empty(); });
  if (lost) {
    y += kLegendLine;
    out += absl::StrCat("<path d=\"M", N(x + 9), " ", N(y - 4),
                        "l8 8m0-8l-8 8\" class=\"axis\" stroke-width=\"2\"/>\n");
    out += Text(x + 36, y + 4, "legend", "no result (failed, out of memory or cancelled)");
  }
  return out;
}

// The notes on the curve, in lines that fit the picture.
std::vector<std::string> NoteLines(const scalelab::v1::GetCurveResponse& curve) {
  std::vector<std::string> lines;
  for (const std::string& note : CurveNotes(curve)) {
    std::string line = "note:";
    for (const absl::string_view word : absl::StrSplit(note, ' ')) {
      if (line.size() + word.size() > kNoteColumns) lines.push_back(std::exchange(line, ""));
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
    lines.push_back(std::move(line));
  }
  if (lines.size() <= kMostNoteLines) return lines;
  lines.resize(kMostNoteLines);
  lines.back() = "more notes are below the table of scalelab curve";
  return lines;
}

}  // namespace

std::string SvgPlot(const scalelab::v1::GetCurveResponse& curve) {
  const Quantity quantity = MainQuantity(curve);
  const std::vector<PlotSeries> series = SeriesOf(curve, quantity);
  const bool two = quantity == Quantity::kSpeedup;
  const double inner = kWidth - kLeft - kRight;
  const double panel = two ? (inner - kBetween) / 2 : inner;
  const double legend_top = kTop + kPanelHeight + 72;
  const std::vector<std::string> notes = NoteLines(curve);
  const double notes_top =
      legend_top + kLegendLine * static_cast<double>(std::max<size_t>(3, series.size())) + 4;
  const double bars_top = notes_top + kNoteLine * static_cast<double>(notes.size());
  const double height = bars_top + FactorBarsHeight(curve);

  std::string out = absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
      N(kWidth), "\" height=\"", N(height), "\" viewBox=\"0 0 ", N(kWidth), " ", N(height),
      "\" role=\"img\">\n<title>", Escaped(curve.display_name()), "</title>\n",
      "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
      ".head{font-size:19px;font-weight:600}.sub{font-size:13px;fill:#555}.tick{font-size:12px;fill:#555}"
      ".title{font-size:13px}.note{font-size:11px;fill:#555}.legend{font-size:13px}.dim{fill:#777}.middle{"
      "text-anchor:middle}.end{text-"
      "anchor:end}"
      ".grid{stroke:#e6e6e6;stroke-width:1}.axis{stroke:#666;stroke-width:1}"
      ".ideal{stroke:#888;stroke-width:1.4;stroke-dasharray:5 4}</style>\n",
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  out += Text(kLeft, 38, "head", curve.display_name());
  out += Text(kLeft, 62, "sub", Subtitle(curve));
  out += Panel({kLeft, kTop, panel, kPanelHeight}, series, quantity);
  if (two) {
    out += Panel({kLeft + panel + kBetween, kTop, panel, kPanelHeight},
                 SeriesOf(curve, Quantity::kEfficiency), Quantity::kEfficiency);
  }
  out += Legend(legend_top, series, two);
  for (size_t i = 0; i < notes.size(); ++i)
    out += Text(kLeft, notes_top + kNoteLine * static_cast<double>(i), "note", notes[i]);
  return absl::StrCat(out, FactorBars(bars_top, curve), "</svg>\n");
}

}  // namespace scalelab::client
