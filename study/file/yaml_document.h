// A YAML document as a tree that keeps what study files need and yaml-cpp's own nodes lose: the place of
// every key and value, keys that stand twice, and which scalars were quoted. Internal to study files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "study/file/position.h"

namespace scalelab::client {

struct YamlNode;
using YamlPtr = std::shared_ptr<const YamlNode>;  // an alias is the same node again

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
  bool quoted = false;             // a scalar that is text, whatever it looks like
  std::vector<YamlPtr> items;      // of a list
  std::vector<YamlEntry> entries;  // of a mapping, in file order; a key may stand twice
  int64_t weight = 1;              // nodes below and including this one, aliases followed
};

// The document of `text`, which must be UTF-8 without NUL; a null node when it holds nothing. Otherwise a
// sentence and its place: a syntax error, a second document, a key that is no scalar, or more than
// `kMaxYamlNodes` nodes once aliases are followed (nine lines of YAML can mean a billion).
inline constexpr int64_t kMaxYamlNodes = 500'000;
struct YamlResult {
  YamlPtr root;  // null on error
  std::string error;
  Position error_at;
};
YamlResult ParseYaml(const std::string& text);

// "a list", "a mapping", "nothing" or the text in quotes.
std::string ShowNode(const YamlNode& node);

}  // namespace scalelab::client
