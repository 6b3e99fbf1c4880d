#include "agent/checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::agent {
namespace {

using Execute = v1::ServeResponse::Execute;

constexpr int kMaxArguments = 1100;         // enough for scancel with 1000 jobs
constexpr size_t kMaxArgument = 100 << 10;  // enough for sacct with 2000 names
constexpr size_t kMaxScript = size_t{1} << 20;

// An option that a program may get: exactly `name`, or `name` and a value if it ends with '='.
struct Option {
  absl::string_view name;
  bool required = false;
};

absl::Status Refuse(absl::string_view program, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(program, ": ", why));
}

std::string Quoted(absl::string_view text) {
  std::string shown(text.substr(0, 80));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return absl::StrCat("'", shown, "'");
}

bool IsJobName(absl::string_view text) {
  return !text.empty() && text.size() <= 64 && text[0] != '-' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; });
}

bool IsJobId(absl::string_view text) {
  return !text.empty() && text.size() <= 20 && absl::ascii_isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c) || c == '_' || c == '+'; });
}

// Returns the value of an argument of the form NAME=VALUE with this name; empty if there is none.
std::string Value(const Execute& execute, absl::string_view name) {
  for (absl::string_view argument : execute.arguments()) {
    if (absl::ConsumePrefix(&argument, name)) return std::string(argument);
  }
  return "";
}

// Checks that each argument is one of the options or, with `ids`, the id of a job, and that no required one is missing.
absl::Status CheckOptions(const Execute& execute, const std::string& program,
                          const std::vector<Option>& options, bool ids = false) {
  for (const std::string& argument : execute.arguments()) {
    const bool known = std::any_of(options.begin(), options.end(), [&](const Option& option) {
      return absl::EndsWith(option.name, "=") ? absl::StartsWith(argument, option.name)
                                              : argument == option.name;
    });
    if (!known && !(ids && IsJobId(argument)))
      return Refuse(program, absl::StrCat("the argument ", Quoted(argument), " is not allowed"));
  }
  for (const Option& option : options) {
    const bool given =
        std::any_of(execute.arguments().begin(), execute.arguments().end(),
                    [&](const std::string& argument) { return absl::StartsWith(argument, option.name); });
    if (option.required && !given) return Refuse(program, absl::StrCat("needs the argument ", option.name));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const Execute& execute) {
  if (execute.arguments_size() > kMaxArguments)
    return absl::InvalidArgumentError(absl::StrCat(execute.arguments_size(), " arguments are too many"));
  for (const std::string& argument : execute.arguments()) {
    if (argument.size() > kMaxArgument) return absl::InvalidArgumentError("an argument is too long");
    if (std::any_of(argument.begin(), argument.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }))
      return absl::InvalidArgumentError(
          absl::StrCat("the argument ", Quoted(argument), " has control characters"));
  }
  return absl::OkStatus();
}

absl::Status CheckSbatch(const Execute& execute, const User& user, Command* command) {
  if (auto s = CheckOptions(execute, "sbatch",
                            {{"--parsable"},
                             {"--no-requeue"},
                             {"--dependency=singleton", true},
                             {"--export=ALL"},
                             {"--job-name=", true},
                             {"--chdir=", true}});
      !s.ok())
    return s;
  command->job = Value(execute, "--job-name=");
  if (!IsJobName(command->job))
    return Refuse("sbatch", absl::StrCat(Quoted(command->job), " is not the name of an allocation's job"));
  const std::string directory = absl::StrCat(user.directory, "/allocations/", command->job);
  if (Value(execute, "--chdir=") != directory)
    return Refuse("sbatch", absl::StrCat("the directory of the job must be ", directory));
  if (!absl::StartsWith(execute.standard_input(), "#!"))
    return Refuse("sbatch", "there is no script on standard input");
  if (execute.standard_input().size() > kMaxScript)
    return Refuse("sbatch", "the script is longer than 1 MiB");
  return absl::OkStatus();
}

absl::Status CheckScancel(const Execute& execute, const std::string& own) {
  if (auto s = CheckOptions(execute, "scancel", {{own, true}, {"--name="}}, /*ids=*/true); !s.ok()) return s;
  const std::string name = Value(execute, "--name=");
  if (!name.empty() && !IsJobName(name))
    return Refuse("scancel", absl::StrCat(Quoted(name), " is not the name of an allocation's job"));
  const bool ids = std::any_of(execute.arguments().begin(), execute.arguments().end(), IsJobId);
  // Without names and ids, scancel would cancel all jobs of the user.
  if (name.empty() && !ids) return Refuse("scancel", "needs the name or the ids of jobs");
  return absl::OkStatus();
}

absl::Status CheckScontrol(const Execute& execute) {
  if (execute.arguments_size() == 0 || execute.arguments(0) != "show")
    return Refuse("scontrol", "only `scontrol show` is allowed");
  for (const std::string& argument : execute.arguments()) {
    if (argument.empty() || !absl::ascii_isalnum(static_cast<unsigned char>(argument[0])))
      return Refuse("scontrol", absl::StrCat("the argument ", Quoted(argument), " is not allowed"));
  }
  return absl::OkStatus();
}

absl::Status CheckProgram(const Execute& execute, const User& user, Command* command) {
  switch (execute.program()) {
    case Execute::SBATCH:
      return CheckSbatch(execute, user, command);
    case Execute::SQUEUE:
      return CheckOptions(execute, "squeue",
                          {{absl::StrCat("--user=", user.uid), true},
                           {"--all"},
                           {"--noheader"},
                           {"--states=all"},
                           {"--Format="},
                           {"--name="}});
    case Execute::SACCT:
      return CheckOptions(execute, "sacct",
                          {{absl::StrCat("--uid=", user.uid), true},
                           {"--allocations"},
                           {"--noheader"},
                           {"--parsable2"},
                           {"--starttime="},
                           {"--format="},
                           {"--name="}});
    case Execute::SCANCEL:
      return CheckScancel(execute, absl::StrCat("--user=", user.uid));
    case Execute::SINFO:
      return CheckOptions(execute, "sinfo", {{"--all"}, {"--Node"}, {"--noheader"}, {"--Format="}});
    case Execute::SCONTROL:
      return CheckScontrol(execute);
    default:
      return absl::InvalidArgumentError(absl::StrCat("program ", static_cast<int>(execute.program()),
                                                     " is not one of those that an agent executes"));
  }
}

}  // namespace

absl::StatusOr<Command> CheckCommand(const Execute& execute, const User& user) {
  if (auto s = CheckSizes(execute); !s.ok()) return s;
  Command command;
  if (auto s = CheckProgram(execute, user, &command); !s.ok()) return s;
  const bool sbatch = execute.program() == Execute::SBATCH;
  if (!sbatch && !execute.standard_input().empty())
    return absl::InvalidArgumentError("only sbatch gets standard input");
  for (const auto& [name, value] : execute.environment()) {
    const bool secret = sbatch && name == "SCALELAB_ALLOCATION_SECRET";
    if (!secret && name != "SLURM_TIME_FORMAT")
      return absl::InvalidArgumentError(absl::StrCat("the variable ", Quoted(name), " is not allowed"));
    if (value.size() > 1000 || value.find('\0') != std::string::npos)
      return absl::InvalidArgumentError(absl::StrCat("the value of the variable ", name, " is invalid"));
    command.variables.push_back(absl::StrCat(name, "=", value));
  }
  command.argv = {absl::AsciiStrToLower(Execute::Program_Name(execute.program()))};
  command.argv.insert(command.argv.end(), execute.arguments().begin(), execute.arguments().end());
  return command;
}

absl::Status CheckBelow(const std::string& path, const std::string& directory) {
  absl::string_view rest = path;
  bool below = absl::ConsumePrefix(&rest, absl::StrCat(directory, "/")) && !rest.empty();
  for (absl::string_view part : absl::StrSplit(rest, '/'))
    below = below && !part.empty() && part != "." && part != "..";
  if (below && path.find('\0') == std::string::npos) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Quoted(path), " is not below ", directory));
}

}  // namespace scalelab::agent
