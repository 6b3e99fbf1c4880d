#include "server/frameworks/config_environments.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/engines.h"
#include "catalog/nearest.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

using At = std::function<std::string(const YAML::Mark&)>;

absl::Status Invalid(const At& at, const YAML::Node& node, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat(at(node.Mark()), ": environments: ", sentence));
}

// Returns the engines with an adapter, and "framework/*" for each framework.
std::vector<std::string> KnownNames() {
  std::vector<std::string> names;
  for (const Engine& engine : Engines()) {
    if (engine.program != Engine::Program::kAdapter) continue;
    names.emplace_back(engine.name);
    std::string all = absl::StrCat(engine.name.substr(0, engine.name.find('/')), "/*");
    if (std::find(names.begin(), names.end(), all) == names.end()) names.push_back(std::move(all));
  }
  return names;
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, {known.begin(), known.end()});
  return nearest.empty() ? absl::StrCat("; known: ", absl::StrJoin(known, ", "))
                         : absl::StrCat("; did you mean ", nearest, "?");
}

// Returns whether `name` has no special meaning in a shell.
bool IsModule(absl::string_view name) {
  return !name.empty() && name[0] != '-' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) ||
           absl::string_view("._/+-@:=").find(static_cast<char>(c)) != absl::string_view::npos;
  });
}

absl::Status ReadModules(const YAML::Node& node, const At& at, EnvironmentConfig* environment) {
  std::vector<YAML::Node> items;
  if (node.IsScalar()) items.push_back(node);
  for (size_t i = 0; node.IsSequence() && i < node.size(); ++i) items.push_back(node[i]);
  if (items.empty())
    return Invalid(at, node, "modules needs a name or a list of names, for example [cuda/12.4]");
  for (const YAML::Node& item : items) {
    if (!item.IsScalar() || !IsModule(item.Scalar())) {
      return Invalid(at, item,
                     absl::StrCat("'", item.IsScalar() ? item.Scalar() : "...",
                                  "' is not a module name; write the name as for `module load`"));
    }
    environment->modules.push_back(item.Scalar());
  }
  return absl::OkStatus();
}

absl::Status ReadText(const YAML::Node& node, const At& at, const std::string& key,
                      EnvironmentConfig* environment) {
  const std::string value = node.IsScalar() ? node.Scalar() : "";
  const bool control = std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20; });
  if (!node.IsScalar() || control) return Invalid(at, node, absl::StrCat(key, " needs one line of text"));
  if (key == "venv") {
    if (!value.empty() && value[0] != '/')
      return Invalid(
          at, node,
          absl::StrCat("venv '", value, "' must be an absolute path that is visible on every node"));
    environment->venv = value;
    return absl::OkStatus();
  }
  if (value.empty() || value[0] == '-') {
    return Invalid(at, node,
                   absl::StrCat("container '", value, "' is not an image; set a file or an address such as ",
                                "docker://nvcr.io/nvidia/pytorch:24.01-py3"));
  }
  environment->container = value;
  return absl::OkStatus();
}

absl::Status ReadOne(const YAML::Node& node, const At& at, EnvironmentConfig* environment) {
  if (!node.IsMap() || node.size() == 0) {
    return Invalid(at, node,
                   absl::StrCat(environment->engine,
                                " needs venv, modules or container, for example {venv: /opt/torch}"));
  }
  std::vector<std::string> seen;
  for (const auto& entry : node) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::vector<std::string> known = {"venv", "modules", "container"};
    if (std::find(known.begin(), known.end(), key) == known.end())
      return Invalid(at, entry.first, absl::StrCat("unknown key '", key, "'", DidYouMean(key, known)));
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return Invalid(at, entry.first, absl::StrCat("duplicate key \"", key, "\"; remove one"));
    seen.push_back(key);
    const absl::Status status = key == "modules" ? ReadModules(entry.second, at, environment)
                                                 : ReadText(entry.second, at, key, environment);
    if (!status.ok()) return status;
  }
  if (environment->venv == "" && environment->modules.empty() && environment->container.empty()) {
    return Invalid(at, node,
                   absl::StrCat(environment->engine,
                                " has no Python: an empty venv requires modules or a container with Python"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadEnvironments(const YAML::Node& node, const At& at,
                              std::vector<EnvironmentConfig>* environments) {
  if (!node.IsMap())
    return Invalid(at, node,
                   "expected engines, for example {pytorch/ddp: {venv: /opt/torch}, \"tensorflow/*\": ...}");
  for (const auto& entry : node) {
    EnvironmentConfig environment;
    environment.engine = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const std::vector<std::string> known = KnownNames();
    if (std::find(known.begin(), known.end(), environment.engine) == known.end()) {
      return Invalid(at, entry.first,
                     absl::StrCat("'", environment.engine, "' is not an engine of a Python framework",
                                  DidYouMean(environment.engine, known)));
    }
    for (const EnvironmentConfig& other : *environments) {
      if (other.engine == environment.engine)
        return Invalid(at, entry.first,
                       absl::StrCat("duplicate key \"", environment.engine, "\"; remove one"));
    }
    if (absl::Status status = ReadOne(entry.second, at, &environment); !status.ok()) return status;
    environments->push_back(std::move(environment));
  }
  return absl::OkStatus();
}

}  // namespace scalelab::server
