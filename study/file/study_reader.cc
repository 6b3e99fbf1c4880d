#include "study/file/study_reader.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "catalog/enum_word.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "study/file/time_limit.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Struct;
using google::protobuf::Value;

// The section that the reader converts to keys of `fixed`. StudySpec has no field for it.
constexpr absl::string_view kCheckpoint = "checkpoint";

// Returns the smallest value of a field of the specification in which 0 means "the default": a 0 written in a file is an
// error for such a field. Returns 0 for other fields.
int LeastIfZeroIsDefault(absl::string_view field) {
  constexpr std::pair<absl::string_view, int> kLeast[] = {{"repeats", 1},
                                                          {"repeats.min", 2},
                                                          {"repeats.max", 2},
                                                          {"scaling.global_batch", 1},
                                                          {"scaling.batch_per_rank", 1},
                                                          {"lr.reference_batch", 1},
                                                          {"resources.cpus_per_rank", 1},
                                                          {"noise_guard.calibration_ms", 10}};
  for (const auto& [name, least] : kLeast) {
    if (field == name) return least;
  }
  return 0;
}

bool ParseBool(absl::string_view text, bool* value) {
  *value = text == "true" || text == "True" || text == "TRUE";
  return *value || text == "false" || text == "False" || text == "FALSE";
}

bool ParseNumber(absl::string_view text, double* value) {
  std::string lower = absl::AsciiStrToLower(text);
  if (lower == ".nan") {
    *value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  absl::string_view unsigned_part = lower;
  if (!lower.empty() && (lower[0] == '-' || lower[0] == '+')) unsigned_part.remove_prefix(1);
  if (unsigned_part == ".inf") {
    *value = std::numeric_limits<double>::infinity() * (lower[0] == '-' ? -1 : 1);
    return true;
  }
  // SimpleAtod also accepts "inf", "nan" and hexadecimal numbers, which are text in YAML 1.2.
  return unsigned_part.find_first_not_of("0123456789.e+-") == absl::string_view::npos &&
         absl::SimpleAtod(text, value);
}

class StudyReader {
 public:
  StudyReader(std::string directory, StudyFile* file) : directory_(std::move(directory)), file_(file) {}

  std::vector<Problem> Read(const YamlNode& root) {
    file_->positions[""] = root.at;
    ReadMessage(root, "", &file_->spec);
    // Later than `fixed`, `matrix` and `zip`, which may have the same keys.
    if (checkpoint_ != nullptr) ReadCheckpoint(*checkpoint_);
    return std::move(problems_);
  }

 private:
  void Add(Position at, const std::string& field, std::string sentence) {
    problems_.push_back({at, field, std::move(sentence)});
  }

  static std::string Path(const std::string& parent, absl::string_view name) {
    return parent.empty() ? std::string(name) : absl::StrCat(parent, ".", name);
  }

  // Returns the entries of a mapping without duplicate keys, and records their positions. Returns no entries
  // for an empty section.
  std::vector<const YamlEntry*> Entries(const YamlNode& node, Position at, const std::string& path,
                                        absl::string_view what) {
    std::vector<const YamlEntry*> out;
    if (node.kind == YamlNode::kNull) return out;
    if (node.kind != YamlNode::kMap) {
      Add(at, path, absl::StrCat(what, " must be a mapping of keys to values, not ", ShowNode(node)));
      return out;
    }
    std::unordered_map<std::string, int> lines;
    for (const YamlEntry& entry : node.entries) {
      std::string field = Path(path, entry.key);
      auto [it, fresh] = lines.emplace(entry.key, entry.at.line);
      if (!fresh) {
        Add(entry.at, field,
            absl::StrCat("duplicate key ", Quote(entry.key), " (first on line ", it->second, ")"));
        continue;
      }
      file_->positions[field] = entry.at;
      out.push_back(&entry);
    }
    return out;
  }

  // Returns the items of a list, and records their positions.
  std::vector<YamlPtr> Items(const YamlNode& node, Position at, const std::string& path,
                             absl::string_view what, absl::string_view hint = "") {
    if (node.kind == YamlNode::kNull) return {};
    if (node.kind != YamlNode::kList) {
      Add(at, path, absl::StrCat(what, " must be a list, not ", ShowNode(node), hint));
      return {};
    }
    for (size_t i = 0; i < node.items.size(); ++i)
      file_->positions[absl::StrCat(path, "[", i, "]")] = node.items[i]->at;
    return node.items;
  }

  // Reads a mapping whose keys are the fields of a message: the whole file, or a section with typed fields.
  void ReadMessage(const YamlNode& node, const std::string& path, Message* message) {
    const auto* descriptor = message->GetDescriptor();
    Position at = file_->positions[path];
    for (const YamlEntry* entry : Entries(node, at, path, path.empty() ? "a study file" : path)) {
      std::string field_path = Path(path, entry->key);
      if (field_path == kCheckpoint) {
        checkpoint_ = entry;
        continue;
      }
      const FieldDescriptor* field =
          descriptor->FindFieldByName(entry->key == "time" ? "time_seconds" : entry->key);
      if (field == nullptr || entry->key == "time_seconds" || entry->key == "adaptive_repeats") {
        std::vector<absl::string_view> known;
        for (int i = 0; i < descriptor->field_count(); ++i) {
          const std::string& name = descriptor->field(i)->name();
          if (name == "adaptive_repeats") continue;  // written as a mapping under "repeats"
          known.push_back(name == "time_seconds" ? absl::string_view("time") : absl::string_view(name));
        }
        if (path.empty()) known.push_back(kCheckpoint);
        Add(entry->at, field_path, UnknownKey(entry->key, known));
        continue;
      }
      ReadField(*entry, field_path, field, message);
    }
  }

  void ReadField(const YamlEntry& entry, const std::string& path, const FieldDescriptor* field,
                 Message* message) {
    const YamlNode& node = *entry.value;
    const auto* reflection = message->GetReflection();
    v1::StudySpec& spec = file_->spec;
    if (path == "matrix") return ReadMatrix(node, entry.at, path, spec.mutable_matrix());
    if (path == "zip") return ReadZip(node, entry.at);
    if (path == "exclude") return ReadExclude(node, entry.at);
    if (path == "repeats" && node.kind == YamlNode::kMap)
      return ReadRepeats(node, entry.at, spec.mutable_adaptive_repeats());
    if (path == "slurm.sbatch_options") return ReadOptions(node, entry.at, path);
    if (path == "resources.time") return ReadTime(node, entry.at, path);
    if (path == "retry.on") return ReadCauses(node, entry.at, path);
    // `notify: none` switches off the default of the user's configuration.
    if (path == "notify" && node.kind == YamlNode::kScalar && !node.quoted && node.text == "none") return;
    if (path == "notify.on") return ReadOccasions(node, entry.at, path);
    if (path == "measure.extract") return ReadExtract(node, entry.at, path);
    if (field->message_type() != nullptr) {
      Message* child = reflection->MutableMessage(message, field);
      if (field->message_type() == Struct::descriptor()) {
        return ReadStruct(node, entry.at, path, static_cast<Struct*>(child));
      }
      return ReadMessage(node, path, child);
    }
    ReadScalar(node, entry, path, field, message);
  }

  void ReadScalar(const YamlNode& node, const YamlEntry& entry, const std::string& path,
                  const FieldDescriptor* field, Message* message) {
    const auto* reflection = message->GetReflection();
    auto wrong = [&](absl::string_view expected) {
      Add(entry.at, path, absl::StrCat(entry.key, " must be ", expected, ", not ", ShowNode(node)));
    };
    bool scalar = node.kind == YamlNode::kScalar;
    bool plain = scalar && !node.quoted;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (!scalar) return wrong("text");
        return reflection->SetString(message, field, node.text);
      case FieldDescriptor::CPPTYPE_BOOL: {
        bool value = false;
        if (!plain || !ParseBool(node.text, &value)) return wrong("true or false");
        return reflection->SetBool(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = 0;
        if (!plain || !ParseNumber(node.text, &value)) return wrong("a number");
        if (value == 0 && (path == "lr.base" || path == "noise_guard.interval_seconds"))
          return wrong("more than 0");
        return reflection->SetDouble(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64: {
        bool small = field->cpp_type() == FieldDescriptor::CPPTYPE_INT32;
        int64_t value = 0;
        if (!plain || !absl::SimpleAtoi(node.text, &value)) return wrong("a whole number");
        if (small && value != static_cast<int32_t>(value)) {
          return wrong("a whole number from -2147483648 to 2147483647");
        }
        if (const int least = LeastIfZeroIsDefault(path); value == 0 && least > 0) {
          return Add(entry.at, path, absl::StrCat(entry.key, " must be at least ", least, ", not 0"));
        }
        return small ? reflection->SetInt32(message, field, value)
                     : reflection->SetInt64(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReadEnum(node, entry, path, field, message);
      default:
        return;  // StudySpec has no fields of other types
    }
  }

  void ReadEnum(const YamlNode& node, const YamlEntry& entry, const std::string& path,
                const FieldDescriptor* field, Message* message) {
    const EnumDescriptor* type = field->enum_type();
    std::vector<std::string> words;
    for (int i = 1; i < type->value_count(); ++i)
      words.push_back(EnumWord(type->value(i)->name()));  // 0 is unspecified
    for (size_t i = 0; i < words.size(); ++i) {
      if (node.kind == YamlNode::kScalar && node.text == words[i]) {
        return message->GetReflection()->SetEnum(message, field, type->value(i + 1));
      }
    }
    if (node.kind != YamlNode::kScalar) {
      return Add(entry.at, path, absl::StrCat(entry.key, " must be text, not ", ShowNode(node)));
    }
    Add(entry.at, path, UnknownName(entry.key, node.text, {words.begin(), words.end()}));
  }

  // Returns whether all scalars of the key are text, as for environment variables: there 1.10 is not
  // the number 1.1.
  static bool IsText(absl::string_view name) {
    const GridKey key = FindGridKey(name);
    if (key.parameter == nullptr) return false;
    const ParameterType type = key.parameter->type;
    return type == ParameterType::kString || type == ParameterType::kStringList ||
           key.parameter->name == "env";
  }

  // Returns whether the key is a mapping whose names the user chooses: params, env.
  static bool IsOwnMap(absl::string_view name) {
    const RunParameter* key = FindStudyKey(name);
    return key != nullptr && key->type == ParameterType::kMap;
  }

  // Adds a problem if `number`, a parameter of the user's own, is not exactly the whole number that the file contains.
  // The ranges of all other keys are so small that a double is exact.
  void CheckDigits(const YamlNode& node, double number, absl::string_view name, const std::string& path) {
    absl::string_view digits = node.text;
    if (!absl::StartsWith(name, "params.") || digits.find_first_of(".eE") != absl::string_view::npos) return;
    if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
    while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
    if (digits == absl::StrFormat("%.0f", std::abs(number))) return;
    const auto found = file_->positions.find(path);
    Add(found == file_->positions.end() ? node.at : found->second, path,
        absl::StrCat(name, " ", Quote(node.text),
                     " is a whole number that cannot be stored exactly; write it in quotes, as text"));
  }

  // Reads a scalar, list or mapping without a fixed type, which is the value of the field `path` or a part of it.
  Value ReadValue(const YamlNode& node, absl::string_view name, const std::string& path) {
    const bool text = IsText(name);
    Value value;
    double number = 0;
    bool boolean = false;
    switch (node.kind) {
      case YamlNode::kNull:
        value.set_null_value(google::protobuf::NULL_VALUE);
        break;
      case YamlNode::kScalar:
        if (name == "data_dir" || (name == "command" && IsBeside(node.text))) {
          value.set_string_value(Absolute(node.text));
        } else if (!node.quoted && !text && ParseBool(node.text, &boolean)) {
          value.set_bool_value(boolean);
        } else if (!node.quoted && !text && ParseNumber(node.text, &number)) {
          CheckDigits(node, number, name, path);
          value.set_number_value(number);
        } else {
          value.set_string_value(node.text);
        }
        break;
      case YamlNode::kList:
        value.mutable_list_value();
        for (const YamlPtr& item : node.items)
          *value.mutable_list_value()->add_values() = ReadValue(*item, name, path);
        break;
      case YamlNode::kMap:
        value.mutable_struct_value();  // No key accepts a mapping: the checks need only its kind.
        break;
    }
    return value;
  }

  // Returns whether a word of a command names a file relative to the study file. It is made absolute because
  // ranks start in another directory.
  static bool IsBeside(const std::string& word) { return word.starts_with("./") || word.starts_with("../"); }

  std::string Absolute(const std::string& path) const {
    if (path.empty() || path[0] == '/' || directory_.empty()) return path;
    return (std::filesystem::path(directory_) / path).lexically_normal().string();
  }

  void ReadStruct(const YamlNode& node, Position at, const std::string& path, Struct* out) {
    std::unordered_map<std::string, int> lines;
    const auto read = [&](const YamlEntry& entry, const std::string& name) {
      const auto [first, fresh] = lines.emplace(name, entry.at.line);
      if (!fresh)
        return Add(entry.at, Path(path, name),
                   absl::StrCat("duplicate key ", Quote(name), " (first on line ", first->second, ")"));
      (*out->mutable_fields())[name] = ReadValue(*entry.value, name, Path(path, name));
    };
    for (const YamlEntry* entry : Entries(node, at, path, path)) {
      if (!IsOwnMap(entry->key)) {
        read(*entry, entry->key);
        continue;
      }
      // Read params: {dropout: 0.1} like params.dropout: 0.1.
      for (const YamlEntry* own : Entries(*entry->value, entry->at, Path(path, entry->key), entry->key))
        read(*own, Path(entry->key, own->key));
    }
  }

  template <typename Axes>
  void ReadMatrix(const YamlNode& node, Position at, const std::string& path, Axes* axes) {
    for (const YamlEntry* entry : Entries(node, at, path, path)) {
      if (!IsOwnMap(entry->key)) {
        ReadAxis(*entry, entry->key, Path(path, entry->key), axes);
        continue;
      }
      for (const YamlEntry* own : Entries(*entry->value, entry->at, Path(path, entry->key), entry->key)) {
        const std::string name = Path(entry->key, own->key);
        ReadAxis(*own, name, Path(path, name), axes);
      }
    }
  }

  template <typename Axes>
  void ReadAxis(const YamlEntry& entry, const std::string& name, const std::string& path, Axes* axes) {
    v1::Axis axis;
    axis.set_key(name);
    if (entry.value->kind == YamlNode::kMap) {
      if (!ReadRange(entry, name, path, &axis)) return;
    } else if (entry.value->kind == YamlNode::kScalar) {
      Items(*entry.value, entry.at, path, name, "; put one value for all cells under fixed");
      return;
    } else {
      const std::vector<YamlPtr> items = Items(*entry.value, entry.at, path, name);
      for (size_t i = 0; i < items.size(); ++i)
        *axis.add_values() = ReadValue(*items[i], name, absl::StrCat(path, "[", i, "]"));
    }
    *axes->Add() = std::move(axis);
  }

  // Reads {pow2: [FIRST, LAST]}.
  bool ReadRange(const YamlEntry& entry, const std::string& name, const std::string& path, v1::Axis* axis) {
    constexpr int64_t kLargest = int64_t{1} << 40;
    const std::vector<YamlEntry>& entries = entry.value->entries;
    auto fail = [&](Position at, std::string sentence) {
      Add(at, path, std::move(sentence));
      return false;
    };
    if (entries.size() != 1) {
      return fail(entry.at, absl::StrCat(name, " must be a list or a range {pow2: [FIRST, LAST]}"));
    }
    if (entries[0].key != "pow2") return fail(entries[0].at, UnknownName("range", entries[0].key, {"pow2"}));
    const RunParameter* key = FindStudyKey(name);
    if (key != nullptr && !IsInteger(key->type)) {
      return fail(entries[0].at, absl::StrCat("pow2 generates whole numbers, which ", name,
                                              " does not accept; write a list"));
    }
    const YamlNode& ends = *entries[0].value;
    int64_t first = 0, last = 0;
    auto whole = [&](size_t i, int64_t* value) {
      const YamlNode& node = *ends.items[i];
      return node.kind == YamlNode::kScalar && !node.quoted && absl::SimpleAtoi(node.text, value);
    };
    if (ends.kind != YamlNode::kList || ends.items.size() != 2 || !whole(0, &first) || !whole(1, &last) ||
        first < 1 || last < first || last > kLargest) {
      return fail(entries[0].at,
                  "pow2 must be a list of two whole numbers, the first at least 1 and not above the "
                  "second, for example [1, 8]");
    }
    for (int64_t value = 1; value <= last; value *= 2) {
      if (value < first) continue;
      if (IsText(name)) {  // a variable; "exclude" and "baseline" compare it as text
        axis->add_values()->set_string_value(absl::StrCat(value));
      } else {
        axis->add_values()->set_number_value(static_cast<double>(value));
      }
    }
    if (axis->values().empty()) {
      return fail(entries[0].at, absl::StrCat("there is no power of two between ", first, " and ", last));
    }
    return true;
  }

  void ReadZip(const YamlNode& node, Position at) {
    std::vector<YamlPtr> groups = Items(node, at, "zip", "zip");
    for (size_t i = 0; i < groups.size(); ++i) {
      std::string path = absl::StrCat("zip[", i, "]");
      ReadMatrix(*groups[i], groups[i]->at, path, file_->spec.add_zip()->mutable_axes());
    }
  }

  void ReadExclude(const YamlNode& node, Position at) {
    std::vector<YamlPtr> entries = Items(node, at, "exclude", "exclude");
    for (size_t i = 0; i < entries.size(); ++i) {
      ReadStruct(*entries[i], entries[i]->at, absl::StrCat("exclude[", i, "]"), file_->spec.add_exclude());
    }
  }

  void ReadOptions(const YamlNode& node, Position at, const std::string& path) {
    for (const YamlEntry* entry : Entries(node, at, path, "sbatch_options")) {
      if (entry->value->kind == YamlNode::kList || entry->value->kind == YamlNode::kMap) {
        Add(entry->at, Path(path, entry->key),
            absl::StrCat("sbatch option ", Quote(entry->key), " must be text, not ",
                         ShowNode(*entry->value)));
        continue;
      }
      (*file_->spec.mutable_slurm()->mutable_sbatch_options())[entry->key] = entry->value->text;
    }
  }

  void ReadExtract(const YamlNode& node, Position at, const std::string& path) {
    std::vector<YamlPtr> metrics = Items(node, at, path, "extract");
    for (size_t i = 0; i < metrics.size(); ++i) {
      ReadMessage(*metrics[i], absl::StrCat(path, "[", i, "]"), file_->spec.mutable_measure()->add_extract());
    }
  }

  void ReadTime(const YamlNode& node, Position at, const std::string& path) {
    std::optional<int64_t> seconds;
    if (node.kind == YamlNode::kScalar) seconds = ParseTimeLimit(node.text);
    if (!seconds) {
      return Add(at, path,
                 absl::StrCat("time must be a time limit such as \"00:30:00\", 30m or 1800 (seconds), not ",
                              ShowNode(node)));
    }
    if (*seconds == 0) return Add(at, path, "time must be at least one second");
    file_->spec.mutable_resources()->set_time_seconds(*seconds);
  }

  // Reads {min: 2, max: 10, until: {half_width: 2%}}.
  void ReadRepeats(const YamlNode& node, Position at, v1::AdaptiveRepeats* repeats) {
    bool until = false;
    for (const YamlEntry* entry : Entries(node, at, "repeats", "repeats")) {
      const std::string path = Path("repeats", entry->key);
      if (entry->key == "until") {
        until = true;
        ReadUntil(*entry, path, repeats);
      } else if (entry->key == "min" || entry->key == "max") {
        const FieldDescriptor* field = repeats->GetDescriptor()->FindFieldByName(entry->key);
        ReadScalar(*entry->value, *entry, path, field, repeats);
      } else {
        Add(entry->at, path, UnknownKey(entry->key, {"min", "max", "until"}));
      }
    }
    if (!until)
      Add(at, "repeats", "repeats has no rule; add until: {half_width: 2%}, or write a number of repeats");
  }

  void ReadUntil(const YamlEntry& until, const std::string& path, v1::AdaptiveRepeats* repeats) {
    bool width = false;
    for (const YamlEntry* entry : Entries(*until.value, until.at, path, "until")) {
      const std::string field = Path(path, entry->key);
      if (entry->key != "half_width") {
        Add(entry->at, field, UnknownKey(entry->key, {"half_width"}));
        continue;
      }
      width = true;
      absl::string_view text;
      if (entry->value->kind == YamlNode::kScalar) text = entry->value->text;
      const double scale = absl::ConsumeSuffix(&text, "%") ? 0.01 : 1;
      double share = 0;
      if (ParseNumber(text, &share)) {
        repeats->set_half_width(share * scale);
      } else {
        Add(entry->at, field,
            absl::StrCat("half_width must be a share such as 2% or 0.02, not ", ShowNode(*entry->value)));
      }
    }
    if (!width) Add(until.at, path, "until has no half_width; write until: {half_width: 2%}");
  }

  // Reads {every: 10m, keep: 2} into keys of `fixed`.
  void ReadCheckpoint(const YamlEntry& section) {
    const YamlNode& node = *section.value;
    if (node.kind == YamlNode::kScalar || node.kind == YamlNode::kList) {
      return Add(
          section.at, section.key,
          absl::StrCat("checkpoint must be a mapping such as {every: 10m, keep: 2}, not ", ShowNode(node)));
    }
    bool every = false;
    for (const YamlEntry* entry : Entries(node, section.at, section.key, section.key)) {
      const std::string path = Path(section.key, entry->key);
      if (entry->key == "every") {
        every = true;
        ReadEvery(*entry, path);
      } else if (entry->key == "keep") {
        ReadKeep(*entry, path);
      } else {
        Add(entry->at, path, UnknownKey(entry->key, {"every", "keep"}));
      }
    }
    if (!every) {
      Add(section.at, section.key,
          "checkpoint has no every; add every: 10m (a time) or every: 500 (a number of steps)");
    }
  }

  void ReadEvery(const YamlEntry& entry, const std::string& path) {
    const YamlNode& node = *entry.value;
    const std::string text = node.kind == YamlNode::kScalar ? node.text : "";
    const auto wrong = [&](absl::string_view what) {
      Add(entry.at, path, absl::StrCat("every must be ", what, ", not ", ShowNode(node)));
    };
    int64_t steps = 0;
    if (absl::SimpleAtoi(text, &steps)) {
      const RunParameter& key = *FindStudyKey("checkpoint_every_steps");
      const double number = static_cast<double>(steps);
      if (number < 1) return wrong("at least 1 step (to write no checkpoints, remove checkpoint)");
      if (number > key.max) return wrong(absl::StrCat("at most ", ShowNumber(key.max), " steps"));
      return SetFixed(entry, path, key.name, number);
    }
    const RunParameter& key = *FindStudyKey("checkpoint_every_minutes");
    const std::optional<int64_t> seconds = ParseTimeLimit(text);
    if (!seconds) return wrong("a time such as 10m or \"00:10:00\", or a number of steps such as 500");
    const double minutes = static_cast<double>(*seconds) / 60;
    if (*seconds < 1) return wrong("at least 1s (to write no checkpoints, remove checkpoint)");
    if (minutes > key.max) return wrong(absl::StrCat("at most ", ShowNumber(key.max), "m"));
    SetFixed(entry, path, key.name, minutes);
  }

  void ReadKeep(const YamlEntry& entry, const std::string& path) {
    const YamlNode& node = *entry.value;
    const RunParameter& key = *FindStudyKey("checkpoint_keep");
    int32_t keep = 0;
    const bool whole = node.kind == YamlNode::kScalar && !node.quoted && absl::SimpleAtoi(node.text, &keep);
    if (!whole || keep < key.min || keep > key.max) {
      return Add(entry.at, path,
                 absl::StrCat("keep must be a whole number from ", ShowNumber(key.min), " to ",
                              ShowNumber(key.max), ", not ", ShowNode(node)));
    }
    SetFixed(entry, path, key.name, keep);
  }

  // Sets a key of `fixed` to a value that another section has. Errors in the value are shown at `entry`.
  void SetFixed(const YamlEntry& entry, const std::string& path, absl::string_view name, double number) {
    std::vector<std::string> sections = {"fixed", "matrix"};
    for (int i = 0; i < file_->spec.zip_size(); ++i) sections.push_back(absl::StrCat("zip[", i, "]"));
    for (const std::string& section : sections) {
      const std::string other = Path(section, name);
      if (file_->positions.contains(other))
        return Add(entry.at, path, absl::StrCat(entry.key, " is also set as ", other, "; keep one"));
    }
    file_->positions[Path("fixed", name)] = entry.at;
    (*file_->spec.mutable_fixed()->mutable_fields())[std::string(name)].set_number_value(number);
  }

  void ReadCauses(const YamlNode& node, Position at, const std::string& path) {
    if (node.kind == YamlNode::kNull || (node.kind == YamlNode::kList && node.items.empty())) {
      return Add(at, path, "on has no causes; to disable retries, write max: 0");
    }
    std::vector<YamlPtr> causes = Items(node, at, path, "on");
    for (size_t i = 0; i < causes.size(); ++i) {
      if (causes[i]->kind != YamlNode::kScalar) {
        Add(causes[i]->at, absl::StrCat(path, "[", i, "]"),
            absl::StrCat("a cause must be text, not ", ShowNode(*causes[i])));
      } else {
        file_->spec.mutable_retry()->add_on(causes[i]->text);
      }
    }
  }

  void ReadOccasions(const YamlNode& node, Position at, const std::string& path) {
    std::vector<YamlPtr> occasions = Items(node, at, path, "on");
    for (size_t i = 0; i < occasions.size(); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      const std::string word = occasions[i]->kind == YamlNode::kScalar ? occasions[i]->text : "";
      if (word == "end" || word == "first_failure") {
        file_->spec.mutable_notify()->add_on(word == "end" ? v1::Notify::END : v1::Notify::FIRST_FAILURE);
      } else {
        Add(occasions[i]->at, field, UnknownName("occasion", word, {"end", "first_failure"}));
      }
    }
  }

  const std::string directory_;
  StudyFile* file_;
  std::vector<Problem> problems_;
  const YamlEntry* checkpoint_ = nullptr;  // null if the file does not have the section
};

}  // namespace

std::vector<Problem> ReadStudy(const YamlNode& root, const std::string& directory, StudyFile* file) {
  return StudyReader(directory, file).Read(root);
}

}  // namespace scalelab
