#include "study/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/lr_milestones.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace scalelab {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Struct;
using google::protobuf::Value;

constexpr size_t kLongestText = 4096;
// Maximum length of the name of a custom program's model or data set. It is limited because every cell
// stores the name.
constexpr size_t kLongestName = 100;

// Sections in the order of a study file.
constexpr absl::string_view kSections[] = {
    "study",   "fixed",  "matrix",     "zip",      "exclude",     "scaling",    "lr",
    "repeats", "seed",   "measure",    "order",    "baseline",    "resources",  "slurm",
    "retry",   "limits", "allocation", "priority", "on_unusable", "visibility", "notify"};

int SectionOf(absl::string_view field) {
  absl::string_view section = field.substr(0, field.find_first_of(".["));
  return std::find(std::begin(kSections), std::end(kSections), section) - std::begin(kSections);
}

// Returns RunSpec's field of a row of RunParameters(). Null while proto/scalelab/v1/run_spec.proto is older than the
// table: deploy/generate updates it.
const FieldDescriptor* FieldOf(const RunParameter& key) {
  static const auto& fields = *[] {
    auto* out = new std::vector<const FieldDescriptor*>;
    for (const RunParameter& k : RunParameters()) {
      out->push_back(v1::RunSpec::descriptor()->FindFieldByName(std::string(k.name)));
    }
    return out;
  }();
  return fields[&key - RunParameters().data()];
}

const Struct& MapOf(const RunParameter& key, const v1::RunSpec& spec) {
  return static_cast<const Struct&>(v1::RunSpec::GetReflection()->GetMessage(spec, FieldOf(key)));
}
Struct* MutableMapOf(const RunParameter& key, v1::RunSpec* spec) {
  return static_cast<Struct*>(v1::RunSpec::GetReflection()->MutableMessage(spec, FieldOf(key)));
}

std::optional<std::string> CheckText(absl::string_view name, absl::string_view text, size_t longest) {
  if (text.size() > longest) {
    return absl::StrCat(name, " has ", text.size(), " characters; at most ", longest, " are allowed");
  }
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7F) return absl::StrCat(name, " has a control character: ", Quote(text));
  }
  return std::nullopt;
}

std::optional<std::string> CheckNumber(absl::string_view name, double number, double min, double max) {
  if (std::isnan(number)) return absl::StrCat(name, " must be a number, not NaN");
  if (number < min) {
    return absl::StrCat(name, " must be at least ", ShowNumber(min), ", not ", ShowNumber(number));
  }
  if (number > max) {
    return absl::StrCat(name, " must be at most ", ShowNumber(max), ", not ", ShowNumber(number));
  }
  return std::nullopt;
}

// Checks the value of a name that the user has chosen in `params` or `env`.
std::optional<std::string> CheckOwnValue(const std::string& name, const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return CheckText(name, value.string_value(), kLongestText);
    case Value::kNumberValue:
      if (std::isfinite(value.number_value())) return std::nullopt;
      return absl::StrCat(name, " must be a finite number, not ", Show(value));
    case Value::kBoolValue:
      return std::nullopt;
    default:
      return absl::StrCat(name, " must be text, a number, true or false, not ", Show(value));
  }
}

}  // namespace

void Violations::Add(std::string field, std::string description) {
  if (list_.size() >= kMax) {
    ++dropped_;
    return;
  }
  list_.push_back({std::move(field), std::move(description)});
}

void Violations::CheckRange(std::string field, absl::string_view name, double value, double min, double max) {
  std::optional<std::string> problem = CheckNumber(name, value, min, max);
  if (problem) Add(std::move(field), *std::move(problem));
}

std::vector<FieldViolation> Violations::Take() {
  std::vector<FieldViolation> out;
  std::set<std::pair<std::string, std::string>> seen;
  for (FieldViolation& violation : list_) {
    if (seen.insert({violation.field, violation.description}).second) out.push_back(std::move(violation));
  }
  list_.clear();
  std::stable_sort(out.begin(), out.end(), [](const FieldViolation& a, const FieldViolation& b) {
    return SectionOf(a.field) < SectionOf(b.field);
  });
  if (dropped_ > 0) out.push_back({"", absl::StrCat("and ", WithCommas(dropped_), " more like these")});
  return out;
}

std::string Quote(absl::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "'";
  size_t end = std::min(text.size(), kShown);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  for (unsigned char c : text.substr(0, end)) out += c < 0x20 || c == 0x7F ? '?' : static_cast<char>(c);
  if (end < text.size()) out += "...";
  return out + "'";
}

std::string Show(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return Quote(value.string_value());
    case Value::kNumberValue:
      return ShowNumber(value.number_value());
    case Value::kBoolValue:
      return value.bool_value() ? "true" : "false";
    case Value::kListValue:
      return "a list";
    case Value::kStructValue:
      return "a mapping";
    default:
      return "nothing";
  }
}

std::string WithCommas(int64_t number) {
  std::string digits = absl::StrCat(number);
  size_t first = number < 0 ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string UnknownName(absl::string_view kind, absl::string_view word,
                        const std::vector<absl::string_view>& known) {
  std::string near = Nearest(word, known);
  return absl::StrCat("unknown ", kind, " ", Quote(word), "; ",
                      near.empty() ? "" : absl::StrCat("did you mean '", near, "'? "),
                      "known: ", absl::StrJoin(known, ", "));
}

std::string UnknownKey(absl::string_view word, const std::vector<absl::string_view>& known) {
  std::string near = Nearest(word, known);
  if (near.empty()) return UnknownName("key", word, known);
  return absl::StrCat("unknown key ", Quote(word), "; did you mean '", near, "'?");
}

std::optional<std::string> CheckValue(const GridKey& of, const Value& value, bool any_choice) {
  const RunParameter& key = *of.parameter;
  auto wrong_type = [&](absl::string_view expected) {
    return absl::StrCat(key.name, " must be ", expected, ", not ", Show(value));
  };
  switch (key.type) {
    case ParameterType::kString: {
      if (key.name ==
          "lr_milestones") {  // "" is allowed: a matrix or zip may also have schedules without milestones
        const bool right =
            value.kind_case() == Value::kStringValue && ParseLrMilestones(value.string_value()).has_value();
        return right ? std::nullopt : std::optional(wrong_type(kLrMilestonesForm));
      }
      if (value.kind_case() != Value::kStringValue) return wrong_type("text");
      const std::string& text = value.string_value();
      if (text.empty()) return absl::StrCat(key.name, " must not be empty");
      if (!key.choices.empty() && !any_choice &&
          std::find(key.choices.begin(), key.choices.end(), text) == key.choices.end()) {
        return UnknownName(key.name, text, key.choices);
      }
      return CheckText(key.name, text, key.choices.empty() ? kLongestText : kLongestName);
    }
    case ParameterType::kInt32:
    case ParameterType::kInt64: {
      if (value.kind_case() != Value::kNumberValue) return wrong_type("a whole number");
      double number = value.number_value();
      if (std::isfinite(number) && number != std::floor(number)) return wrong_type("a whole number");
      return CheckNumber(key.name, number, key.min, key.max);
    }
    case ParameterType::kDouble:
      if (value.kind_case() != Value::kNumberValue) return wrong_type("a number");
      return CheckNumber(key.name, value.number_value(), key.min, key.max);
    case ParameterType::kBool:
      if (value.kind_case() != Value::kBoolValue) return wrong_type("true or false");
      return std::nullopt;
    case ParameterType::kStringList: {
      if (value.kind_case() != Value::kListValue) return wrong_type("a list of texts");
      for (int i = 0; i < value.list_value().values_size(); ++i) {
        const Value& word = value.list_value().values(i);
        if (word.kind_case() == Value::kStringValue) continue;
        return absl::StrCat(key.name, " must be a list of texts, but its word ", i + 1, " is ", Show(word),
                            "; put the word in quotes");
      }
      if (value.list_value().values().empty() || value.list_value().values(0).string_value().empty()) {
        return absl::StrCat(key.name, " must start with the name of a program");
      }
      for (const Value& v : value.list_value().values()) {
        // Arguments may contain anything but NUL, which cannot be passed to a program.
        if (v.string_value().find('\0') != std::string::npos)
          return absl::StrCat(key.name, " has a NUL character");
      }
      return std::nullopt;
    }
    case ParameterType::kMap:
      return CheckOwnValue(of.name, value);
  }
  return std::nullopt;
}

std::string Fingerprint(const Value& value) {
  switch (value.kind_case()) {
    case Value::kStringValue:
      return "s" + value.string_value();
    case Value::kNumberValue: {
      double number = value.number_value() == 0 ? 0 : value.number_value();  // -0 equals 0
      return "n" + std::string(reinterpret_cast<const char*>(&number), sizeof number);
    }
    case Value::kBoolValue:
      return value.bool_value() ? "b1" : "b0";
    case Value::kListValue: {
      std::string out = "l";
      for (const Value& v : value.list_value().values()) {
        std::string element = Fingerprint(v);
        absl::StrAppend(&out, element.size(), ":", element);
      }
      return out;
    }
    case Value::kStructValue:
      return "m";  // no key accepts a mapping, so it is refused before values are compared
    default:
      return "0";
  }
}

bool SameValue(const Value& a, const Value& b) {
  if (a.kind_case() != b.kind_case()) return false;
  if (a.kind_case() == Value::kStringValue) return a.string_value() == b.string_value();
  if (a.kind_case() == Value::kNumberValue) return a.number_value() == b.number_value();
  return Fingerprint(a) == Fingerprint(b);
}

void SetField(const GridKey& of, const Value& value, v1::RunSpec* spec) {
  const RunParameter& key = *of.parameter;
  const FieldDescriptor* field = FieldOf(key);
  const auto* reflection = v1::RunSpec::GetReflection();
  switch (key.type) {
    case ParameterType::kString:
      reflection->SetString(spec, field,
                            value.kind_case() == Value::kStringValue ? value.string_value() : Show(value));
      return;
    case ParameterType::kInt32:
    case ParameterType::kInt64: {
      double number = value.number_value();
      bool usable = number >= key.min && number <= key.max;
      if (key.type == ParameterType::kInt32) {
        reflection->SetInt32(spec, field, usable ? static_cast<int32_t>(number) : 0);
      } else {
        reflection->SetInt64(spec, field, usable ? static_cast<int64_t>(number) : 0);
      }
      return;
    }
    case ParameterType::kDouble:
      reflection->SetDouble(spec, field, value.number_value());
      return;
    case ParameterType::kBool:
      reflection->SetBool(spec, field, value.bool_value());
      return;
    case ParameterType::kStringList:
      reflection->ClearField(spec, field);
      for (const Value& v : value.list_value().values()) reflection->AddString(spec, field, v.string_value());
      return;
    case ParameterType::kMap:
      (*MutableMapOf(key, spec)->mutable_fields())[of.member] = value;
      return;
  }
}

bool FieldEquals(const GridKey& of, const Value& value, const v1::RunSpec& spec) {
  const RunParameter& key = *of.parameter;
  const FieldDescriptor* field = FieldOf(key);
  const auto* reflection = v1::RunSpec::GetReflection();
  switch (key.type) {
    case ParameterType::kString: {
      std::string scratch;
      return reflection->GetStringReference(spec, field, &scratch) == value.string_value();
    }
    case ParameterType::kInt32:
    case ParameterType::kInt64:
      return value.number_value() == (key.type == ParameterType::kInt32
                                          ? reflection->GetInt32(spec, field)
                                          : static_cast<double>(reflection->GetInt64(spec, field)));
    case ParameterType::kDouble:
      return reflection->GetDouble(spec, field) == value.number_value();
    case ParameterType::kBool:
      return reflection->GetBool(spec, field) == value.bool_value();
    case ParameterType::kStringList: {
      const auto& wanted = value.list_value().values();
      if (reflection->FieldSize(spec, field) != wanted.size()) return false;
      for (int i = 0; i < wanted.size(); ++i) {
        if (reflection->GetRepeatedString(spec, field, i) != wanted[i].string_value()) return false;
      }
      return true;
    }
    case ParameterType::kMap: {
      const auto& fields = MapOf(key, spec).fields();
      const auto member = fields.find(of.member);
      return member != fields.end() && SameValue(member->second, value);
    }
  }
  return false;
}

void SetDefaults(v1::RunSpec* spec) {
  const auto* reflection = v1::RunSpec::GetReflection();
  for (const RunParameter& parameter : RunParameters()) {
    const FieldDescriptor* field = FieldOf(parameter);
    if (const auto* text = std::get_if<absl::string_view>(&parameter.default_value)) {
      reflection->SetString(spec, field, std::string(*text));
    } else if (const auto* flag = std::get_if<bool>(&parameter.default_value)) {
      reflection->SetBool(spec, field, *flag);
    } else if (const auto* number = std::get_if<double>(&parameter.default_value)) {
      if (parameter.type == ParameterType::kDouble) {
        reflection->SetDouble(spec, field, *number);
      } else if (parameter.type == ParameterType::kInt32) {
        reflection->SetInt32(spec, field, static_cast<int32_t>(*number));
      } else {
        reflection->SetInt64(spec, field, static_cast<int64_t>(*number));
      }
    }
  }
}

std::string FieldText(const RunParameter& key, const v1::RunSpec& spec) {
  const FieldDescriptor* field = FieldOf(key);
  const auto* reflection = v1::RunSpec::GetReflection();
  switch (key.type) {
    case ParameterType::kString:
      return reflection->GetString(spec, field);
    case ParameterType::kInt32:
      return absl::StrCat(reflection->GetInt32(spec, field));
    case ParameterType::kInt64:
      return absl::StrCat(reflection->GetInt64(spec, field));
    case ParameterType::kDouble:
      return ShowNumber(reflection->GetDouble(spec, field));
    case ParameterType::kBool:
      return reflection->GetBool(spec, field) ? "true" : "false";
    case ParameterType::kStringList:
      return absl::StrCat(reflection->FieldSize(spec, field), " texts");
    case ParameterType::kMap:
      return absl::StrCat(MapOf(key, spec).fields_size(), " names");
  }
  return "";
}

void ClearField(const RunParameter& key, v1::RunSpec* spec) {
  v1::RunSpec::GetReflection()->ClearField(spec, FieldOf(key));
}

void ClearField(const GridKey& key, v1::RunSpec* spec) {
  if (key.parameter->type != ParameterType::kMap) return ClearField(*key.parameter, spec);
  MutableMapOf(*key.parameter, spec)->mutable_fields()->erase(key.member);
}

std::string Fingerprint(const v1::RunSpec& spec) {
  std::string text;
  google::protobuf::io::StringOutputStream stream(&text);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);  // otherwise the order of maps is arbitrary
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return text;
}

bool HasField(const RunParameter& key, const v1::RunSpec& spec) {
  const FieldDescriptor* field = FieldOf(key);
  const auto* reflection = v1::RunSpec::GetReflection();
  return field->is_repeated() ? reflection->FieldSize(spec, field) > 0 : reflection->HasField(spec, field);
}

}  // namespace scalelab
