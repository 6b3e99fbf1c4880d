#include "client/plots/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/text.h"
#include "client/plots/canvas.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_elements.h"

namespace scalelab::client {
namespace {

// Labels after the last colour repeat the colours with another dash pattern.
constexpr std::array<absl::string_view, 4> kDashes = {"", "7 4", "2 3", "9 3 2 3"};
constexpr std::array<int, 6> kLineColors = {34, 33, 32, 35, 36, 31};
constexpr double kLinesTop = 84, kLinesHeight = 360, kLinesLegend = 20, kLinesTitleX = 16;
constexpr double kLinesLetter = 7.6;  // the mean width of a digit in a wide font
constexpr int kLinesRows = 18, kLinesLabel = 9;
constexpr int kLinesTitleColumns = 68, kLinesSubtitleColumns = 130, kLinesLabelColumns = 52;

// The smallest and largest finite values of a coordinate, with ticks at round numbers.
Scale ScaleOf(const LinePlot& plot, std::vector<double> PlotLine::*values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const PlotLine& line : plot.lines) {
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!std::isfinite(line.x[i]) || !std::isfinite(line.y[i])) continue;
      low = std::min(low, (line.*values)[i]);
      high = std::max(high, (line.*values)[i]);
    }
  }
  Scale scale;
  if (low > high) return scale;
  if (high - low < 1e-12 * std::max(1.0, std::abs(high))) {
    const double room = std::max(1e-6, std::abs(high) * 0.1);
    low -= room;
    high += room;
  }
  const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.5, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  scale.min = low;
  scale.max = high;
  for (double tick = std::ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step)
    scale.ticks.push_back(std::abs(tick) < step * 1e-9 ? 0 : tick);
  return scale;
}

// Returns the label of a tick, with as many digits as distinguish it from the next one.
std::string LinesTick(double value, const Scale& scale) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  const double step = scale.ticks.size() > 1 ? scale.ticks[1] - scale.ticks[0] : size;
  int digits = std::clamp(static_cast<int>(std::ceil(std::log10(size / step))) + 2, 2, 15);
  if (size >= 1e-3 && size < 1e5) digits = std::max(digits, 5);  // otherwise 20000 would become 2e+04
  return absl::StrFormat("%.*g", digits, value);
}

// The distinct labels in order of appearance.
std::vector<std::string> LabelsOf(const LinePlot& plot) {
  std::vector<std::string> labels;
  for (const PlotLine& line : plot.lines) {
    if (std::find(labels.begin(), labels.end(), line.label) == labels.end()) labels.push_back(line.label);
  }
  return labels;
}

size_t IndexOf(const std::vector<std::string>& labels, const std::string& label) {
  return static_cast<size_t>(std::find(labels.begin(), labels.end(), label) - labels.begin());
}

std::string Stroke(size_t index) {
  const absl::string_view dash = kDashes[index / kColors.size() % kDashes.size()];
  std::string stroke = absl::StrCat("stroke=\"", kColors[index % kColors.size()], "\"");
  if (!dash.empty()) absl::StrAppend(&stroke, " stroke-dasharray=\"", dash, "\"");
  return stroke;
}

std::string Axes(const LinePlot& plot, const Box& box, const Scale& xs, const Scale& ys) {
  const double bottom = box.y + box.height;
  std::string out;
  for (const double tick : ys.ticks) {
    const double y = box.y + (1 - ys(tick)) * box.height;
    out += Line(box.x, y, box.x + box.width, y, "class=\"grid\"");
    out += Text(box.x - 8, y + 4, "tick end", LinesTick(tick, ys));
  }
  for (const double tick : xs.ticks) {
    const double x = box.x + xs(tick) * box.width;
    out += Line(x, bottom, x, bottom + 5, "class=\"axis\"");
    out += Text(x, bottom + 19, "tick middle", LinesTick(tick, xs));
  }
  out += Line(box.x, bottom, box.x + box.width, bottom, "class=\"axis\"");
  out += Line(box.x, box.y, box.x, bottom, "class=\"axis\"");
  out += Text(box.x + box.width / 2, bottom + 40, "title middle", plot.x_title);
  absl::StrAppend(&out, "<text class=\"title middle\" transform=\"translate(", N(kLinesTitleX), " ",
                  N(box.y + box.height / 2), ") rotate(-90)\">", Escaped(plot.y_title), "</text>\n");
  return out;
}

}  // namespace

bool HasPoints(const LinePlot& plot) { return !ScaleOf(plot, &PlotLine::y).ticks.empty(); }

std::string SvgLines(const LinePlot& plot, const PictureStyle& style) {
  const std::string& title = style.title.empty() ? plot.title : style.title;
  const Scale xs = ScaleOf(plot, &PlotLine::x), ys = ScaleOf(plot, &PlotLine::y);
  const std::vector<std::string> labels = LabelsOf(plot);
  const size_t shown = std::min(labels.size(), kMostLegendLines);
  size_t longest = 0;  // label of the vertical axis
  for (const double tick : ys.ticks) longest = std::max(longest, LinesTick(tick, ys).size());
  const double left = std::max(kLeft, 2 * kLinesTitleX + kLinesLetter * static_cast<double>(longest));
  const Box box{left, kLinesTop, kWidth - left - kRight, kLinesHeight};
  const double legend_top = kLinesTop + kLinesHeight + 68;
  const size_t lines = (shown + 1) / 2 + (shown < labels.size() ? 1 : 0);
  const double height = legend_top + kLinesLegend * static_cast<double>(lines);
  std::string out = absl::StrCat(
      SvgBegin(height, title, style.width),
      "<style>text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
      ".head{font-size:19px;font-weight:600}.sub{font-size:13px;fill:#555}.tick{font-size:12px;fill:#555}"
      ".title{font-size:13px}.legend{font-size:13px}.middle{text-anchor:middle}.end{text-anchor:end}"
      ".grid{stroke:#e6e6e6;stroke-width:1}.axis{stroke:#666;stroke-width:1}</style>\n",
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  out += Text(kLeft, 36, "head", Cut(title, kLinesTitleColumns, "…"));
  out += Text(kLeft, 60, "sub", Cut(plot.subtitle, kLinesSubtitleColumns, "…"));
  out += Axes(plot, box, xs, ys);
  for (const PlotLine& line : plot.lines) {
    const size_t index = IndexOf(labels, line.label);
    std::string path;
    bool down = false;
    for (size_t i = 0; i < line.x.size(); ++i) {
      const bool usable = std::isfinite(line.x[i]) && std::isfinite(line.y[i]);
      if (usable) {
        absl::StrAppend(&path, down ? "L" : "M", N(box.x + xs(line.x[i]) * box.width), " ",
                        N(box.y + (1 - ys(line.y[i])) * box.height));
      }
      down = usable;
    }
    if (path.empty()) continue;
    absl::StrAppend(&out, "<path d=\"", path, "\" fill=\"none\" ", Stroke(index),
                    " stroke-width=\"1.4\" stroke-linejoin=\"round\" stroke-linecap=\"round\"><title>",
                    Escaped(line.label), "</title></path>\n");
  }
  for (size_t i = 0; i < shown; ++i) {
    const size_t row = i / 2;
    const double x = i % 2 == 0 ? kLeft : kWidth / 2,
                 y = legend_top + kLinesLegend * static_cast<double>(row);
    out += Line(x, y, x + 26, y, absl::StrCat(Stroke(i), " stroke-width=\"2\""));
    out += Text(x + 36, y + 4, "legend", Cut(labels[i], kLinesLabelColumns, "…"));
  }
  if (shown < labels.size()) {
    out += Text(kLeft, legend_top + kLinesLegend * (lines - 1) + 4, "legend",
                absl::StrCat("and ", labels.size() - shown, " more"));
  }
  return absl::StrCat(out, "</svg>\n");
}

std::string TerminalLines(const LinePlot& plot, const Terminal& terminal) {
  if (!HasPoints(plot)) return "";
  const Scale xs = ScaleOf(plot, &PlotLine::x), ys = ScaleOf(plot, &PlotLine::y);
  const std::vector<std::string> labels = LabelsOf(plot);
  const bool unicode = terminal.unicode;
  const int width = std::clamp(terminal.width, 40, 100) - kLinesLabel - 1;
  Canvas canvas(width, kLinesRows, unicode, terminal.color);
  const auto x_of = [&](double x) { return 0.5 + xs(x) * (width - 1); };
  const auto y_of = [&](double y) { return 0.5 + (1 - ys(y)) * (kLinesRows - 1); };
  for (const PlotLine& line : plot.lines) {
    const size_t index = IndexOf(labels, line.label);
    const int color = kLineColors[index % kLineColors.size()];
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!std::isfinite(line.x[i]) || !std::isfinite(line.y[i])) continue;
      canvas.Dot(x_of(line.x[i]), y_of(line.y[i]), color);
      if (i == 0 || !std::isfinite(line.x[i - 1]) || !std::isfinite(line.y[i - 1])) continue;
      canvas.Line(x_of(line.x[i - 1]), y_of(line.y[i - 1]), x_of(line.x[i]), y_of(line.y[i]), color);
    }
  }
  std::string out = absl::StrCat(std::string(kLinesLabel, ' '), Printable(plot.y_title), "\n");
  std::vector<std::string> ticks(kLinesRows);
  for (const double tick : ys.ticks) ticks[static_cast<size_t>(y_of(tick))] = LinesTick(tick, ys);
  for (int row = 0; row < kLinesRows; ++row) {
    const std::string& tick = ticks[static_cast<size_t>(row)];
    absl::StrAppend(&out, absl::StrFormat("%*s ", kLinesLabel - 1, tick),
                    unicode ? (tick.empty() ? "│" : "┤") : (tick.empty() ? "|" : "+"), canvas.Row(row), "\n");
  }
  const size_t edge = static_cast<size_t>(kLinesLabel) + 1 + static_cast<size_t>(width);
  std::string axis, numbers(edge, ' ');
  for (int column = 0; column < width; ++column) {
    const bool tick = std::any_of(xs.ticks.begin(), xs.ticks.end(),
                                  [&](double t) { return static_cast<int>(x_of(t)) == column; });
    axis += unicode ? (tick ? "┴" : "─") : (tick ? "+" : "-");
  }
  size_t free = 0;
  for (const double tick : xs.ticks) {
    const std::string text = LinesTick(tick, xs);
    const size_t at = std::min(
        static_cast<size_t>(kLinesLabel + 1) + static_cast<size_t>(x_of(tick)) - (text.size() - 1) / 2,
        edge - text.size());
    if (at < free) continue;
    numbers.replace(at, text.size(), text);
    free = at + text.size() + 1;
  }
  absl::StrAppend(&out, std::string(kLinesLabel, ' '), unicode ? "└" : "+", axis, "\n",
                  absl::StripTrailingAsciiWhitespace(numbers), "\n",
                  std::string(static_cast<size_t>(kLinesLabel + width / 2 - 2), ' '), Printable(plot.x_title),
                  "\n");
  // Output that is not a terminal is never truncated.
  const int label_columns = terminal.tty ? terminal.width - 5 : std::numeric_limits<int>::max();
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string mark = unicode ? "──" : "--";
    const int color = kLineColors[i % kLineColors.size()];
    absl::StrAppend(&out, "  ", terminal.color ? absl::StrCat("\033[", color, "m", mark, "\033[0m") : mark,
                    " ", Cut(Printable(labels[i]), label_columns, unicode ? "…" : "~"), "\n");
  }
  return out;
}

}  // namespace scalelab::client
