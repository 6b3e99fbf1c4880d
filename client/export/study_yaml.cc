#include "client/export/study_yaml.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "catalog/enum_word.h"
#include "client/output/text.h"
#include "google/protobuf/descriptor.h"

namespace scalelab::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Struct;
using google::protobuf::Value;
using scalelab::v1::Axis;
using scalelab::v1::StudySpec;

using YamlEntries = std::vector<std::pair<std::string, std::string>>;  // key and flow text

// Returns whether a text needs no quotes in YAML: it starts like a name or a path, and a parser cannot read
// it as a value of another type.
bool IsPlain(const std::string& text) {
  if (text.empty() || (!absl::ascii_isalpha(text[0]) && text[0] != '/' && text[0] != '_')) return false;
  const auto usual = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("_-./+=", c); };
  if (!std::all_of(text.begin(), text.end(), usual)) return false;
  const std::string lower = absl::AsciiStrToLower(text);
  return lower != "true" && lower != "false" && lower != "null" && lower != "yes" && lower != "no" &&
         lower != "on" && lower != "off";
}

std::string YamlText(const std::string& text) {
  if (IsPlain(text)) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

std::string FlowMap(const YamlEntries& entries) {
  return absl::StrCat("{", absl::StrJoin(entries, ", ", absl::PairFormatter(": ")), "}");
}

std::string FlowValue(const Value& value);

std::string FlowList(const google::protobuf::RepeatedPtrField<Value>& values) {
  return absl::StrCat(
      "[", absl::StrJoin(values, ", ", [](std::string* out, const Value& v) { out->append(FlowValue(v)); }),
      "]");
}

YamlEntries EntriesOf(const Struct& values) {
  YamlEntries entries;
  for (const auto& [key, value] : values.fields()) entries.emplace_back(YamlText(key), FlowValue(value));
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::string FlowValue(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return YamlText(value.string_value());
    case Value::kListValue:
      return FlowList(value.list_value().values());
    case Value::kStructValue:
      return FlowMap(EntriesOf(value.struct_value()));
    case Value::kNumberValue:
      return Exact(value.number_value());
    default:
      return ValueText(value);  // true, false or null
  }
}

template <typename Axes>
YamlEntries EntriesOfAxes(const Axes& axes) {
  YamlEntries entries;
  for (const Axis& axis : axes) entries.emplace_back(YamlText(axis.key()), FlowList(axis.values()));
  return entries;
}

YamlEntries EntriesOf(const Message& message);

// Returns the text of one value of a field. `index` is negative if the field is not repeated.
std::string FlowField(const Message& message, const FieldDescriptor* field, int index) {
  const auto* values = message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return YamlText(one ? values->GetString(message, field)
                          : values->GetRepeatedString(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return values->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(values->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(values->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Exact(values->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumWord(
          (one ? values->GetEnum(message, field) : values->GetRepeatedEnum(message, field, index))->name());
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      const Message& child =
          one ? values->GetMessage(message, field) : values->GetRepeatedMessage(message, field, index);
      const auto* fields = dynamic_cast<const Struct*>(&child);
      return FlowMap(fields != nullptr ? EntriesOf(*fields) : EntriesOf(child));
    }
    default:
      return "null";  // StudySpec has no fields of other types
  }
}

// Returns a text such as "{min: 2, max: 10, until: {half_width: 0.02}}".
std::string AdaptiveRepeatsText(const scalelab::v1::AdaptiveRepeats& repeats) {
  YamlEntries entries;
  if (repeats.min() != 0) entries.emplace_back("min", absl::StrCat(repeats.min()));
  if (repeats.max() != 0) entries.emplace_back("max", absl::StrCat(repeats.max()));
  entries.emplace_back("until", absl::StrCat("{half_width: ", Exact(repeats.half_width()), "}"));
  return FlowMap(entries);
}

std::string FlowMapField(const Message& message, const FieldDescriptor* field) {
  std::map<std::string, std::string> sorted;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, field, i);
    const auto* type = entry.GetDescriptor();
    sorted[YamlText(entry.GetReflection()->GetString(entry, type->field(0)))] =
        FlowField(entry, type->field(1), -1);
  }
  return FlowMap({sorted.begin(), sorted.end()});
}

YamlEntries EntriesOf(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  YamlEntries entries;
  for (const FieldDescriptor* field : fields) {
    if (field->name() == "time_seconds") {
      const int64_t seconds = message.GetReflection()->GetInt64(message, field);
      entries.emplace_back(
          "time", absl::StrFormat("\"%02d:%02d:%02d\"", seconds / 3600, seconds / 60 % 60, seconds % 60));
    } else if (field->is_map()) {
      entries.emplace_back(field->name(), FlowMapField(message, field));
    } else if (field->is_repeated()) {
      std::vector<std::string> items;
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i)
        items.push_back(FlowField(message, field, i));
      entries.emplace_back(field->name(), absl::StrCat("[", absl::StrJoin(items, ", "), "]"));
    } else {
      entries.emplace_back(field->name(), FlowField(message, field, -1));
    }
  }
  return entries;
}

std::string Block(const std::string& key, const YamlEntries& entries) {
  return absl::StrCat(key, ":\n", absl::StrJoin(entries, "", [](std::string* out, const auto& entry) {
                        absl::StrAppend(out, "  ", entry.first, ": ", entry.second, "\n");
                      }));
}

}  // namespace

std::string StudyYaml(const StudySpec& spec) {
  // Write sections with many entries as blocks, and each of the other sections as one line.
  StudySpec rest = spec;
  for (const char* name : {"fixed", "matrix", "zip", "exclude", "adaptive_repeats"})
    rest.GetReflection()->ClearField(&rest, StudySpec::descriptor()->FindFieldByName(name));
  rest.clear_study();
  std::string out = absl::StrCat("study: ", YamlText(spec.study()), "\n");
  if (spec.fixed().fields_size() > 0) absl::StrAppend(&out, Block("fixed", EntriesOf(spec.fixed())));
  if (spec.matrix_size() > 0) absl::StrAppend(&out, Block("matrix", EntriesOfAxes(spec.matrix())));
  if (spec.zip_size() > 0) absl::StrAppend(&out, "zip:\n");
  for (const auto& group : spec.zip())
    absl::StrAppend(&out, "  - ", FlowMap(EntriesOfAxes(group.axes())), "\n");
  if (spec.exclude_size() > 0) absl::StrAppend(&out, "exclude:\n");
  for (const Struct& cell : spec.exclude()) absl::StrAppend(&out, "  - ", FlowMap(EntriesOf(cell)), "\n");
  if (spec.has_adaptive_repeats())
    absl::StrAppend(&out, "repeats: ", AdaptiveRepeatsText(spec.adaptive_repeats()), "\n");
  for (const auto& [key, text] : EntriesOf(rest)) absl::StrAppend(&out, key, ": ", text, "\n");
  return out;
}

}  // namespace scalelab::client
