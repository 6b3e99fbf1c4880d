#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "catalog/enum_word.h"
#include "catalog/run_parameters.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "nlohmann/json.hpp"
#include "study/generate/generated_files.h"

namespace scalelab {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using Json = nlohmann::ordered_json;

// A pattern for names that the user chooses, written as one key: params.dropout.
constexpr char kOwnNames[] = "^(params|env)\\.[A-Za-z_][A-Za-z0-9_]{0,63}$";

// Returns the comment above a field as one line.
std::string CommentOf(const FieldDescriptor& field) {
  google::protobuf::SourceLocation location;
  if (!field.GetSourceLocation(&location)) return "";
  std::string text = absl::StrReplaceAll(location.leading_comments, {{"\n", " "}});
  absl::RemoveExtraAsciiWhitespace(&text);
  return text;
}

// Returns the schema of one value of a name that the user chooses.
Json OwnValueSchema() { return {{"type", {"string", "number", "boolean"}}}; }

// Returns the schema of one value of a run parameter.
Json ValueSchema(const RunParameter& parameter) {
  Json schema;
  switch (parameter.type) {
    case ParameterType::kString:
      schema["type"] = "string";
      break;
    case ParameterType::kInt32:
    case ParameterType::kInt64:
      schema["type"] = "integer";
      break;
    case ParameterType::kDouble:
      schema["type"] = "number";
      break;
    case ParameterType::kBool:
      schema["type"] = "boolean";
      break;
    case ParameterType::kStringList:
      return {{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", 1}};
    case ParameterType::kMap:
      return OwnValueSchema();
  }
  // Engine custom takes any model and data set, so an editor only suggests the known ones.
  const bool open = parameter.name == "model" || parameter.name == "dataset";
  if (!parameter.choices.empty()) {
    const std::vector<std::string> choices(parameter.choices.begin(), parameter.choices.end());
    schema[open ? "examples" : "enum"] = choices;
  }
  if (IsNumber(parameter.type) && !ValuesText(parameter).empty()) {
    if (IsInteger(parameter.type)) {
      schema["minimum"] = static_cast<int64_t>(parameter.min);
      schema["maximum"] = static_cast<int64_t>(parameter.max);
    } else {
      schema["minimum"] = parameter.min;
      schema["maximum"] = parameter.max;
    }
  }
  return schema;
}

std::string Description(const RunParameter& parameter) {
  std::string text = absl::StrCat(parameter.help, ".");
  if (!parameter.details.empty()) absl::StrAppend(&text, " ", parameter.details);
  if (const std::string usual = DefaultText(parameter); !usual.empty())
    absl::StrAppend(&text, " Default: ", usual, ".");
  if (const std::string engines = EnginesText(parameter); engines != "all")
    absl::StrAppend(&text, " Read by ", engines, ".");
  return text;
}

// Returns the schema of a mapping with one value for each key: "fixed", "baseline" and an entry of "exclude".
Json ValuesOfKeys() {
  Json properties = Json::object();
  for (const RunParameter& parameter : RunParameters()) {
    if (!parameter.study_key) continue;
    Json schema = ValueSchema(parameter);
    if (parameter.type == ParameterType::kMap)
      schema = {{"type", "object"}, {"additionalProperties", schema}};
    schema["description"] = Description(parameter);
    properties[std::string(parameter.name)] = std::move(schema);
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"patternProperties", {{kOwnNames, OwnValueSchema()}}},
          {"additionalProperties", false}};
}

// Returns the schema of an axis: a list of values, or a range of whole numbers.
Json AxisSchema(const RunParameter& parameter, bool may_repeat) {
  Json list = {{"type", "array"}, {"items", ValueSchema(parameter)}, {"minItems", 1}};
  if (!may_repeat) list["uniqueItems"] = true;
  if (!IsInteger(parameter.type) && parameter.type != ParameterType::kMap) return list;
  Json ends = {
      {"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 1}}}, {"minItems", 2}, {"maxItems", 2}};
  Json range = {{"type", "object"},
                {"properties", {{"pow2", std::move(ends)}}},
                {"required", {"pow2"}},
                {"additionalProperties", false}};
  return {{"anyOf", Json::array({std::move(list), std::move(range)})}};
}

// Returns the schema of a mapping with a list of values or a range for each key: "matrix", and an entry of
// "zip", in which values may repeat.
Json AxesOfKeys(bool may_repeat) {
  Json properties = Json::object(), own;
  for (const RunParameter& parameter : RunParameters()) {
    if (!parameter.study_key) continue;
    Json axis = AxisSchema(parameter, may_repeat);
    if (parameter.type == ParameterType::kMap) {
      own = axis;
      axis = {{"type", "object"}, {"additionalProperties", std::move(axis)}};
    }
    axis["description"] = Description(parameter);
    properties[std::string(parameter.name)] = std::move(axis);
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"patternProperties", {{kOwnNames, std::move(own)}}},
          {"additionalProperties", false}};
}

Json EnumSchema(const EnumDescriptor& type) {
  Json words = Json::array();
  for (int i = 1; i < type.value_count(); ++i) {  // 0 is "unspecified"
    words.push_back(EnumWord(type.value(i)->name()));
  }
  return {{"type", "string"}, {"enum", std::move(words)}};
}

Json MessageSchema(const Descriptor& message);

// Returns the schema of "repeats": a number, or {min: 2, max: 10, until: {half_width: 2%}}.
Json RepeatsSchema() {
  const Json width = {{"type", {"string", "number"}}};
  Json until = {{"type", "object"},
                {"properties", {{"half_width", width}}},
                {"required", {"half_width"}},
                {"additionalProperties", false}};
  const Json count = {{"type", "integer"}, {"minimum", 2}};
  Json rule = {{"type", "object"},
               {"properties", {{"min", count}, {"max", count}, {"until", std::move(until)}}},
               {"required", {"until"}},
               {"additionalProperties", false}};
  return {{"anyOf", Json::array({{{"type", "integer"}}, std::move(rule)})},
          {"description",
           "Number of runs of every cell, at least 1, or a rule: whole blocks are run until the intervals "
           "are narrow "
           "enough, for example {min: 2, max: 10, until: {half_width: 2%}}."}};
}

// Returns the schema of "checkpoint", which StudySpec does not have: the reader of study files converts the section
// to keys of "fixed".
Json CheckpointSchema() {
  const RunParameter& number = *FindStudyKey("checkpoint_keep");
  Json every = {
      {"type", {"string", "integer"}},
      {"description", "Time from one checkpoint to the next, such as 10m, or number of steps, such as 500."}};
  Json keep = ValueSchema(number);
  keep["description"] = absl::StrCat(number.help, ". Default: ", DefaultText(number), ".");
  return {{"type", "object"},
          {"properties", {{"every", std::move(every)}, {"keep", std::move(keep)}}},
          {"required", {"every"}},
          {"additionalProperties", false},
          {"description", "When checkpoints are written, and how many are kept, instead of keys of fixed."}};
}

Json FieldSchema(const FieldDescriptor& field) {
  const std::string& name = field.full_name();
  const Json values = {{"$ref", "#/definitions/values"}};
  if (name == "scalelab.v1.StudySpec.matrix") return {{"$ref", "#/definitions/axes"}};
  if (name == "scalelab.v1.StudySpec.zip")
    return {{"type", "array"}, {"items", {{"$ref", "#/definitions/zip"}}}};
  if (name == "scalelab.v1.StudySpec.exclude") return {{"type", "array"}, {"items", values}};
  if (name == "scalelab.v1.StudySpec.repeats") return RepeatsSchema();
  if (name == "scalelab.v1.StudySpec.notify")
    return {{"anyOf", Json::array({MessageSchema(*field.message_type()), {{"const", "none"}}})}};
  if (name == "scalelab.v1.Resources.time_seconds") return {{"type", {"string", "integer"}}};
  if (field.is_map())
    return {{"type", "object"}, {"additionalProperties", {{"type", {"string", "number", "boolean"}}}}};
  if (field.is_repeated()) {
    const Descriptor* message = field.message_type();
    Json items = {{"type", "string"}};
    if (message != nullptr) items = MessageSchema(*message);
    return {{"type", "array"}, {"items", std::move(items)}};
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return {{"type", "string"}};
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return {{"type", "number"}};
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumSchema(*field.enum_type());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (field.message_type()->full_name() == "google.protobuf.Struct") return values;
      return MessageSchema(*field.message_type());
    default:
      return {{"type", "integer"}};
  }
}

Json MessageSchema(const Descriptor& message) {
  Json properties = Json::object();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.name() == "adaptive_repeats") continue;  // part of "repeats"
    Json schema = FieldSchema(field);
    // Wrap the $ref in "allOf", because draft 7 ignores all other members of an object with a $ref.
    if (schema.contains("$ref")) schema = {{"allOf", Json::array({schema})}};
    if (!schema.contains("description")) schema["description"] = CommentOf(field);
    properties[field.name() == "time_seconds" ? "time" : field.name()] = std::move(schema);
  }
  return {{"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
}

}  // namespace

absl::StatusOr<std::string> StudySchema(const std::string& descriptors) {
  google::protobuf::FileDescriptorSet set;
  if (!set.ParseFromString(descriptors))
    return absl::InvalidArgumentError("the API's descriptors cannot be parsed");
  google::protobuf::DescriptorPool pool;
  for (const auto& file : set.file()) {
    if (pool.BuildFile(file) == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("the descriptor of ", file.name(), " is not valid"));
  }
  const Descriptor* study = pool.FindMessageTypeByName("scalelab.v1.StudySpec");
  if (study == nullptr)
    return absl::InvalidArgumentError("the API's descriptors have no scalelab.v1.StudySpec");
  Json schema = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"title", "scalelab study"},
                 {"$comment", "Generated by deploy/generate. Do not edit."}};
  schema.update(MessageSchema(*study));
  schema["properties"]["checkpoint"] = CheckpointSchema();
  schema["required"] = {"study"};
  schema["definitions"] = {
      {"values", ValuesOfKeys()}, {"axes", AxesOfKeys(false)}, {"zip", AxesOfKeys(true)}};
  return schema.dump(1) + "\n";
}

absl::StatusOr<std::vector<GeneratedFile>> GeneratedFiles(const std::string& descriptors) {
  absl::StatusOr<std::string> schema = StudySchema(descriptors);
  if (!schema.ok()) return schema.status();
  return std::vector<GeneratedFile>{{"proto/scalelab/v1/run_spec.proto", RunSpecProto()},
                                    {"docs/users/keys.md", KeysPage()},
                                    {"deploy/schema/study.schema.json", *std::move(schema)},
                                    {"worker/adapters/scalelab/run_parameters.json", RunParametersJson()}};
}

}  // namespace scalelab
