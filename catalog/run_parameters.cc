#include "catalog/run_parameters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catalog/models.h"

namespace scalelab {
namespace {

using Names = std::vector<absl::string_view>;

// The types that the column `values` of the table may contain.
struct Values {
  double min = 0, max = 0;
  absl::string_view choices;
};
constexpr Values Range(double min, double max) { return {min, max, ""}; }
constexpr Values OneOf(absl::string_view choices) { return {0, 0, choices}; }
constexpr Values Any = {-9007199254740992.0, 9007199254740992.0, ""};  // whole numbers that a double holds

Names Choices(absl::string_view choices) {
  if (choices == "@engines") return EngineNames();
  if (choices == "@models") {
    Names names;
    for (const ModelInfo& model : Models()) names.push_back(model.name);
    return names;
  }
  if (choices.empty()) return {};
  return absl::StrSplit(choices, '|');
}

RunParameter Row(int number, absl::string_view name, ParameterType type,
                 std::variant<std::monostate, absl::string_view, double, bool> default_value,
                 const Values& values, absl::string_view unit, ParameterGroup group, bool study_key,
                 bool recipe, absl::string_view help, absl::string_view details) {
  return {number,     name,       type,   default_value, Choices(values.choices),
          values.min, values.max, unit,   group,         study_key,
          recipe,     help,       details};
}

std::vector<RunParameter> MakeParameters() {
  using enum ParameterGroup;
  constexpr auto String = ParameterType::kString;
  constexpr auto Int32 = ParameterType::kInt32;
  constexpr auto Int64 = ParameterType::kInt64;
  constexpr auto Double = ParameterType::kDouble;
  constexpr auto Bool = ParameterType::kBool;
  constexpr auto StringList = ParameterType::kStringList;
  constexpr auto Map = ParameterType::kMap;
  constexpr std::monostate NoDefault;
  constexpr bool Key = true, Derived = false, Recipe = true, Execution = false;
  // All numbers are stored as double: the Int32 25 becomes 25.0.
  const auto Default = [](auto value) -> decltype(RunParameter::default_value) {
    if constexpr (std::is_same_v<decltype(value), std::monostate> || std::is_same_v<decltype(value), bool>)
      return value;
    else if constexpr (std::is_arithmetic_v<decltype(value)>)
      return static_cast<double>(value);
    else
      return absl::string_view(value);
  };
  std::vector<RunParameter> parameters;
#define PARAMETER(number, name, type, default_value, values, unit, group, set_by, effect, help, details) \
  parameters.push_back(                                                                                  \
      Row(number, #name, type, Default(default_value), values, unit, group, set_by, effect, help, details));
#include "catalog/run_parameters.def"
#undef PARAMETER
  return parameters;
}

}  // namespace

const std::vector<RunParameter>& RunParameters() {
  static const auto& parameters = *new std::vector<RunParameter>(MakeParameters());
  return parameters;
}

const RunParameter* FindStudyKey(absl::string_view name) {
  for (const RunParameter& parameter : RunParameters()) {
    if (parameter.name == name) return parameter.study_key ? &parameter : nullptr;
  }
  return nullptr;
}

const Names& StudyKeyNames() {
  static const auto& names = *[] {
    auto* out = new Names;
    for (const RunParameter& parameter : RunParameters()) {
      if (parameter.study_key) out->push_back(parameter.name);
    }
    return out;
  }();
  return names;
}

bool IsNativeOnly(const RunParameter& parameter) {
  using enum ParameterGroup;
  constexpr ParameterGroup kGroups[] = {kStep,   kParts,        kGraph,      kAllReduce,
                                        kSparse, kSlowMomentum, kCheckpoint, kCompile};
  return std::ranges::find(kGroups, parameter.group) != std::end(kGroups);
}

bool IsInteger(ParameterType type) { return type == ParameterType::kInt32 || type == ParameterType::kInt64; }

bool IsNumber(ParameterType type) { return IsInteger(type) || type == ParameterType::kDouble; }

absl::string_view TypeName(ParameterType type) {
  switch (type) {
    case ParameterType::kString:
      return "text";
    case ParameterType::kInt32:
    case ParameterType::kInt64:
      return "whole number";
    case ParameterType::kDouble:
      return "number";
    case ParameterType::kBool:
      return "true or false";
    case ParameterType::kStringList:
      return "list of texts";
    case ParameterType::kMap:
      return "mapping";
  }
  return "";
}

absl::string_view ScalarTypeName(ParameterType type) {
  switch (type) {
    case ParameterType::kString:
    case ParameterType::kStringList:
      return "string";
    case ParameterType::kInt32:
      return "int32";
    case ParameterType::kInt64:
      return "int64";
    case ParameterType::kDouble:
      return "double";
    case ParameterType::kBool:
      return "bool";
    case ParameterType::kMap:
      return "google.protobuf.Struct";
  }
  return "";
}

std::string DefaultText(const RunParameter& parameter) {
  if (const auto* text = std::get_if<absl::string_view>(&parameter.default_value)) return std::string(*text);
  if (const auto* flag = std::get_if<bool>(&parameter.default_value)) return *flag ? "true" : "false";
  const auto* number = std::get_if<double>(&parameter.default_value);
  if (number == nullptr || *number < parameter.min || *number > parameter.max) return "";
  return ShowNumber(*number);
}

std::string ValuesText(const RunParameter& parameter) {
  if (!parameter.choices.empty()) return absl::StrJoin(parameter.choices, ", ");
  if (!IsNumber(parameter.type) || parameter.min < -1e15) return "";
  return absl::StrCat(ShowNumber(parameter.min), " to ", ShowNumber(parameter.max));
}

Names ReadingEngines(const RunParameter& parameter) {
  Names names;
  for (const Engine& engine : Engines()) {
    if (engine.Reads(parameter.group)) names.push_back(engine.name);
  }
  return names;
}

std::string EnginesText(const RunParameter& parameter) {
  if (parameter.group == ParameterGroup::kCommon) return "all";
  return absl::StrJoin(ReadingEngines(parameter), ", ");
}

std::string ShowNumber(double number) {
  char buffer[400];
  constexpr double kExact = 9007199254740992;  // 2^53: a double stores all smaller whole numbers
  const bool whole = std::abs(number) < kExact && number == std::floor(number);
  auto result = whole ? std::to_chars(buffer, std::end(buffer), static_cast<int64_t>(number))
                      : std::to_chars(buffer, std::end(buffer), number);
  return std::string(buffer, result.ptr);
}

}  // namespace scalelab
