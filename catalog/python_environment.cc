#include "catalog/python_environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace scalelab {
namespace {

// Returns the Python of the virtual environment, or "python3" of the modules or the container.
std::string PythonOf(const PythonEnvironment& environment) {
  return environment.venv.empty() ? "python3" : environment.venv + "/bin/python";
}

bool OnPath(absl::string_view program) {
  const char* path = getenv("PATH");
  for (absl::string_view directory : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    if (!directory.empty() && access(absl::StrCat(directory, "/", program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// Module names contain no shell metacharacters: server/frameworks/config_environments.cc checks them.
std::string LoadModules(const PythonEnvironment& environment) {
  const std::string modules = absl::StrJoin(environment.modules, " ");
  return absl::StrCat(
      "type module >/dev/null 2>&1 || { echo \"a login shell on $(uname -n) has no 'module' command for ",
      modules,
      "; install Environment Modules or Lmod, or leave modules out of the environment\" >&2; exit 126; }; "
      "module load ",
      modules, " || { echo \"modules ", modules,
      " could not be loaded on $(uname -n); see 'module avail' there\" >&2; exit 126; }; exec \"$@\"");
}

}  // namespace

std::vector<std::string> PythonCommand(const PythonEnvironment& environment,
                                       const std::vector<std::string>& arguments,
                                       const ContainerNeeds& needs) {
  std::vector<std::string> argv;
  if (!environment.modules.empty()) argv = {"bash", "-lc", LoadModules(environment), "scalelab"};
  if (!environment.container.empty()) {
    argv.insert(argv.end(), {"apptainer", "exec"});
    if (needs.gpus) argv.push_back("--nv");
    std::vector<std::string> directories = needs.directories;
    directories.push_back(environment.venv);
    for (const std::string& directory : directories) {
      if (!directory.empty()) argv.insert(argv.end(), {"--bind", directory});
    }
    argv.push_back(environment.container);
  }
  argv.push_back(PythonOf(environment));
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

std::string CommandThatMakes(const Engine& engine, const std::string& venv) {
  const bool cuda = absl::EndsWith(venv, absl::StrCat("/", engine.environment, "-cuda"));
  return absl::StrCat("deploy/frameworks ", cuda ? "--cuda " : "", engine.environment);
}

std::optional<MissingPart> FindMissing(const Engine& engine, const PythonEnvironment& environment,
                                       const std::string& script) {
  const std::string build = CommandThatMakes(engine, environment.venv);
  const bool own_python = !environment.modules.empty() || !environment.container.empty();
  if (environment.venv.empty() && !own_python)
    return MissingPart{"no environment is configured for it", build};
  const std::string& image = environment.container;
  if (absl::StartsWith(image, "/") && access(image.c_str(), R_OK) != 0) {
    return MissingPart{absl::StrCat("its container '", image, "' does not exist or is not readable"),
                       "another container in the server's environments"};
  }
  if (!image.empty() && environment.modules.empty() && !OnPath("apptainer")) {
    return MissingPart{
        "'apptainer', which runs its container, is not on the PATH",
        "to install Apptainer, or to name the module that provides it in the server's environments"};
  }
  const std::string python = PythonOf(environment);
  // If there is a container, Python is inside it and cannot be checked here.
  if (image.empty() && !environment.venv.empty() && access(python.c_str(), X_OK) != 0)
    return MissingPart{absl::StrCat("'", python, "' does not exist or is not executable"), build};
  if (access(script.c_str(), R_OK) != 0) {
    return MissingPart{absl::StrCat("its adapter '", script, "' does not exist or is not readable"),
                       "to install share/scalelab/adapters next to bin, or scalelab-worker --adapters DIR"};
  }
  return std::nullopt;
}

}  // namespace scalelab
