#include "client/plots/factor_bars.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/output/cells.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_elements.h"
#include "client/plots/svg_panel.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::ScalingFactors;

constexpr double kTitle = 42, kBars = 220, kBelow = 62, kLegend = 34;
constexpr double kWidestBar = 46, kNarrowestLabel = 18;
constexpr double kLabelGap = 6, kLetter = 7.6;  // the mean width of a letter in a wide font

struct Part {
  const char* name;
  const char* color;
  double (ScalingFactors::*share)() const;
};

// The parts of a bar from bottom to top. The colours are those of Okabe and Ito (2008).
constexpr std::array<Part, 5> kParts = {{
    {"computation", "#009E73", &ScalingFactors::ideal_share},
    {"slower computation than in the base case", "#56B4E9", &ScalingFactors::slower_share},
    {"load imbalance", "#E69F00", &ScalingFactors::imbalance_share},
    {"wait for data", "#CC79A7", &ScalingFactors::data_share},
    {"communication", "#D55E00", &ScalingFactors::communication_share},
}};

struct Bar {
  int ranks = 0;
  const ScalingFactors* factors = nullptr;
  int asked = 0;  // as in PlotPoint
};

struct BarGroup {
  size_t series = 0;  // index
  std::string label;
  std::vector<Bar> bars;
};

std::vector<BarGroup> GroupsOf(const GetCurveResponse& curve) {
  const std::vector<std::string> labels = SeriesLabels(curve);
  std::vector<BarGroup> groups;
  for (int i = 0; i < curve.series_size(); ++i) {
    BarGroup group{static_cast<size_t>(i), labels[static_cast<size_t>(i)], {}};
    for (const CurvePoint& point : curve.series(i).points()) {
      if (point.factors().n() > 0) group.bars.push_back({point.ranks(), &point.factors(), point.asked()});
    }
    if (!group.bars.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::string BarOf(const Box& box, const std::string& label, const Bar& bar, bool repeats) {
  const std::string n = repeats ? absl::StrCat(", n=", UsedRepeats(bar.factors->n(), bar.asked)) : "";
  std::string out;
  double y = box.y + box.height;
  for (const Part& part : kParts) {
    const double share = std::clamp((bar.factors->*part.share)(), 0.0, 1.0), height = share * box.height;
    y -= height;
    if (height < 0.005) continue;
    absl::StrAppend(
        &out, "<rect x=\"", N(box.x), "\" y=\"", N(y), "\" width=\"", N(box.width), "\" height=\"", N(height),
        "\" fill=\"", part.color, "\"><title>",
        Escaped(absl::StrCat(label, ", ", bar.ranks, bar.ranks == 1 ? " rank: " : " ranks: ", part.name, " ",
                             Percent(share), "% of ", Short(bar.factors->step_seconds() * 1000), " ms", n)),
        "</title></rect>\n");
  }
  return out;
}

std::string Axis(const Box& box) {
  std::string out;
  for (const int percent : {0, 25, 50, 75, 100}) {
    const double y = box.y + box.height * (1 - percent / 100.0);
    out += Line(box.x, y, box.x + box.width, y, percent == 0 ? "class=\"axis\"" : "class=\"grid\"");
    out += Text(box.x - 8, y + 4, "tick end", absl::StrCat(percent));
  }
  return out;
}

std::string Legend(double y) {
  std::string out;
  double x = kLeft;
  for (const Part& part : kParts) {
    absl::StrAppend(&out, "<rect x=\"", N(x), "\" y=\"", N(y - 10), "\" width=\"12\" height=\"12\" fill=\"",
                    part.color, "\"/>\n");
    out += Text(x + 18, y, "legend", part.name);
    x += 46 + 6.6 * static_cast<double>(std::string(part.name).size());
  }
  return out;
}

}  // namespace

double FactorBarsHeight(const GetCurveResponse& curve) {
  return GroupsOf(curve).empty() ? 0 : kTitle + kBars + kBelow + kLegend;
}

std::string FactorBars(double top, const GetCurveResponse& curve, bool repeats) {
  const std::vector<BarGroup> groups = GroupsOf(curve);
  if (groups.empty()) return "";
  size_t bars = 0;
  for (const BarGroup& group : groups) bars += group.bars.size();
  const Box box{kLeft, top + kTitle, kWidth - kLeft - kRight, kBars};
  // A gap of one bar separates groups.
  const double slot = box.width / static_cast<double>(bars + groups.size());
  const double width = std::min(slot * 0.8, kWidestBar), bottom = box.y + box.height;
  std::string out = Text(kLeft, top + 22, "title", "parts of the mean step, %");
  out += Axis(box);
  // If a name does not fit below its bars, marks refer to the names in the legend of the series.
  const bool marks = std::any_of(groups.begin(), groups.end(), [&](const BarGroup& group) {
    const double space = static_cast<double>(group.bars.size() + 1) * slot;
    return kLabelGap + kLetter * DisplayWidth(Printable(group.label)) > space;
  });
  double x = box.x + slot / 2;
  for (const BarGroup& group : groups) {
    const double first = x;
    double last_label = -1e9;
    for (const Bar& bar : group.bars) {
      out += BarOf({x + (slot - width) / 2, box.y, width, box.height}, group.label, bar, repeats);
      if (x - last_label >= kNarrowestLabel) {
        last_label = x;
        out += Text(x + slot / 2, bottom + 17, "tick middle", absl::StrCat(bar.ranks));
      }
      x += slot;
    }
    const double middle = (first + x) / 2;
    out += marks ? SeriesMark(group.series, middle, bottom + 32, group.label)
                 : Text(middle, bottom + 36, "tick middle", group.label);
    x += slot;
  }
  out += Legend(bottom + kBelow);
  return absl::StrCat("<g>\n", out, "</g>\n");
}

}  // namespace scalelab::client
