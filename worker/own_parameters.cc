#include "worker/own_parameters.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "catalog/command_template.h"
#include "catalog/rank_variables.h"
#include "catalog/run_parameters.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::worker {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using nlohmann::json;

json JsonOf(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return value.string_value();
    case Value::kBoolValue:
      return value.bool_value();
    case Value::kNumberValue: {
      constexpr double kExact = 9007199254740992;  // 2^53
      const double number = value.number_value();
      if (std::abs(number) < kExact && number == std::floor(number)) return static_cast<int64_t>(number);
      return number;
    }
    case Value::kStructValue: {
      json object = json::object();  // sorted by name
      for (const auto& [name, member] : value.struct_value().fields()) object[name] = JsonOf(member);
      return object;
    }
    default:
      return nullptr;
  }
}

std::string TextOf(const Value& value) {
  if (value.kind_case() == Value::kNumberValue) return ShowNumber(value.number_value());
  if (value.kind_case() == Value::kBoolValue) return value.bool_value() ? "true" : "false";
  return value.string_value();
}

// Returns the value of a template's name as text, or nothing.
std::optional<std::string> TextOf(const v1::RunSpec& spec, absl::string_view name) {
  for (const auto& [prefix, map] : {std::pair("params.", &spec.params()), {"env.", &spec.env()}}) {
    if (!absl::StartsWith(name, prefix)) continue;
    const auto found = map->fields().find(std::string(absl::StripPrefix(name, prefix)));
    if (found == map->fields().end()) return std::nullopt;
    return TextOf(found->second);
  }
  const auto* field = v1::RunSpec::descriptor()->FindFieldByName(std::string(name));
  if (field == nullptr || field->is_repeated()) return std::nullopt;
  const auto* reflection = v1::RunSpec::GetReflection();
  using google::protobuf::FieldDescriptor;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(spec, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection->GetInt32(spec, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(spec, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ShowNumber(reflection->GetDouble(spec, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(spec, field) ? "true" : "false";
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string SpecJson(const v1::RunSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  // Protobuf prints maps in an arbitrary order.
  v1::RunSpec others = spec;
  others.clear_params();
  others.clear_env();
  others.clear_extract();
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(others, &text, options);
  text.resize(text.rfind('}'));
  for (const auto& [name, map] :
       {std::pair("params", &spec.params()), {"env", &spec.env()}, {"extract", &spec.extract()}}) {
    json object = json::object();
    for (const auto& [key, value] : map->fields()) object[key] = JsonOf(value);
    absl::StrAppend(&text, ",\"", name, "\":", object.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  return text + "}\n";
}

absl::StatusOr<std::vector<std::string>> ExpandedCommand(const v1::RunSpec& spec) {
  std::string unknown;
  std::vector<std::string> words;
  for (const std::string& word : spec.command()) {
    words.push_back(ExpandTemplates(word, [&](absl::string_view name) {
      std::optional<std::string> text = TextOf(spec, name);
      if (!text) unknown = std::string(name);
      return text.value_or("");
    }));
  }
  if (unknown.empty()) return words;
  return absl::FailedPreconditionError(
      absl::StrCat("The command has a template with the name '", unknown,
                   "', which is no parameter of the run; set it in the study, or write {{", unknown, "}}."));
}

std::vector<std::pair<std::string, std::string>> OwnVariables(const v1::RunSpec& spec) {
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : spec.env().fields()) variables[name] = TextOf(value);
  for (const auto& [name, value] : spec.params().fields())
    variables[absl::StrCat(kParamVariable, absl::AsciiStrToUpper(name))] = TextOf(value);
  return {variables.begin(), variables.end()};
}

}  // namespace scalelab::worker
