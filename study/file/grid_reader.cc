#include "study/file/grid_reader.h"

#include <cmath>
#include <filesystem>
#include <unordered_map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "study/file/scalars.h"
#include "study/values.h"

namespace scalelab {
namespace {

// Returns whether all scalars of the key are text, as for environment variables: there 1.10 is not
// the number 1.1.
bool IsText(absl::string_view name) {
  const GridKey key = FindGridKey(name);
  if (key.parameter == nullptr) return false;
  const ParameterType type = key.parameter->type;
  return type == ParameterType::kString || type == ParameterType::kStringList || key.parameter->name == "env";
}

// Returns whether the key is a mapping whose names the user chooses: params, env.
bool IsOwnMap(absl::string_view name) {
  const RunParameter* key = FindStudyKey(name);
  return key != nullptr && key->type == ParameterType::kMap;
}

// Returns whether a word of a command names a file relative to the study file. It is made absolute because
// ranks start in another directory.
bool IsBeside(const std::string& word) { return word.starts_with("./") || word.starts_with("../"); }

}  // namespace

using google::protobuf::Struct;
using google::protobuf::Value;

void GridReader::CheckDigits(const YamlNode& node, double number, absl::string_view name,
                             const std::string& path) {
  absl::string_view digits = node.text;
  if (!absl::StartsWith(name, "params.") || digits.find_first_of(".eE") != absl::string_view::npos) return;
  if (digits[0] == '-' || digits[0] == '+') digits.remove_prefix(1);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  if (digits == absl::StrFormat("%.0f", std::abs(number))) return;
  const auto found = tree_.file().positions.find(path);
  tree_.Add(found == tree_.file().positions.end() ? node.at : found->second, path,
            absl::StrCat(name, " ", Quote(node.text),
                         " is a whole number that cannot be stored exactly; write it in quotes, as text"));
}

Value GridReader::ReadValue(const YamlNode& node, absl::string_view name, const std::string& path) {
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

std::string GridReader::Absolute(const std::string& path) const {
  if (path.empty() || path[0] == '/' || directory_.empty()) return path;
  return (std::filesystem::path(directory_) / path).lexically_normal().string();
}

void GridReader::ReadStruct(const YamlNode& node, Position at, const std::string& path, Struct* out) {
  std::unordered_map<std::string, int> lines;
  const auto read = [&](const YamlEntry& entry, const std::string& name) {
    const auto [first, fresh] = lines.emplace(name, entry.at.line);
    if (!fresh)
      return tree_.Add(entry.at, tree_.Path(path, name),
                       absl::StrCat("duplicate key ", Quote(name), " (first on line ", first->second, ")"));
    (*out->mutable_fields())[name] = ReadValue(*entry.value, name, tree_.Path(path, name));
  };
  for (const YamlEntry* entry : tree_.Entries(node, at, path, path)) {
    if (!IsOwnMap(entry->key)) {
      read(*entry, entry->key);
      continue;
    }
    // Read params: {dropout: 0.1} like params.dropout: 0.1.
    for (const YamlEntry* own :
         tree_.Entries(*entry->value, entry->at, tree_.Path(path, entry->key), entry->key))
      read(*own, tree_.Path(entry->key, own->key));
  }
}

void GridReader::ReadMatrix(const YamlNode& node, Position at, const std::string& path, Axes* axes) {
  for (const YamlEntry* entry : tree_.Entries(node, at, path, path)) {
    if (!IsOwnMap(entry->key)) {
      ReadAxis(*entry, entry->key, tree_.Path(path, entry->key), axes);
      continue;
    }
    for (const YamlEntry* own :
         tree_.Entries(*entry->value, entry->at, tree_.Path(path, entry->key), entry->key)) {
      const std::string name = tree_.Path(entry->key, own->key);
      ReadAxis(*own, name, tree_.Path(path, name), axes);
    }
  }
}

void GridReader::ReadAxis(const YamlEntry& entry, const std::string& name, const std::string& path,
                          Axes* axes) {
  v1::Axis axis;
  axis.set_key(name);
  if (entry.value->kind == YamlNode::kMap) {
    if (!ReadRange(entry, name, path, &axis)) return;
  } else if (entry.value->kind == YamlNode::kScalar) {
    tree_.Items(*entry.value, entry.at, path, name, "; put one value for all cells under fixed");
    return;
  } else {
    const std::vector<YamlPtr> items = tree_.Items(*entry.value, entry.at, path, name);
    for (size_t i = 0; i < items.size(); ++i)
      *axis.add_values() = ReadValue(*items[i], name, absl::StrCat(path, "[", i, "]"));
  }
  *axes->Add() = std::move(axis);
}

bool GridReader::ReadRange(const YamlEntry& entry, const std::string& name, const std::string& path,
                           v1::Axis* axis) {
  constexpr int64_t kLargest = int64_t{1} << 40;
  const std::vector<YamlEntry>& entries = entry.value->entries;
  auto fail = [&](Position at, std::string sentence) {
    tree_.Add(at, path, std::move(sentence));
    return false;
  };
  if (entries.size() != 1) {
    return fail(entry.at, absl::StrCat(name, " must be a list or a range {pow2: [FIRST, LAST]}"));
  }
  if (entries[0].key != "pow2") return fail(entries[0].at, UnknownName("range", entries[0].key, {"pow2"}));
  const RunParameter* key = FindStudyKey(name);
  if (key != nullptr && !IsInteger(key->type)) {
    return fail(entries[0].at,
                absl::StrCat("pow2 generates whole numbers, which ", name, " does not accept; write a list"));
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

void GridReader::ReadZip(const YamlNode& node, Position at) {
  std::vector<YamlPtr> groups = tree_.Items(node, at, "zip", "zip");
  for (size_t i = 0; i < groups.size(); ++i) {
    std::string path = absl::StrCat("zip[", i, "]");
    ReadMatrix(*groups[i], groups[i]->at, path, tree_.file().spec.add_zip()->mutable_axes());
  }
}

void GridReader::ReadExclude(const YamlNode& node, Position at) {
  std::vector<YamlPtr> entries = tree_.Items(node, at, "exclude", "exclude");
  for (size_t i = 0; i < entries.size(); ++i) {
    ReadStruct(*entries[i], entries[i]->at, absl::StrCat("exclude[", i, "]"),
               tree_.file().spec.add_exclude());
  }
}

}  // namespace scalelab
