#include "study/sbatch_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "study/values.h"

namespace scalelab {
namespace {

// Options that would break what the coordinator relies on, and what to write instead.
struct OwnOption {
  absl::string_view name, instead;
};
constexpr OwnOption kOwnOptions[] = {
    {"job-name", "the coordinator finds its jobs by it"},
    {"parsable", "the coordinator sets it itself"},
    {"requeue", "the coordinator queues runs again itself, see retry"},
    {"no-requeue", "the coordinator sets it itself"},
    {"dependency", "the coordinator sets it itself, so that a job never runs twice"},
    {"array", "use matrix and repeats"},
    {"nodes", "it follows from ranks and resources.ranks_per_node"},
    {"ntasks", "it follows from ranks and resources.ranks_per_node"},
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
    {"input", "a job reads no input"},
    {"output", "the coordinator keeps the job's output in its own directory"},
    {"error", "the coordinator keeps the job's output in its own directory"},
    {"open-mode", "the coordinator keeps the job's output in its own directory"},
    {"chdir", "a job works in its own directory"},
    {"workdir", "a job works in its own directory"},
    {"signal", "the coordinator sets it itself, from resources.time"},
    {"export", "the coordinator hands over the environment itself"},
    {"export-file", "the coordinator hands over the environment itself"},
    {"get-user-env", "the coordinator hands over the environment itself"},
    {"clusters", "the coordinator looks after one cluster"},
    {"cluster", "the coordinator looks after one cluster"},
    {"uid", "jobs run as the coordinator's user"},
    {"gid", "jobs run as the coordinator's user"},
    {"help", "it submits nothing"},
    {"usage", "it submits nothing"},
    {"version", "it submits nothing"},
};

}  // namespace

std::string SbatchOptionMistake(absl::string_view name, absl::string_view value) {
  const bool plain =
      !name.empty() && absl::ascii_isalnum(name[0]) &&
      std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
  if (!plain) {
    return absl::StrCat("sbatch option ", Quote(name),
                        " must be a long option's name without dashes in front, such as constraint");
  }
  for (const OwnOption& own : kOwnOptions) {
    if (own.name == name) return absl::StrCat("sbatch option '", name, "' cannot be set here: ", own.instead);
  }
  // sbatch takes the beginning of a name for the name.
  for (const OwnOption& own : kOwnOptions) {
    if (absl::StartsWith(own.name, name)) {
      return absl::StrCat("sbatch option '", name, "' could be read as '", own.name,
                          "'; write the whole name of the option");
    }
  }
  if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
    return absl::StrCat("sbatch option '", name, "' has a control character in its value");
  return "";
}

}  // namespace scalelab
