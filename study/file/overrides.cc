#include "study/file/overrides.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

// Returns a copy of the tree whose nodes all have the position `at`.
YamlPtr At(const YamlNode& node, Position at) {
  auto copy = std::make_shared<YamlNode>(node);
  copy->at = at;
  for (YamlPtr& item : copy->items) item = At(*item, at);
  for (YamlEntry& entry : copy->entries) {
    entry.at = at;
    entry.value = At(*entry.value, at);
  }
  return copy;
}

// Returns the entry with the longest key that equals `path` or is a prefix of it; null if there is none.
YamlEntry* FindEntry(YamlNode& map, absl::string_view path) {
  YamlEntry* best = nullptr;
  for (YamlEntry& entry : map.entries) {
    const bool fits = path == entry.key || absl::StartsWith(path, absl::StrCat(entry.key, "."));
    if (fits && (best == nullptr || entry.key.size() > best->key.size())) best = &entry;
  }
  return best;
}

// Returns the mapping with `value` at `path`; null if a part of `path` is not a mapping. `flat`: a new key
// contains the rest of the path.
YamlPtr Replaced(const YamlNode& map, absl::string_view path, const YamlPtr& value, bool flat) {
  auto copy = std::make_shared<YamlNode>(map);
  copy->kind = YamlNode::kMap;
  YamlEntry* entry = FindEntry(*copy, path);
  if (entry == nullptr) {
    const size_t dot = flat ? absl::string_view::npos : path.find('.');
    copy->entries.push_back({std::string(path.substr(0, dot)), value->at, nullptr});
    entry = &copy->entries.back();
  }
  absl::string_view rest = path.substr(entry->key.size());
  if (rest.empty()) {
    entry->at = value->at;
    entry->value = value;
    return copy;
  }
  rest.remove_prefix(1);
  YamlNode none;
  none.at = value->at;
  const YamlNode& below = entry->value == nullptr ? none : *entry->value;
  if (below.kind != YamlNode::kMap && below.kind != YamlNode::kNull) return nullptr;
  entry->value = Replaced(below, rest, value, entry->key == "matrix");
  return entry->value == nullptr ? nullptr : copy;
}

}  // namespace

absl::StatusOr<YamlPtr> WithDefault(const YamlPtr& root, const std::string& key, const std::string& value,
                                    Position at) {
  for (const YamlEntry& entry : root->entries) {
    if (entry.key == key) return root;
  }
  const YamlResult parsed = ParseYaml(value);
  if (parsed.root == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("the value is no YAML: ", parsed.error));
  auto copy = std::make_shared<YamlNode>(*root);
  copy->entries.push_back({key, at, At(*parsed.root, at)});
  return copy;
}

std::string OverrideKey(const std::string& text) {
  return std::string(absl::StripAsciiWhitespace(absl::string_view(text).substr(0, text.find('='))));
}

absl::StatusOr<YamlPtr> WithOverrides(const YamlPtr& root, const std::vector<std::string>& set) {
  YamlPtr tree = root;
  std::string problems;
  const auto refuse = [&](const std::string& text, absl::string_view why) {
    absl::StrAppend(&problems, problems.empty() ? "" : "\n", "--set ", text, ": ", why);
  };
  for (size_t i = 0; i < set.size(); ++i) {
    const std::string key = OverrideKey(set[i]);
    const size_t equals = set[i].find('=');
    if (equals == std::string::npos || key.empty() || key.front() == '.' || key.back() == '.') {
      refuse(set[i], "write KEY=VALUE, for example matrix.ranks=[1,2]");
      continue;
    }
    const YamlResult value = ParseYaml(set[i].substr(equals + 1));
    if (value.root == nullptr) {
      refuse(set[i], absl::StrCat("the value is no YAML: ", value.error));
      continue;
    }
    const YamlPtr changed = Replaced(*tree, key, At(*value.root, {-static_cast<int>(i), 1}), false);
    if (changed == nullptr) {
      refuse(set[i], "a part of the key is no mapping in the study file");
      continue;
    }
    tree = changed;
  }
  if (!problems.empty()) return absl::InvalidArgumentError(problems);
  return tree;
}

}  // namespace scalelab
