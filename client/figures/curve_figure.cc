#include "client/figures/curve_figure.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
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

Section FigureTable(const GetCurveResponse& curve, const std::vector<Quantity>& quantities, bool repeats) {
  Section section;
  using In = Column::In;
  section.columns = {
      {"series", In::kAll}, {"ranks", In::kAll, true}, {"repeats", repeats ? In::kAll : In::kWide, true}};
  for (const Quantity quantity : quantities) section.columns.push_back({AxisTitle(quantity), In::kAll, true});
  section.rows = [&curve, quantities, labels = SeriesLabels(curve)](const RowSink& sink) {
    for (int i = 0; i < curve.series_size(); ++i) {
      for (const CurvePoint& point : curve.series(i).points()) {
        std::vector<Cell> row = {
            labels[static_cast<size_t>(i)], absl::StrCat(point.ranks()),
            point.asked() == 0 ? absl::StrCat(point.n()) : absl::StrCat(point.n(), "/", point.asked())};
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

}  // namespace scalelab::client
