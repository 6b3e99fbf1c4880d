#include "study/file/tree_reader.h"

#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "study/values.h"

namespace scalelab {

void TreeReader::Add(Position at, const std::string& field, std::string sentence) {
  problems_.push_back({at, field, std::move(sentence)});
}

std::string TreeReader::Path(const std::string& parent, absl::string_view name) {
  return parent.empty() ? std::string(name) : absl::StrCat(parent, ".", name);
}

std::vector<const YamlEntry*> TreeReader::Entries(const YamlNode& node, Position at, const std::string& path,
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
    file_.positions[field] = entry.at;
    out.push_back(&entry);
  }
  return out;
}

std::vector<YamlPtr> TreeReader::Items(const YamlNode& node, Position at, const std::string& path,
                                       absl::string_view what, absl::string_view hint) {
  if (node.kind == YamlNode::kNull) return {};
  if (node.kind != YamlNode::kList) {
    Add(at, path, absl::StrCat(what, " must be a list, not ", ShowNode(node), hint));
    return {};
  }
  for (size_t i = 0; i < node.items.size(); ++i)
    file_.positions[absl::StrCat(path, "[", i, "]")] = node.items[i]->at;
  return node.items;
}

}  // namespace scalelab
