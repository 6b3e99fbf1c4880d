#include "study/file/checkpoint_section.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "study/file/time_limit.h"
#include "study/values.h"

namespace scalelab {
namespace {

// Sets a key of `fixed` to a value that another section has. Errors in the value are shown at `entry`.
void SetFixed(const YamlEntry& entry, const std::string& path, absl::string_view name, double number,
              TreeReader& tree) {
  std::vector<std::string> sections = {"fixed", "matrix"};
  for (int i = 0; i < tree.file().spec.zip_size(); ++i) sections.push_back(absl::StrCat("zip[", i, "]"));
  for (const std::string& section : sections) {
    const std::string other = TreeReader::Path(section, name);
    if (tree.file().positions.contains(other))
      return tree.Add(entry.at, path, absl::StrCat(entry.key, " is also set as ", other, "; keep one"));
  }
  tree.file().positions[TreeReader::Path("fixed", name)] = entry.at;
  (*tree.file().spec.mutable_fixed()->mutable_fields())[std::string(name)].set_number_value(number);
}

void ReadEvery(const YamlEntry& entry, const std::string& path, TreeReader& tree) {
  const YamlNode& node = *entry.value;
  const std::string text = node.kind == YamlNode::kScalar ? node.text : "";
  const auto wrong = [&](absl::string_view what) {
    tree.Add(entry.at, path, absl::StrCat("every must be ", what, ", not ", ShowNode(node)));
  };
  int64_t steps = 0;
  if (absl::SimpleAtoi(text, &steps)) {
    const RunParameter& key = *FindStudyKey("checkpoint_every_steps");
    const double number = static_cast<double>(steps);
    if (number < 1) return wrong("at least 1 step (to write no checkpoints, remove checkpoint)");
    if (number > key.max) return wrong(absl::StrCat("at most ", ShowNumber(key.max), " steps"));
    return SetFixed(entry, path, key.name, number, tree);
  }
  const RunParameter& key = *FindStudyKey("checkpoint_every_minutes");
  const std::optional<int64_t> seconds = ParseTimeLimit(text);
  if (!seconds) return wrong("a time such as 10m or \"00:10:00\", or a number of steps such as 500");
  const double minutes = static_cast<double>(*seconds) / 60;
  if (*seconds < 1) return wrong("at least 1s (to write no checkpoints, remove checkpoint)");
  if (minutes > key.max) return wrong(absl::StrCat("at most ", ShowNumber(key.max), "m"));
  SetFixed(entry, path, key.name, minutes, tree);
}

void ReadKeep(const YamlEntry& entry, const std::string& path, TreeReader& tree) {
  const YamlNode& node = *entry.value;
  const RunParameter& key = *FindStudyKey("checkpoint_keep");
  int32_t keep = 0;
  const bool whole = node.kind == YamlNode::kScalar && !node.quoted && absl::SimpleAtoi(node.text, &keep);
  if (!whole || keep < key.min || keep > key.max) {
    return tree.Add(entry.at, path,
                    absl::StrCat("keep must be a whole number from ", ShowNumber(key.min), " to ",
                                 ShowNumber(key.max), ", not ", ShowNode(node)));
  }
  SetFixed(entry, path, key.name, keep, tree);
}

}  // namespace

void ReadCheckpoint(const YamlEntry& section, TreeReader& tree) {
  const YamlNode& node = *section.value;
  if (node.kind == YamlNode::kScalar || node.kind == YamlNode::kList) {
    return tree.Add(
        section.at, section.key,
        absl::StrCat("checkpoint must be a mapping such as {every: 10m, keep: 2}, not ", ShowNode(node)));
  }
  bool every = false;
  for (const YamlEntry* entry : tree.Entries(node, section.at, section.key, section.key)) {
    const std::string path = TreeReader::Path(section.key, entry->key);
    if (entry->key == "every") {
      every = true;
      ReadEvery(*entry, path, tree);
    } else if (entry->key == "keep") {
      ReadKeep(*entry, path, tree);
    } else {
      tree.Add(entry->at, path, UnknownKey(entry->key, {"every", "keep"}));
    }
  }
  if (!every) {
    tree.Add(section.at, section.key,
             "checkpoint has no every; add every: 10m (a time) or every: 500 (a number of steps)");
  }
}

}  // namespace scalelab
