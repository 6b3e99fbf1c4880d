#include "client/selection/curve_selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"
#include "client/selection/conditions.h"

namespace scalelab::client {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::GetCurveResponse;

absl::Status SelectPoints(const std::vector<std::string>& where, GetCurveResponse& curve) {
  if (where.empty()) return absl::OkStatus();
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  std::vector<std::string> names = AxesOf(keys);
  names.emplace_back("ranks");
  const auto conditions = ParseConditions(where, [&names](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--where: '", name, "' is no axis of this curve; known: ", absl::StrJoin(names, ", ")));
  });
  if (!conditions.ok()) return conditions.status();
  google::protobuf::RepeatedPtrField<CurveSeries> all;
  all.Swap(curve.mutable_series());
  for (CurveSeries& series : all) {
    const auto& axes = series.key().fields();
    const auto wanted = [&](const CurvePoint& point) {
      return Fulfils(*conditions, [&](const std::string& name) -> std::optional<Field> {
        if (name == "ranks") return NumberField(point.ranks());
        const auto axis = axes.find(name);
        return axis == axes.end() ? std::nullopt : std::optional<Field>(ValueField(axis->second));
      });
    };
    auto& points = *series.mutable_points();
    points.erase(
        std::remove_if(points.begin(), points.end(), [&](const CurvePoint& p) { return !wanted(p); }),
        points.end());
    if (!points.empty()) curve.mutable_series()->Add(std::move(series));
  }
  return absl::OkStatus();
}

}  // namespace scalelab::client
