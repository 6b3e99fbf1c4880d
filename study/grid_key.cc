#include "study/grid_key.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/nearest.h"
#include "catalog/rank_variables.h"
#include "study/values.h"

namespace scalelab {

namespace {

// Returns whether the text is a valid name for the user to choose in `params` or `env`.
bool IsMember(absl::string_view name) {
  constexpr size_t kLongest = 64;
  return !name.empty() && name.size() <= kLongest && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

GridKey FindGridKey(absl::string_view name) {
  GridKey key{std::string(name), FindStudyKey(name), ""};
  const size_t dot = name.find('.');
  if (key.parameter != nullptr || dot == absl::string_view::npos) return key;
  const RunParameter* map = FindStudyKey(name.substr(0, dot));
  if (map == nullptr || map->type != ParameterType::kMap) return key;
  key.parameter = map;
  key.member = std::string(name.substr(dot + 1));
  return key;
}

std::optional<std::string> CheckKey(const GridKey& key) {
  if (key.parameter == nullptr) {
    const size_t dot = key.name.find('.');
    if (dot != std::string::npos) {
      const std::string near = Nearest(key.name.substr(0, dot), {"params", "env"});
      if (!near.empty() && IsMember(key.name.substr(dot + 1)))
        return absl::StrCat("unknown key ", Quote(key.name), "; did you mean '", near, key.name.substr(dot),
                            "'?");
    } else if (IsMember(key.name) && Nearest(key.name, StudyKeyNames()).empty()) {
      return absl::StrCat("unknown key ", Quote(key.name), "; for a parameter of your own write params.",
                          key.name, "; known: ", absl::StrJoin(StudyKeyNames(), ", "));
    }
    return UnknownKey(key.name, StudyKeyNames());
  }
  if (key.parameter->type != ParameterType::kMap) return std::nullopt;
  const std::string map(key.parameter->name);
  const std::string& member = key.member;
  if (member.empty())
    return absl::StrCat(map, " takes names of your own; write ", map, ": {NAME: VALUE} or ", map,
                        ".NAME: VALUE");
  if (!IsMember(member)) {
    return absl::StrCat("the name ", Quote(member), " in ", map,
                        " must be a letter or '_', then letters, digits or '_', 64 characters at most");
  }
  if (map == "env" && IsReservedVariable(member))
    return absl::StrCat("scalelab sets the variable ", member, " itself; remove it from env");
  return std::nullopt;
}

}  // namespace scalelab
