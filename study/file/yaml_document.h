// A YAML document as a tree. Unlike yaml-cpp's own nodes, the tree keeps what study files need: the position
// of every key and value, duplicate keys, and which scalars were quoted. Internal to study files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "study/file/position.h"

namespace scalelab {

struct YamlNode;
using YamlPtr = std::shared_ptr<const YamlNode>;  // an alias shares the node

struct YamlEntry {
  std::string key;
  Position at;
  YamlPtr value;
};

struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap };
  Kind kind = kNull;
  Position at;
  std::string text;                // of a scalar
  bool quoted = false;             // a scalar that is always text
  std::vector<YamlPtr> items;      // of a list
  std::vector<YamlEntry> entries;  // of a mapping, in file order; keys may be duplicates
  int64_t weight = 1;              // number of nodes in this subtree, with aliases expanded
  int depth = 1;                   // number of levels of this subtree, with aliases expanded
};

// Parses `text`, which must be UTF-8 without NUL. Returns a null node for an empty document. Returns an error
// with its position for a syntax error, a second document, a key that is not a scalar, or more than
// `kMaxYamlNodes` nodes or `kMaxYamlDepth` levels after aliases are expanded (nine lines of YAML can expand to a
// billion nodes). Functions that visit a tree are recursive, so the depth limits their stack.
inline constexpr int64_t kMaxYamlNodes = 500'000;
inline constexpr int kMaxYamlDepth = 100;
struct YamlResult {
  YamlPtr root;  // null on error
  std::string error;
  Position error_at;
};
YamlResult ParseYaml(const std::string& text);

// Returns "a list", "a mapping", "nothing", or the text in quotes.
std::string ShowNode(const YamlNode& node);

}  // namespace scalelab
