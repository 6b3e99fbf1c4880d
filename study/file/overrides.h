// Values that replace those of a study file: `scalelab study submit FILE --set matrix.ranks=[1,2]`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "study/file/yaml_document.h"

namespace scalelab {

// Returns the tree with KEY set to VALUE for each "KEY=VALUE" of `set`, in their order. KEY is a path of keys
// with dots, VALUE is YAML. Keys that the file does not have are added; what follows "matrix." is the name of
// an axis, dots included. Nodes that override number i sets have the position line -i, column 1. Returns
// INVALID_ARGUMENT with a sentence for each override that is not of this form or whose value is no YAML.
absl::StatusOr<YamlPtr> WithOverrides(const YamlPtr& root, const std::vector<std::string>& set);

// Returns the mapping `root` with `key: value` in addition, where `value` is YAML and everything in it has the position
// `at`; `root` itself if it has the key. Returns INVALID_ARGUMENT with a sentence if `value` is no YAML.
absl::StatusOr<YamlPtr> WithDefault(const YamlPtr& root, const std::string& key, const std::string& value,
                                    Position at);

// Returns KEY of "KEY=VALUE".
std::string OverrideKey(const std::string& text);

}  // namespace scalelab
