#include "client/plots/terminal_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/text.h"
#include "client/plots/canvas.h"
#include "client/plots/curve_view.h"

namespace scalelab::client {
namespace {

constexpr int kHeight = 18;
constexpr int kLabelColumns = 8;  // for example "   1.25 ", left of the axis
constexpr int kMargin = 2;        // columns and rows between the axis and the first point
constexpr std::array<absl::string_view, 6> kMarks = {"●", "▲", "■", "◆", "▼", "★"};
constexpr std::array<absl::string_view, 6> kAsciiMarks = {"o", "x", "*", "#", "@", "%"};
constexpr std::array<int, 6> kTerminalColors = {34, 33, 32, 35, 36, 31};

std::string TickText(double value) {
  std::string text = value >= 1000 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.2f", value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

}  // namespace

std::string TerminalPlot(const scalelab::v1::GetCurveResponse& curve, const Terminal& terminal) {
  const Quantity quantity = MainQuantity(curve);
  const std::vector<PlotSeries> series = SeriesOf(curve, quantity);
  if (std::all_of(series.begin(), series.end(), [](const auto& s) { return s.points.empty(); })) return "";
  const Scale xs = RanksScale(series);
  const Scale ys = ValueScale(series, quantity);
  const bool unicode = terminal.unicode;
  const int width = std::clamp(terminal.width, 40, 100) - kLabelColumns - 1;

  Canvas canvas(width, kHeight, unicode, terminal.color);
  // The centres of the first and last characters represent the ends of the scales.
  const auto x_of = [&](double ranks) { return kMargin + 0.5 + xs(ranks) * (width - 1 - 2 * kMargin); };
  const auto y_of = [&](double value) { return 0.5 + (1 - std::clamp(ys(value), 0.0, 1.0)) * (kHeight - 1); };
  const auto column_of = [&](double ranks) { return static_cast<int>(x_of(ranks)); };
  const auto row_of = [&](double value) { return static_cast<int>(y_of(value)); };

  for (size_t i = 0; i < series.size(); ++i) {
    const int color = kTerminalColors[i % kTerminalColors.size()];
    const auto mark = unicode ? kMarks[i % kMarks.size()] : kAsciiMarks[i % kAsciiMarks.size()];
    for (const LostPoint& lost : series[i].lost) {
      canvas.Put(column_of(lost.ranks) + static_cast<int>(i), kHeight - 1, unicode ? "✕" : "!", color);
    }
    for (const PlotPoint& p : series[i].points) canvas.Put(column_of(p.ranks), row_of(p.value), mark, color);
  }
  for (size_t i = 0; i < series.size(); ++i) {
    const int color = kTerminalColors[i % kTerminalColors.size()];
    for (const PlotPoint& p : series[i].points) {
      if (!p.low) continue;
      for (int row = row_of(*p.high); row <= row_of(*p.low); ++row) {
        canvas.PutBelow(column_of(p.ranks), row, unicode ? "│" : "|", color);
      }
    }
    for (size_t k = 1; k < series[i].points.size(); ++k) {
      const PlotPoint& a = series[i].points[k - 1];
      const PlotPoint& b = series[i].points[k];
      canvas.Line(x_of(a.ranks), y_of(a.value), x_of(b.ranks), y_of(b.value), color);
    }
  }
  if (quantity == Quantity::kSpeedup) {
    for (const double baseline : Baselines(series)) {
      for (double column = kMargin; column <= width - kMargin; column += 2) {
        const double along = std::clamp((column - kMargin) / (width - 1 - 2 * kMargin), 0.0, 1.0);
        const double ranks = xs.min * std::pow(xs.max / xs.min, along);
        canvas.PutBelow(static_cast<int>(column), row_of(ranks / baseline), unicode ? "·" : "'", 2);
      }
    }
  }

  std::string out = absl::StrCat(std::string(kLabelColumns, ' '), AxisTitle(quantity), "\n");
  std::vector<std::string> labels(kHeight);
  for (const double tick : ys.ticks) labels[static_cast<size_t>(row_of(tick))] = TickText(tick);
  for (int row = 0; row < kHeight; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    absl::StrAppend(&out, absl::StrFormat("%*s ", kLabelColumns - 1, label),
                    unicode ? (label.empty() ? "│" : "┤") : (label.empty() ? "|" : "+"), canvas.Row(row),
                    "\n");
  }
  const size_t edge = static_cast<size_t>(kLabelColumns) + 1 + static_cast<size_t>(width);
  std::string axis, numbers(edge, ' ');
  for (int column = 0; column < width; ++column) {
    const bool tick =
        std::any_of(xs.ticks.begin(), xs.ticks.end(), [&](double t) { return column_of(t) == column; });
    axis += unicode ? (tick ? "┴" : "─") : (tick ? "+" : "-");
  }
  size_t free = 0;
  for (const double tick : xs.ticks) {
    const std::string text = TickText(tick);
    const size_t at = std::min(
        static_cast<size_t>(kLabelColumns + 1 + column_of(tick)) - (text.size() - 1) / 2, edge - text.size());
    if (at < free) continue;
    numbers.replace(at, text.size(), text);
    free = at + text.size() + 1;
  }
  absl::StrAppend(&out, std::string(kLabelColumns, ' '), unicode ? "└" : "+", axis, "\n",
                  absl::StripTrailingAsciiWhitespace(numbers), "\n");
  absl::StrAppend(&out, std::string(static_cast<size_t>(kLabelColumns + width / 2 - 2), ' '), "ranks\n");
  bool any_lost = false;
  // Output that is not a terminal is never truncated.
  const int legend_columns = terminal.tty ? terminal.width - 4 : std::numeric_limits<int>::max();
  for (size_t i = 0; i < series.size(); ++i) {
    any_lost = any_lost || !series[i].lost.empty();
    std::string mark(unicode ? kMarks[i % kMarks.size()] : kAsciiMarks[i % kAsciiMarks.size()]);
    if (terminal.color)
      mark = absl::StrCat("\033[", kTerminalColors[i % kTerminalColors.size()], "m", mark, "\033[0m");
    const std::string entry = absl::StrCat(Printable(series[i].label), "  (", series[i].baseline, ")");
    absl::StrAppend(&out, "  ", mark, " ", Cut(entry, legend_columns, unicode ? "…" : "~"), "\n");
  }
  if (quantity == Quantity::kSpeedup) absl::StrAppend(&out, "  ", unicode ? "·" : "'", " ideal\n");
  if (any_lost) absl::StrAppend(&out, "  ", unicode ? "✕" : "!", " no result\n");
  return out;
}

}  // namespace scalelab::client
