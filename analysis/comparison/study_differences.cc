#include "analysis/comparison/study_differences.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/metric_ranges.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

constexpr size_t kMostDifferences = 20, kMostListed = 4;

// Replaces the strings as which the JSON of protobuf has 64-bit numbers. A Struct, as the key of a cell, has numbers.
void SetNumbers(const google::protobuf::Descriptor& type, json& flat) {
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64) continue;
    const auto found = flat.find(type.field(i)->name());
    int64_t number = 0;
    if (found != flat.end() && found->is_string() &&
        absl::SimpleAtoi(found->get_ref<const std::string&>(), &number))
      *found = number;
  }
}

json ToFlat(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return json::object();
  json flat = json::parse(text, nullptr, false);
  SetNumbers(*message.GetDescriptor(), flat);
  const auto own = flat.find("params");
  if (own == flat.end() || !own->is_object()) return flat;
  const json params = std::move(*own);
  flat.erase(own);
  for (const auto& [name, value] : params.items()) flat[absl::StrCat("params.", name)] = value;
  return flat;
}

std::string ToText(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

void StudyReader::Read(const StudyRows& study, size_t number) {
  static const MetricRange& range = RangeOf("run/throughput");
  std::unordered_map<int64_t, std::vector<const db::CurveRow*>> rows;
  for (const db::CurveRow& row : study.rows) {
    if (row.state == db::RunState::kSucceeded && row.repeat >= 0 && row.throughput.has_value() &&
        range.Contains(*row.throughput))
      rows[row.cell_id].push_back(&row);
  }
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const auto found = rows.find(study.cells[i].id);
    const scalelab::v1::RunSpec spec = study.parameters.SpecWithoutCommand(i);
    if (found == rows.end() || spec.communication_baseline()) continue;
    StudyCell cell{number, study.cells[i].ranks, ToFlat(spec), {}, {}, ToFlat(study.parameters.Key(i))};
    for (const auto& [axis, value] : cell.key.items()) {
      cell.values[axis] = value;
      if (axis != "ranks") axes.insert(axis);
    }
    cell.key.erase("ranks");
    cell.values.erase("seed");
    for (const db::CurveRow* row : found->second) {
      cell.throughput.push_back(*row->throughput);
      cell.fingerprints.insert(row->fingerprint);
    }
    cells.push_back(std::move(cell));
  }
}

void StudyDifferences::Add(const std::vector<const StudyCell*>& cells) {
  std::set<std::string> names;
  for (const StudyCell* cell : cells) {
    for (const auto& [name, value] : cell->values.items()) names.insert(name);
  }
  for (const std::string& name : names) {
    std::vector<json> values;
    for (const StudyCell* cell : cells) values.push_back(cell->values.value(name, json()));
    if (std::ranges::all_of(values, [&](const json& value) { return value == values.front(); })) continue;
    for (size_t i = 0; i < cells.size(); ++i) values_[name][cells[i]->study].insert(ToText(values[i]));
  }
}

std::vector<std::string> StudyDifferences::Notes(const std::vector<StudyRows>& studies) const {
  std::vector<std::string> notes;
  for (const auto& [name, of_study] : values_) {
    std::vector<std::string> parts;
    for (const auto& [study, values] : of_study) {
      std::vector<std::string> listed(values.begin(), values.end());
      if (listed.size() > kMostListed) {
        listed.resize(kMostListed);
        listed.emplace_back("...");
      }
      parts.push_back(absl::StrCat(absl::StrJoin(listed, ", "), " (", studies[study].name, ")"));
    }
    notes.push_back(absl::StrCat("the studies differ in ", name, ": ", absl::StrJoin(parts, ", ")));
    if (notes.size() == kMostDifferences) break;
  }
  return notes;
}

}  // namespace scalelab::analysis
