#include "server/cells/json_writer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::ListValue;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::Struct;
using google::protobuf::Value;

class Writer {
 public:
  // `full`: writes fields with default values too, like ToFullJson.
  explicit Writer(bool full) : full_(full) {}

  // Write and the private functions return false if the message needs protobuf's converter.
  bool Write(const Message& message);
  std::string Take() { return std::move(out_); }

 private:
  bool Field(const Message& message, const FieldDescriptor& field);
  // Writes a field, or element `i` of a repeated one.
  bool One(const Message& message, const FieldDescriptor& field, int i);
  bool Write(const Struct& object);
  bool Write(const Value& value);
  bool Text(const std::string& text);
  bool Number(double number);

  const bool full_;
  std::string out_;
};

// Returns whether protobuf and nlohmann::json write the character in the same way.
bool IsPlain(char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>'; }

bool Writer::Text(const std::string& text) {
  if (!std::all_of(text.begin(), text.end(), IsPlain)) return false;
  absl::StrAppend(&out_, "\"", text, "\"");
  return true;
}

// protobuf writes the shorter of two forms that reads back as the number.
bool Writer::Number(double number) {
  if (!std::isfinite(number)) return false;
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", number);
  if (std::strtod(text, nullptr) != number) std::snprintf(text, sizeof(text), "%.17g", number);
  const bool whole = std::string(text).find_first_of(".e") == std::string::npos;
  if (full_ || (whole && number != 0)) {
    out_ += text;
  } else {
    out_ += whole ? "0" : nlohmann::json(number).dump();
  }
  return true;
}

bool Writer::Write(const Value& value) {
  switch (value.kind_case()) {
    case Value::kNullValue:
      out_ += "null";
      return true;
    case Value::kNumberValue:
      return Number(value.number_value());
    case Value::kStringValue:
      return Text(value.string_value());
    case Value::kBoolValue:
      out_ += value.bool_value() ? "true" : "false";
      return true;
    case Value::kStructValue:
      return Write(value.struct_value());
    case Value::kListValue:
      out_ += '[';
      for (int i = 0; i < value.list_value().values_size(); ++i) {
        if (i > 0) out_ += ',';
        if (!Write(value.list_value().values(i))) return false;
      }
      out_ += ']';
      return true;
    default:
      return false;
  }
}

bool Writer::Write(const Struct& object) {
  std::vector<const google::protobuf::Map<std::string, Value>::value_type*> fields;
  for (const auto& field : object.fields()) fields.push_back(&field);
  std::sort(fields.begin(), fields.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  out_ += '{';
  for (const auto* field : fields) {
    if (field != fields.front()) out_ += ',';
    if (!Text(field->first)) return false;
    out_ += ':';
    if (!Write(field->second)) return false;
  }
  out_ += '}';
  return true;
}

bool Writer::One(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING: {
      if (field.type() == FieldDescriptor::TYPE_BYTES) return false;
      std::string scratch;
      return Text(repeated ? reflection.GetRepeatedStringReference(message, &field, i, &scratch)
                           : reflection.GetStringReference(message, &field, &scratch));
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      out_ +=
          (repeated ? reflection.GetRepeatedBool(message, &field, i) : reflection.GetBool(message, &field))
              ? "true"
              : "false";
      return true;
    case FieldDescriptor::CPPTYPE_INT32:
      absl::StrAppend(&out_, repeated ? reflection.GetRepeatedInt32(message, &field, i)
                                      : reflection.GetInt32(message, &field));
      return true;
    case FieldDescriptor::CPPTYPE_INT64:
      absl::StrAppend(
          &out_, "\"",
          repeated ? reflection.GetRepeatedInt64(message, &field, i) : reflection.GetInt64(message, &field),
          "\"");
      return true;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(repeated ? reflection.GetRepeatedDouble(message, &field, i)
                             : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = repeated ? reflection.GetRepeatedEnumValue(message, &field, i)
                                  : reflection.GetEnumValue(message, &field);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      if (value == nullptr) return false;
      absl::StrAppend(&out_, "\"", value->name(), "\"");
      return true;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (full_) return false;
      return Write(repeated ? reflection.GetRepeatedMessage(message, &field, i)
                            : reflection.GetMessage(message, &field));
    default:
      return false;
  }
}

bool Writer::Field(const Message& message, const FieldDescriptor& field) {
  absl::StrAppend(&out_, "\"", field.name(), "\":");
  if (!field.is_repeated()) return One(message, field, 0);
  out_ += '[';
  for (int i = 0, size = message.GetReflection()->FieldSize(message, &field); i < size; ++i) {
    if (i > 0) out_ += ',';
    if (!One(message, field, i)) return false;
  }
  out_ += ']';
  return true;
}

bool Writer::Write(const Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  if (&type == Struct::descriptor()) return Write(static_cast<const Struct&>(message));
  if (&type == Value::descriptor()) return Write(static_cast<const Value&>(message));
  if (absl::StartsWith(type.full_name(), "google.protobuf.")) return false;
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  if (full_) {
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* field = type.field(i);
      const bool always = field->is_repeated() ? !field->is_map() : !field->has_presence();
      if (always || reflection.HasField(message, field)) fields.push_back(field);
    }
  } else {
    reflection.ListFields(message, &fields);
    std::sort(fields.begin(), fields.end(),
              [](const auto* a, const auto* b) { return a->name() < b->name(); });
  }
  out_ += '{';
  for (const FieldDescriptor* field : fields) {
    if (field->is_map()) return false;
    if (field != fields.front()) out_ += ',';
    if (!Field(message, *field)) return false;
  }
  out_ += '}';
  return true;
}

std::optional<std::string> Written(const Message& message, bool full) {
  Writer writer(full);
  if (!writer.Write(message)) return std::nullopt;
  return writer.Take();
}

}  // namespace

std::optional<std::string> WriteJson(const Message& message) { return Written(message, false); }

std::optional<std::string> WriteFullJson(const Message& message) { return Written(message, true); }

}  // namespace scalelab::server
