#include "client/selection/curve_selection.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"
#include "client/selection/conditions.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CompareCellsResponse;
using scalelab::v1::ComparedGroup;
using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::GetCurveResponse;
using scalelab::v1::MeasuredPoint;
using scalelab::v1::MeasuredSeries;

// Returns the axes of all keys, and ranks.
std::vector<std::string> NamesOf(const std::vector<const google::protobuf::Struct*>& keys) {
  std::vector<std::string> names = AxesOf(keys);
  if (std::find(names.begin(), names.end(), "ranks") == names.end()) names.emplace_back("ranks");
  return names;
}

std::optional<Field> AxisField(const google::protobuf::Struct& key, int ranks, const std::string& name) {
  if (name == "ranks") return NumberField(ranks);
  const auto axis = key.fields().find(name);
  return axis == key.fields().end() ? std::nullopt : std::optional<Field>(ValueField(axis->second));
}

absl::Status CheckName(absl::string_view option, const std::string& name, absl::string_view of,
                       const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", name, "' is no axis of this ", of,
                                                 "; known: ", absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Status SelectPoints(const std::vector<std::string>& where, GetCurveResponse& curve) {
  if (where.empty()) return absl::OkStatus();
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  const std::vector<std::string> names = NamesOf(keys);
  const auto conditions = ParseConditions(
      where, [&names](const std::string& name) { return CheckName("--where", name, "curve", names); });
  if (!conditions.ok()) return conditions.status();
  google::protobuf::RepeatedPtrField<CurveSeries> all;
  all.Swap(curve.mutable_series());
  for (CurveSeries& series : all) {
    const auto wanted = [&](const CurvePoint& point) {
      return Fulfils(*conditions,
                     [&](const std::string& name) { return AxisField(series.key(), point.ranks(), name); });
    };
    auto& points = *series.mutable_points();
    points.erase(
        std::remove_if(points.begin(), points.end(), [&](const CurvePoint& p) { return !wanted(p); }),
        points.end());
    if (!points.empty()) curve.mutable_series()->Add(std::move(series));
  }
  return absl::OkStatus();
}

absl::Status SelectGroups(const std::vector<std::string>& where, CompareCellsResponse& comparison) {
  if (where.empty()) return absl::OkStatus();
  std::vector<const google::protobuf::Struct*> keys;
  for (const ComparedGroup& group : comparison.groups()) keys.push_back(&group.key());
  const std::vector<std::string> names = NamesOf(keys);
  const auto conditions = ParseConditions(
      where, [&names](const std::string& name) { return CheckName("--where", name, "comparison", names); });
  if (!conditions.ok()) return conditions.status();
  auto& groups = *comparison.mutable_groups();
  const auto unwanted = [&](const ComparedGroup& group) {
    return !Fulfils(*conditions,
                    [&](const std::string& name) { return AxisField(group.key(), group.ranks(), name); });
  };
  groups.erase(std::remove_if(groups.begin(), groups.end(), unwanted), groups.end());
  auto& measured = *comparison.mutable_measured();
  for (MeasuredSeries& series : measured) {
    const auto unwanted_point = [&](const MeasuredPoint& point) {
      return !Fulfils(*conditions,
                      [&](const std::string& name) { return AxisField(series.key(), point.ranks(), name); });
    };
    auto& points = *series.mutable_points();
    points.erase(std::remove_if(points.begin(), points.end(), unwanted_point), points.end());
  }
  const auto is_empty = [](const MeasuredSeries& series) { return series.points().empty(); };
  measured.erase(std::remove_if(measured.begin(), measured.end(), is_empty), measured.end());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> RowOrder(const std::string& sort, int limit, const GetCurveResponse& curve) {
  struct Row {
    const CurveSeries* series;
    const CurvePoint* point;
  };
  std::vector<Row> rows;
  std::vector<int> order;
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) {
    keys.push_back(&series.key());
    for (const CurvePoint& point : series.points()) {
      order.push_back(static_cast<int>(rows.size()));
      rows.push_back({&series, &point});
    }
  }
  if (const Sorting sorting = ParseSorting(sort); !sorting.field.empty()) {
    const auto quantity = std::find(kQuantityNames.begin(), kQuantityNames.end(), sorting.field);
    std::vector<std::string> names = NamesOf(keys);
    const bool is_axis = std::find(names.begin(), names.end(), sorting.field) != names.end();
    for (const absl::string_view name : kQuantityNames) names.emplace_back(name);
    if (absl::Status known = CheckName("--sort", sorting.field, "curve", names); !known.ok()) return known;
    const auto field_of = [&](int i) -> std::optional<Field> {
      const Row& row = rows[static_cast<size_t>(i)];
      if (is_axis) return AxisField(row.series->key(), row.point->ranks(), sorting.field);
      const auto* estimate = EstimateOf(*row.point, static_cast<Quantity>(quantity - kQuantityNames.begin()));
      return estimate == nullptr ? std::nullopt : std::optional<Field>(NumberField(estimate->mean()));
    };
    SortByField(sorting, field_of, order);
  }
  if (limit > 0 && order.size() > static_cast<size_t>(limit)) order.resize(static_cast<size_t>(limit));
  return order;
}

}  // namespace scalelab::client
