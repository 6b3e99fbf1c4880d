#include "client/figures/curve_figure.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveResponse;

constexpr int kMostDecimals = 6;

// Returns "1.87 [1.14, 3.07]", with as many decimals as two digits of the half width need.
std::string IntervalText(const Estimate& e, double unit) {
  if (!e.has_low() || !e.has_high()) return Short(e.mean() * unit);
  const double half = (e.high() - e.low()) / 2 * unit;
  const int decimals =
      half > 0 ? std::clamp(1 - static_cast<int>(std::floor(std::log10(half))), 0, kMostDecimals) : 2;
  return absl::StrFormat("%.*f [%.*f, %.*f]", decimals, e.mean() * unit, decimals, e.low() * unit, decimals,
                         e.high() * unit);
}

}  // namespace

absl::StatusOr<std::vector<Quantity>> QuantitiesOf(const std::vector<std::string>& names) {
  std::vector<Quantity> quantities;
  for (const std::string& name : names) {
    const auto found = std::find(kQuantityNames.begin(), kQuantityNames.end(), name);
    if (found == kQuantityNames.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--panels: \"", name, "\" is not known; known: ", absl::StrJoin(kQuantityNames, ", ")));
    }
    quantities.push_back(static_cast<Quantity>(found - kQuantityNames.begin()));
  }
  return quantities;
}

bool NeedFactors(const std::vector<Quantity>& quantities) {
  return std::find(quantities.begin(), quantities.end(), Quantity::kGoodput) != quantities.end();
}

void KeepGoodput(GetCurveResponse& curve) {
  curve.clear_node_comparisons();
  for (CurveSeries& series : *curve.mutable_series()) {
    bool results = false, norms = false;
    for (CurvePoint& point : *series.mutable_points()) {
      point.clear_factors();
      results = results || point.n() > 0;
      norms = norms || point.has_gradient_noise();
      const std::string& missing = point.gradient_noise().missing();
      if (!missing.empty()) point.add_notes(absl::StrCat("no goodput: ", missing));
    }
    if (results && !norms) series.add_notes("no goodput: the runs reported no norms of gradients");
  }
}

Section FigureTable(const GetCurveResponse& curve, const std::vector<Quantity>& quantities, bool repeats) {
  Section section;
  using In = Column::In;
  section.columns = {
      {"series", In::kAll}, {"ranks", In::kAll, true}, {"repeats", repeats ? In::kAll : In::kWide, true}};
  for (const Quantity quantity : quantities) section.columns.push_back({AxisTitle(quantity), In::kAll, true});
  section.rows = [&curve, quantities, labels = MarkedLabels(curve)](const RowSink& sink) {
    for (int i = 0; i < curve.series_size(); ++i) {
      for (const CurvePoint& point : curve.series(i).points()) {
        std::vector<Cell> row = {labels[static_cast<size_t>(i)], absl::StrCat(point.ranks()),
                                 UsedRepeats(point.n(), point.asked())};
        for (const Quantity quantity : quantities) {
          const Estimate* estimate = EstimateOf(point, quantity);
          row.emplace_back(estimate == nullptr ? "" : IntervalText(*estimate, AxisUnit(quantity)));
        }
        sink(row);
      }
    }
  };
  return section;
}

Section WithStatisticsOf(const std::vector<Quantity>& quantities, Section table) {
  // The prefixes of the columns, in the order of the enum.
  static constexpr absl::string_view kColumns[] = {"throughput", "speedup",  "efficiency", "peak_memory",
                                                   "comm_share", "accuracy", "goodput"};
  for (Column& column : table.columns) {
    const size_t end = column.title.rfind('_');
    if (column.in != Column::In::kCsv || end == std::string::npos) continue;
    const std::string part = column.title.substr(end);
    if (part != "_mean" && part != "_median" && part != "_stddev" && part != "_low" && part != "_high")
      continue;
    const absl::string_view statistic = absl::string_view(column.title).substr(0, end);
    const bool wanted = std::any_of(quantities.begin(), quantities.end(), [&](Quantity quantity) {
      return statistic == kColumns[static_cast<size_t>(quantity)];
    });
    if (!wanted) column.in = Column::In::kWide;
  }
  return table;
}

}  // namespace scalelab::client
