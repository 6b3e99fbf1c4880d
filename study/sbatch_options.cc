#include "study/sbatch_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "study/values.h"

namespace scalelab {
namespace {

// Options that the coordinator sets or depends on, and what to use instead.
struct OwnOption {
  absl::string_view name, instead;
};
constexpr OwnOption kOwnOptions[] = {
    {"job-name", "the coordinator identifies its jobs by their names"},
    {"parsable", "the coordinator sets it"},
    {"requeue", "the coordinator retries runs itself, see retry"},
    {"no-requeue", "the coordinator sets it"},
    {"dependency", "the coordinator sets it, so that a job never runs twice"},
    {"array", "use matrix and repeats"},
    {"nodes", "it is derived from ranks and resources.ranks_per_node"},
    {"ntasks", "it is derived from ranks and resources.ranks_per_node"},
    {"ntasks-per-node", "use resources.ranks_per_node"},
    {"tasks-per-node", "use resources.ranks_per_node"},
    {"cpus-per-task", "use resources.cpus_per_rank"},
    {"partition", "use resources.partition"},
    {"time", "use resources.time"},
    {"exclusive", "use resources.exclusive"},
    {"mem", "use resources.memory_mib"},
    {"wrap", "the coordinator submits its own script"},
    {"test-only", "use scalelab study plan"},
    {"wait", "use scalelab study wait"},
    {"input", "jobs have no input"},
    {"output", "the coordinator writes the job's output to its own directory"},
    {"error", "the coordinator writes the job's output to its own directory"},
    {"open-mode", "the coordinator writes the job's output to its own directory"},
    {"chdir", "the coordinator sets the working directory"},
    {"workdir", "the coordinator sets the working directory"},
    {"signal", "the coordinator derives it from resources.time"},
    {"export", "the coordinator sets the job's environment"},
    {"export-file", "the coordinator sets the job's environment"},
    {"get-user-env", "the coordinator sets the job's environment"},
    {"clusters", "the coordinator uses only one cluster"},
    {"cluster", "the coordinator uses only one cluster"},
    {"uid", "jobs run as the coordinator's user"},
    {"gid", "jobs run as the coordinator's user"},
    {"help", "it does not submit a job"},
    {"usage", "it does not submit a job"},
    {"version", "it does not submit a job"},
};

}  // namespace

std::string SbatchOptionMistake(absl::string_view name, absl::string_view value) {
  const bool plain =
      !name.empty() && absl::ascii_isalnum(name[0]) &&
      std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
  if (!plain) {
    return absl::StrCat("sbatch option ", Quote(name),
                        " must be the name of a long option without leading dashes, for example constraint");
  }
  for (const OwnOption& own : kOwnOptions) {
    if (own.name == name) return absl::StrCat("sbatch option '", name, "' cannot be set here: ", own.instead);
  }
  // Compare prefixes too, because sbatch accepts a prefix of a long option's name.
  for (const OwnOption& own : kOwnOptions) {
    if (absl::StartsWith(own.name, name)) {
      return absl::StrCat("sbatch option '", name, "' could be read as '", own.name,
                          "'; write the full name of the option");
    }
  }
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
    return absl::StrCat("sbatch option '", name, "' has a control character in its value");
  return "";
}

}  // namespace scalelab
