#include "study/file/study_reader.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "catalog/enum_word.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "study/file/checkpoint_section.h"
#include "study/file/grid_reader.h"
#include "study/file/scalars.h"
#include "study/file/time_limit.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Struct;

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

class StudyReader {
 public:
  StudyReader(std::string directory, StudyFile* file) : tree_(*file), grid_(std::move(directory), tree_) {}

  std::vector<Problem> Read(const YamlNode& root) {
    tree_.file().positions[""] = root.at;
    ReadMessage(root, "", &tree_.file().spec);
    // Later than `fixed`, `matrix` and `zip`, which may have the same keys.
    if (checkpoint_ != nullptr) ReadCheckpoint(*checkpoint_, tree_);
    return tree_.TakeProblems();
  }

 private:
  // Reads a mapping whose keys are the fields of a message: the whole file, or a section with typed fields.
  void ReadMessage(const YamlNode& node, const std::string& path, Message* message) {
    const auto* descriptor = message->GetDescriptor();
    Position at = tree_.file().positions[path];
    for (const YamlEntry* entry : tree_.Entries(node, at, path, path.empty() ? "a study file" : path)) {
      std::string field_path = tree_.Path(path, entry->key);
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
        tree_.Add(entry->at, field_path, UnknownKey(entry->key, known));
        continue;
      }
      ReadField(*entry, field_path, field, message);
    }
  }

  void ReadField(const YamlEntry& entry, const std::string& path, const FieldDescriptor* field,
                 Message* message) {
    const YamlNode& node = *entry.value;
    const auto* reflection = message->GetReflection();
    v1::StudySpec& spec = tree_.file().spec;
    if (path == "matrix") return grid_.ReadMatrix(node, entry.at, path, spec.mutable_matrix());
    if (path == "zip") return grid_.ReadZip(node, entry.at);
    if (path == "exclude") return grid_.ReadExclude(node, entry.at);
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
        return grid_.ReadStruct(node, entry.at, path, static_cast<Struct*>(child));
      }
      return ReadMessage(node, path, child);
    }
    ReadScalar(node, entry, path, field, message);
  }

  void ReadScalar(const YamlNode& node, const YamlEntry& entry, const std::string& path,
                  const FieldDescriptor* field, Message* message) {
    const auto* reflection = message->GetReflection();
    auto wrong = [&](absl::string_view expected) {
      tree_.Add(entry.at, path, absl::StrCat(entry.key, " must be ", expected, ", not ", ShowNode(node)));
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
          return tree_.Add(entry.at, path, absl::StrCat(entry.key, " must be at least ", least, ", not 0"));
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
      return tree_.Add(entry.at, path, absl::StrCat(entry.key, " must be text, not ", ShowNode(node)));
    }
    tree_.Add(entry.at, path, UnknownName(entry.key, node.text, {words.begin(), words.end()}));
  }

  void ReadOptions(const YamlNode& node, Position at, const std::string& path) {
    for (const YamlEntry* entry : tree_.Entries(node, at, path, "sbatch_options")) {
      if (entry->value->kind == YamlNode::kList || entry->value->kind == YamlNode::kMap) {
        tree_.Add(entry->at, tree_.Path(path, entry->key),
                  absl::StrCat("sbatch option ", Quote(entry->key), " must be text, not ",
                               ShowNode(*entry->value)));
        continue;
      }
      (*tree_.file().spec.mutable_slurm()->mutable_sbatch_options())[entry->key] = entry->value->text;
    }
  }

  void ReadExtract(const YamlNode& node, Position at, const std::string& path) {
    std::vector<YamlPtr> metrics = tree_.Items(node, at, path, "extract");
    for (size_t i = 0; i < metrics.size(); ++i) {
      ReadMessage(*metrics[i], absl::StrCat(path, "[", i, "]"),
                  tree_.file().spec.mutable_measure()->add_extract());
    }
  }

  void ReadTime(const YamlNode& node, Position at, const std::string& path) {
    std::optional<int64_t> seconds;
    if (node.kind == YamlNode::kScalar) seconds = ParseTimeLimit(node.text);
    if (!seconds) {
      return tree_.Add(
          at, path,
          absl::StrCat("time must be a time limit such as \"00:30:00\", 30m or 1800 (seconds), not ",
                       ShowNode(node)));
    }
    if (*seconds == 0) return tree_.Add(at, path, "time must be at least one second");
    tree_.file().spec.mutable_resources()->set_time_seconds(*seconds);
  }

  // Reads {min: 2, max: 10, until: {half_width: 2%}}.
  void ReadRepeats(const YamlNode& node, Position at, v1::AdaptiveRepeats* repeats) {
    bool until = false;
    for (const YamlEntry* entry : tree_.Entries(node, at, "repeats", "repeats")) {
      const std::string path = tree_.Path("repeats", entry->key);
      if (entry->key == "until") {
        until = true;
        ReadUntil(*entry, path, repeats);
      } else if (entry->key == "min" || entry->key == "max") {
        const FieldDescriptor* field = repeats->GetDescriptor()->FindFieldByName(entry->key);
        ReadScalar(*entry->value, *entry, path, field, repeats);
      } else {
        tree_.Add(entry->at, path, UnknownKey(entry->key, {"min", "max", "until"}));
      }
    }
    if (!until)
      tree_.Add(at, "repeats",
                "repeats has no rule; add until: {half_width: 2%}, or write a number of repeats");
  }

  void ReadUntil(const YamlEntry& until, const std::string& path, v1::AdaptiveRepeats* repeats) {
    bool width = false;
    for (const YamlEntry* entry : tree_.Entries(*until.value, until.at, path, "until")) {
      const std::string field = tree_.Path(path, entry->key);
      if (entry->key != "half_width") {
        tree_.Add(entry->at, field, UnknownKey(entry->key, {"half_width"}));
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
        tree_.Add(
            entry->at, field,
            absl::StrCat("half_width must be a share such as 2% or 0.02, not ", ShowNode(*entry->value)));
      }
    }
    if (!width) tree_.Add(until.at, path, "until has no half_width; write until: {half_width: 2%}");
  }

  void ReadCauses(const YamlNode& node, Position at, const std::string& path) {
    if (node.kind == YamlNode::kNull || (node.kind == YamlNode::kList && node.items.empty())) {
      return tree_.Add(at, path, "on has no causes; to disable retries, write max: 0");
    }
    std::vector<YamlPtr> causes = tree_.Items(node, at, path, "on");
    for (size_t i = 0; i < causes.size(); ++i) {
      if (causes[i]->kind != YamlNode::kScalar) {
        tree_.Add(causes[i]->at, absl::StrCat(path, "[", i, "]"),
                  absl::StrCat("a cause must be text, not ", ShowNode(*causes[i])));
      } else {
        tree_.file().spec.mutable_retry()->add_on(causes[i]->text);
      }
    }
  }

  void ReadOccasions(const YamlNode& node, Position at, const std::string& path) {
    std::vector<YamlPtr> occasions = tree_.Items(node, at, path, "on");
    for (size_t i = 0; i < occasions.size(); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      const std::string word = occasions[i]->kind == YamlNode::kScalar ? occasions[i]->text : "";
      if (word == "end" || word == "first_failure") {
        tree_.file().spec.mutable_notify()->add_on(word == "end" ? v1::Notify::END
                                                                 : v1::Notify::FIRST_FAILURE);
      } else {
        tree_.Add(occasions[i]->at, field, UnknownName("occasion", word, {"end", "first_failure"}));
      }
    }
  }

  TreeReader tree_;
  GridReader grid_;
  const YamlEntry* checkpoint_ = nullptr;  // null if the file does not have the section
};

}  // namespace

std::vector<Problem> ReadStudy(const YamlNode& root, const std::string& directory, StudyFile* file) {
  return StudyReader(directory, file).Read(root);
}

}  // namespace scalelab
