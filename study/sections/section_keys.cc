#include "study/sections/section_keys.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "study/sections/embedded_schema.h"

namespace scalelab {
namespace {

using nlohmann::ordered_json;

// Returns the type of one alternative of a schema.
std::string TypeOfOne(const ordered_json& schema) {
  if (schema.contains("const")) return absl::StrCat("'", schema["const"].get<std::string>(), "'");
  if (schema.contains("$ref") || schema.contains("allOf")) return "mapping";
  const ordered_json type = schema.value("type", ordered_json("object"));
  if (type.is_array()) {
    std::vector<std::string> names;
    for (const auto& one : type) names.push_back(TypeOfOne({{"type", one}}));
    return absl::StrJoin(names, " or ");
  }
  if (type == "string") return "text";
  if (type == "integer") return "whole number";
  if (type == "boolean") return "true or false";
  if (type == "number") return "number";
  if (type == "object") return "mapping";
  const ordered_json items = schema.value("items", ordered_json::object());
  return TypeOfOne(items) == "mapping" ? "list of mappings" : "list of texts";
}

std::vector<ordered_json> Alternatives(const ordered_json& schema) {
  if (!schema.contains("anyOf")) return {schema};
  return schema["anyOf"].get<std::vector<ordered_json>>();
}

std::string ValuesOf(const ordered_json& schema) {
  if (!schema.contains("enum")) return "";
  return absl::StrJoin(schema["enum"].get<std::vector<std::string>>(), ", ");
}

// Returns whether the keys of the place are the run parameters.
bool HasRunParameters(const ordered_json& schema) {
  return schema.contains("allOf") || schema.value("items", ordered_json::object()).contains("$ref");
}

void Add(const std::string& name, const ordered_json& schema, std::vector<v1::StudyKey>& keys) {
  v1::StudyKey& key = keys.emplace_back();
  key.set_name(name);
  const std::vector<ordered_json> alternatives = Alternatives(schema);
  key.set_type(absl::StrJoin(alternatives, " or ", [](std::string* out, const ordered_json& one) {
    absl::StrAppend(out, TypeOfOne(one));
  }));
  key.set_values(ValuesOf(schema));
  key.set_help(schema.value("description", ""));
  if (absl::EndsWith(key.help(), ".")) key.mutable_help()->pop_back();
  if (HasRunParameters(schema)) key.set_details("Its keys are those that `scalelab study keys` lists.");
  for (const ordered_json& one : alternatives) {
    const ordered_json& items = one.contains("items") ? one["items"] : one;
    if (!items.contains("properties")) continue;
    for (const auto& [below, property] : items["properties"].items())
      Add(absl::StrCat(name, one.contains("items") ? "[]." : ".", below), property, keys);
  }
}

const std::vector<v1::StudyKey>& AllKeys() {
  static const std::vector<v1::StudyKey>& all = *[] {
    auto* keys = new std::vector<v1::StudyKey>;
    const ordered_json schema = ordered_json::parse(EmbeddedStudySchema());
    for (const auto& [name, section] : schema["properties"].items()) Add(name, section, *keys);
    return keys;
  }();
  return all;
}

}  // namespace

std::vector<v1::StudyKey> SectionKeys(absl::string_view place) {
  std::vector<v1::StudyKey> keys;
  for (const v1::StudyKey& key : AllKeys()) {
    const absl::string_view rest = absl::StartsWith(key.name(), place)
                                       ? absl::string_view(key.name()).substr(place.size())
                                       : absl::string_view("no");
    if (rest.empty() || rest[0] == '.' || rest[0] == '[') keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> SectionKeyNames() {
  std::vector<std::string> names;
  for (const v1::StudyKey& key : AllKeys()) names.push_back(key.name());
  return names;
}

}  // namespace scalelab
