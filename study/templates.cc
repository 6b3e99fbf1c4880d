#include "study/templates.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "catalog/command_template.h"

namespace scalelab {
namespace {

using google::protobuf::Value;

// Returns the names that a template may have: run parameters with one value, and the study's own names.
std::vector<absl::string_view> KnownNames(const Grid& grid) {
  std::vector<absl::string_view> known;
  for (const RunParameter& parameter : RunParameters()) {
    if (parameter.type != ParameterType::kStringList && parameter.type != ParameterType::kMap)
      known.push_back(parameter.name);
  }
  const auto add = [&known](const GridKey& key) {
    if (!key.member.empty()) known.push_back(key.name);
  };
  for (const auto& [key, value] : grid.fixed) add(key);
  for (const GridFactor& factor : grid.factors) {
    for (const GridAxis& axis : factor.axes) add(axis.key);
  }
  return known;
}

void CheckCommand(const Value& command, const std::vector<absl::string_view>& known, const std::string& path,
                  Violations* violations) {
  for (const Value& word : command.list_value().values()) {
    for (const std::string& name : TemplateNames(word.string_value())) {
      if (std::ranges::find(known, name) != known.end()) continue;
      const std::string near = Nearest(name, known);
      violations->Add(
          path,
          absl::StrCat("the template in ", Quote(word.string_value()), " names the unknown key ", Quote(name),
                       near.empty() ? "; set it in the study, or write {{" : "; did you mean '",
                       near.empty() ? name : near, near.empty() ? "}} for plain text" : "'?"));
    }
  }
}

}  // namespace

void CheckTemplates(const Grid& grid, Violations* violations) {
  const std::vector<absl::string_view> known = KnownNames(grid);
  for (const auto& [key, value] : grid.fixed) {
    if (key.name == "command") CheckCommand(*value, known, "fixed.command", violations);
  }
  for (const GridFactor& factor : grid.factors) {
    for (const GridAxis& axis : factor.axes) {
      if (axis.name != "command") continue;
      for (int i = 0; i < axis.values->size(); ++i)
        CheckCommand(axis.values->Get(i), known, absl::StrCat(axis.path, "[", i, "]"), violations);
    }
  }
}

}  // namespace scalelab
