#include "client/plots/svg_panel.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

constexpr double kInset = 22;  // least distance between the frame and the first point
constexpr double kDodge = 5;   // largest distance between points of two series at one rank count
// Points of one rank count take at most this share of the distance to the next.
constexpr double kDodgedShare = 0.7;
constexpr double kDigitWidth = 7;     // width of a digit in a tick label
constexpr double kLostDistance = 11;  // distance between crosses at one rank count

std::string PanelTick(double value) {
  static constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  const double size = std::abs(value);
  if (size >= 1e15 || (size > 0 && size < 0.01)) return absl::StrFormat("%.2g", value);
  for (const auto& [unit, letter] : kUnits) {
    if (size >= 1e4 && size >= unit) return absl::StrFormat("%.3g%s", value / unit, letter);
  }
  return N(value);
}

std::string Tooltip(const PlotSeries& series, const PlotPoint& p, Quantity quantity, bool repeats) {
  const auto number = [quantity](double v) {
    if (quantity == Quantity::kMemory) return Bytes(v);
    return AxisUnit(quantity) == 100 ? Percent(v) + "%" : Short(v);
  };
  std::string text =
      absl::StrCat(series.label, ", ", N(p.ranks), p.ranks == 1 ? " rank" : " ranks", ": ", number(p.value));
  if (p.low) absl::StrAppend(&text, " [", number(*p.low), ", ", number(*p.high), "]");
  return repeats ? absl::StrCat(text, ", n=", UsedRepeats(p.n, p.asked)) : text;
}

std::string LostTooltip(const PlotSeries& series, const LostPoint& p, bool repeats) {
  const std::string text =
      absl::StrCat(series.label, ", ", N(p.ranks), p.ranks == 1 ? " rank: " : " ranks: ", p.why);
  return repeats && p.asked > 0 ? absl::StrCat(text, ", n=", UsedRepeats(0, p.asked)) : text;
}

// Maps ranks and values to the picture.
class Frame {
 public:
  Frame(const Box& box, const std::vector<PlotSeries>& series, Quantity quantity)
      : xs(RanksScale(series)), ys(ValueScale(series, quantity)), box_(box) {
    std::vector<double> ranks;
    for (const PlotSeries& s : series) {
      for (const PlotPoint& p : s.points) ranks.push_back(p.ranks);
      for (const LostPoint& p : s.lost) ranks.push_back(p.ranks);
    }
    std::sort(ranks.begin(), ranks.end());
    double nearest = 1;  // smallest distance of two neighbouring rank counts, as a share of the axis
    for (size_t i = 1; i < ranks.size(); ++i) {
      if (ranks[i] > ranks[i - 1]) nearest = std::min(nearest, xs(ranks[i]) - xs(ranks[i - 1]));
    }
    const double count = std::max(1.0, static_cast<double>(series.size()));
    dodge_ = std::min(kDodge, nearest * (box.width - 2 * kInset) * kDodgedShare / count);
    middle_ = (count - 1) / 2;
    inset_ = std::max(kInset, middle_ * dodge_ + 8);
  }
  double X(double ranks) const { return box_.x + inset_ + xs(ranks) * (box_.width - 2 * inset_); }
  double X(double ranks, size_t series) const {
    return X(ranks) + (static_cast<double>(series) - middle_) * dodge_;
  }
  double Y(double value) const { return box_.y + (1 - std::clamp(ys(value), 0.0, 1.0)) * box_.height; }

  const Scale xs, ys;

 private:
  const Box box_;
  double dodge_ = 0, middle_ = 0, inset_ = 0;
};

std::string PanelAxes(const Box& box, const Frame& frame, Quantity quantity) {
  const double bottom = box.y + box.height, middle = box.y + box.height / 2;
  std::string out;
  // The next label must end above this height, or it would overlap the last one.
  double free_below = bottom + 100;
  for (const double tick : frame.ys.ticks) {
    const double y = frame.Y(tick);
    out += Line(box.x, y, box.x + box.width, y, "class=\"grid\"");
    if (y > free_below - 12) continue;
    out += Text(box.x - 8, y + 4, "tick end", PanelTick(tick * AxisUnit(quantity)));
    free_below = y;
  }
  double taken = -1e9;
  for (const double tick : frame.xs.ticks) {
    const double x = frame.X(tick);
    out += Line(x, bottom, x, bottom + 5, "class=\"axis\"");
    const std::string label = N(tick);
    const double half = kDigitWidth * static_cast<double>(label.size()) / 2;
    if (x - half < taken + 6) continue;
    taken = x + half;
    out += Text(x, bottom + 19, "tick middle", label);
  }
  out += Line(box.x, bottom, box.x + box.width, bottom, "class=\"axis\"");
  out += Line(box.x, box.y, box.x, bottom, "class=\"axis\"");
  out += Text(box.x + box.width / 2, bottom + 40, "title middle", "ranks");
  absl::StrAppend(&out, "<text class=\"title middle\" transform=\"translate(", N(box.x - 50), " ", N(middle),
                  ") rotate(-90)\">", Escaped(AxisTitle(quantity)), "</text>\n");
  return out;
}

std::string IdealLines(const Box& box, const Frame& frame, const std::vector<PlotSeries>& series,
                       Quantity quantity) {
  std::string out;
  if (quantity == Quantity::kSpeedup) {
    for (const double baseline : Baselines(series)) {
      out += Line(frame.X(frame.xs.min), frame.Y(frame.xs.min / baseline), frame.X(frame.xs.max),
                  frame.Y(frame.xs.max / baseline), "class=\"ideal\"");
    }
  } else if (quantity == Quantity::kEfficiency) {
    out += Line(box.x, frame.Y(1), box.x + box.width, frame.Y(1), "class=\"ideal\"");
  }
  return out;
}

// One end of an interval: a bar, or an arrow if the end is outside of the scale.
std::string IntervalEnd(const Frame& frame, double x, double value, const std::string& stroke) {
  const double y = frame.Y(value), at = frame.ys(value);
  if (at >= 0 && at <= 1) return Line(x - 3.5, y, x + 3.5, y, stroke);
  const double back = at > 1 ? 5 : -5;
  return absl::StrCat("<path d=\"M", N(x - 3.5), " ", N(y + back), "L", N(x), " ", N(y), "L", N(x + 3.5), " ",
                      N(y + back), "\" fill=\"none\" ", stroke, "/>\n");
}

}  // namespace

std::string SeriesMark(size_t index, double x, double y, absl::string_view tooltip) {
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

std::string CurvePanel(const Box& box, const std::vector<PlotSeries>& series, Quantity quantity,
                       bool repeats) {
  const Frame frame(box, series, quantity);
  std::string out = PanelAxes(box, frame, quantity) + IdealLines(box, frame, series, quantity);
  std::string marks;           // drawn above all lines
  std::map<double, int> lost;  // number of crosses at each rank count
  for (size_t i = 0; i < series.size(); ++i) {
    const absl::string_view color = kColors[i % kColors.size()];
    std::string points;
    for (const PlotPoint& p : series[i].points) {
      const double x = frame.X(p.ranks, i), y = frame.Y(p.value);
      absl::StrAppend(&points, points.empty() ? "" : " ", N(x), ",", N(y));
      if (p.low) {
        const std::string stroke = absl::StrCat("stroke=\"", color, "\" stroke-width=\"1.4\"");
        out += Line(x, frame.Y(*p.low), x, frame.Y(*p.high), stroke);
        out += IntervalEnd(frame, x, *p.low, stroke) + IntervalEnd(frame, x, *p.high, stroke);
      }
      marks += SeriesMark(i, x, y, Tooltip(series[i], p, quantity, repeats));
    }
    if (series[i].points.size() > 1) {
      absl::StrAppend(&out, "<polyline points=\"", points, "\" fill=\"none\" stroke=\"", color,
                      "\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>\n");
    }
    for (const LostPoint& point : series[i].lost) {
      const double y = box.y + box.height - 14 - kLostDistance * lost[point.ranks]++;
      absl::StrAppend(&marks, "<path d=\"M", N(frame.X(point.ranks) - 4), " ", N(y),
                      "l8 8m0-8l-8 8\" stroke=\"", color, "\" stroke-width=\"2\" fill=\"none\"><title>",
                      Escaped(LostTooltip(series[i], point, repeats)), "</title></path>\n");
    }
  }
  return absl::StrCat("<g>\n", out, marks, "</g>\n");
}

}  // namespace scalelab::client
