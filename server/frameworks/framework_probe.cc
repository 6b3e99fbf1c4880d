#include "server/frameworks/framework_probe.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catalog/python_environment.h"
#include "server/command/command.h"

namespace scalelab::server {
namespace {

using nlohmann::json;

v1::Framework Unusable(v1::Framework framework, std::string reason, std::string fix) {
  framework.set_usable(false);
  framework.set_reason(std::move(reason));
  framework.set_fix(std::move(fix));
  return framework;
}

std::string EnvironmentText(const v1::FrameworkEnvironment& environment) {
  std::vector<std::string> parts;
  for (const std::string& part : {environment.venv(), environment.container()}) {
    if (!part.empty()) parts.push_back(part);
  }
  parts.insert(parts.end(), environment.modules().begin(), environment.modules().end());
  return absl::StrJoin(parts, " ");
}

// Returns the environment that the ranks of a job get, including the visible GPUs.
std::vector<std::string> ProbeEnvironment() {
  std::vector<std::string> environment = CommandEnvironment();
  environment.push_back("PYTHONNOUSERSITE=1");
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "MODULEPATH"}) {
    if (const char* value = std::getenv(name)) environment.push_back(absl::StrCat(name, "=", value));
  }
  return environment;
}

// Returns the last line that is a JSON object, because libraries may print other lines before it.
json LastObject(const std::string& output) {
  const std::vector<absl::string_view> lines = absl::StrSplit(output, '\n', absl::SkipWhitespace());
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    json object = json::parse(line->begin(), line->end(), nullptr, false);
    if (object.is_object()) return object;
  }
  return nullptr;
}

std::string TextOf(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string LastLine(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  std::string last = lines.empty() ? "" : lines.back().substr(0, 300);
  for (char& c : last) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
  }
  return last;
}

struct Answer {
  json object;         // null after an error
  std::string reason;  // of the error
};

// Runs a program that prints a JSON object.
Answer RunProbe(const std::vector<std::string>& argv, const ProbeOptions& options) {
  const auto result = RunCommand(argv, "", ProbeEnvironment(), options.timeout, options.cancel);
  const std::string name = std::filesystem::path(argv.front()).filename();
  if (!result.ok()) return {nullptr, std::string(result.status().message())};
  if (result->timed_out) {
    return {nullptr, absl::StrCat("the probe of the framework did not end within ",
                                  absl::FormatDuration(options.timeout))};
  }
  json object = result->ok() ? LastObject(result->out) : json();
  if (object.is_object()) return {std::move(object), ""};
  const std::string message = LastLine(result->err);
  const std::string end = result->signal != 0 ? absl::StrCat("was killed by signal ", result->signal)
                                              : absl::StrCat("ended with status ", result->exit_code);
  return {nullptr,
          absl::StrCat("'", name, "' ", end, message.empty() ? " and printed no error" : ": ", message)};
}

void AddVersions(const json& versions, v1::Framework* framework) {
  if (!versions.is_object()) return;
  for (const auto& [name, version] : versions.items()) {
    if (version.is_string()) (*framework->mutable_versions())[name] = version.get<std::string>();
  }
}

v1::Framework ProbeNative(v1::Framework framework, const ProbeOptions& options) {
  const std::string fix = "deploy/build with SCALELAB_TRAINER=ON";
  if (access(options.trainer.c_str(), X_OK) != 0)
    return Unusable(framework,
                    absl::StrCat("the trainer '", options.trainer, "' does not exist or is not executable"),
                    fix);
  const Answer answer = RunProbe({options.trainer, "--version"}, options);
  if (!answer.object.is_object()) return Unusable(framework, answer.reason, fix);
  framework.set_usable(true);
  framework.set_version(absl::StrCat("scalelab ", TextOf(answer.object, "version"), ", libtorch ",
                                     TextOf(answer.object, "libtorch")));
  AddVersions(answer.object, &framework);
  framework.mutable_versions()->erase("name");
  return framework;
}

// Returns "<canonical path>@<modification time>".
std::string Stamp(const std::string& path) {
  struct stat found {};
  if (path.empty() || stat(path.c_str(), &found) != 0) return "-";
  std::error_code error;
  const auto place = std::filesystem::canonical(path, error);
  return absl::StrCat(place.string(), "@", found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec);
}

}  // namespace

v1::Framework ProbeEngine(const Engine& engine, const v1::FrameworkEnvironment& environment,
                          const ProbeOptions& options) {
  v1::Framework framework;
  framework.set_engine(std::string(engine.name));
  if (engine.program == Engine::Program::kTrainer) return ProbeNative(std::move(framework), options);
  framework.set_usable(true);
  if (engine.program != Engine::Program::kAdapter) return framework;

  framework.set_environment(EnvironmentText(environment));
  const std::string probe = options.adapters + "/probe.py";
  const PythonEnvironment python{environment.venv(),
                                 {environment.modules().begin(), environment.modules().end()},
                                 environment.container()};
  if (const auto missing = FindMissing(engine, python, probe))
    return Unusable(framework, missing->reason, missing->fix);
  const Answer answer = RunProbe(
      PythonCommand(python, {probe, std::string(engine.name)}, {{options.adapters}, false}), options);
  const std::string fix = CommandThatMakes(engine, environment.venv());
  if (!answer.object.is_object()) return Unusable(framework, answer.reason, fix);
  const auto usable = answer.object.find("usable");
  if (usable == answer.object.end() || !usable->is_boolean() || !usable->get<bool>()) {
    const std::string reason = TextOf(answer.object, "reason"), own_fix = TextOf(answer.object, "fix");
    // Correct the advice of probe.py, which does not know whether it runs in the environment for GPUs.
    const bool makes = absl::StartsWith(own_fix, "deploy/frameworks ");
    return Unusable(framework, reason.empty() ? "probe.py printed no reason" : reason,
                    own_fix.empty() ? "another engine"
                    : makes         ? fix
                                    : own_fix);
  }
  framework.set_version(TextOf(answer.object, "version"));
  AddVersions(answer.object.value("versions", json()), &framework);
  return framework;
}

std::string ProbeStamp(const Engine& engine, const v1::FrameworkEnvironment& environment,
                       const ProbeOptions& options) {
  if (engine.program == Engine::Program::kTrainer) return Stamp(options.trainer);
  if (engine.program != Engine::Program::kAdapter) return "";
  return absl::StrCat(Stamp(environment.venv()), " ", Stamp(environment.container()), " ",
                      environment.container(), " ", absl::StrJoin(environment.modules(), " "), " ",
                      Stamp(options.adapters + "/probe.py"));
}

}  // namespace scalelab::server
