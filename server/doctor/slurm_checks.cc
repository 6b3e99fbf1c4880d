#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/doctor/program_checks.h"
#include "server/scheduler/slurm_view.h"

namespace scalelab::server::doctor {
namespace {

// Returns whether the node accepts no job until an administrator repairs it, by the state that sinfo prints.
bool Unusable(const ClusterView::Node& node) {
  const std::string state = absl::AsciiStrToUpper(node.state);
  for (const char* word : {"DOWN", "DRAIN", "FAIL", "NO_RESPOND", "UNKNOWN", "POWERED_DOWN"}) {
    if (absl::StrContains(state, word)) return true;
  }
  return !node.responds;
}

void CheckPartitions(const ClusterView& view, Findings& findings) {
  std::vector<std::string> up, down, unusable;
  for (const ClusterView::Partition& partition : view.partitions) {
    (absl::EqualsIgnoreCase(partition.state, "up") ? up : down).push_back(partition.name);
  }
  for (const ClusterView::Node& node : view.nodes) {
    if (Unusable(node))
      unusable.push_back(
          absl::StrCat(node.name, " (", node.state, node.responds ? ")" : ", does not respond)"));
  }
  if (up.empty()) {
    findings.push_back(
        Error("partitions", "no partition is up",
              "scontrol update partitionname=NAME state=up; scontrol show partition shows their states"));
  } else if (!down.empty()) {
    findings.push_back(Warning("partitions", absl::StrCat("not up: ", absl::StrJoin(down, ", ")),
                               "jobs for them wait; scontrol show partition shows their states"));
  }
  if (!unusable.empty() && unusable.size() == view.nodes.size()) {
    findings.push_back(Error("nodes", absl::StrCat("none accepts jobs: ", absl::StrJoin(unusable, ", ")),
                             "sinfo -R shows the reasons; scontrol update nodename=NODE state=resume"));
  } else if (!unusable.empty()) {
    findings.push_back(Warning("nodes",
                               absl::StrCat(unusable.size(), " of ", view.nodes.size(),
                                            " accept no jobs: ", absl::StrJoin(unusable, ", ")),
                               "sinfo -R shows the reasons"));
  } else {
    findings.push_back(
        Ok("nodes", absl::StrCat(view.nodes.size(), " in partitions ", absl::StrJoin(up, ", "))));
  }
}

// Parses the output of `scontrol show config`.
std::map<std::string, std::string> Settings(const std::string& config) {
  std::map<std::string, std::string> settings;
  for (const absl::string_view line : absl::StrSplit(config, '\n')) {
    const std::pair<absl::string_view, absl::string_view> setting =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    settings.emplace(absl::StripAsciiWhitespace(setting.first), absl::StripAsciiWhitespace(setting.second));
  }
  return settings;
}

void CheckSite(const Run& run, std::map<std::string, std::string> settings, Findings& findings) {
  const std::string& version = settings["SLURM_VERSION"];
  int year = 0;
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &year) || year < 20) {
    findings.push_back(Warning("slurm", absl::StrCat("version ", version.empty() ? "unknown" : version),
                               "scalelab is tested with Slurm 22.05"));
  } else {
    findings.push_back(Ok("slurm", absl::StrCat("version ", version, ", the controller answers")));
  }
  if (settings["AuthType"] == "auth/munge") {
    absl::string_view socket = settings["AuthInfo"];
    const size_t start = socket.find("socket=");
    socket = start == absl::string_view::npos ? "" : socket.substr(start + sizeof "socket=" - 1);
    findings.push_back(CheckMunge(run, std::string(socket.substr(0, socket.find(',')))));
  }
  const std::string& tasks = settings["TaskPlugin"];
  if (!absl::StrContains(tasks, "affinity") && !absl::StrContains(tasks, "cgroup")) {
    findings.push_back(
        Warning("slurm",
                absl::StrCat("TaskPlugin is ", tasks.empty() ? "unknown" : tasks,
                             ", so ranks are not bound to cores"),
                "set TaskPlugin=task/affinity,task/cgroup in slurm.conf for repeatable figures"));
  }
}

}  // namespace

std::vector<std::string> SbatchArguments(const std::vector<std::pair<std::string, std::string>>& options) {
  std::vector<std::string> arguments;
  for (const auto& [name, value] : options)
    arguments.push_back(value.empty() ? absl::StrCat("--", name) : absl::StrCat("--", name, "=", value));
  return arguments;
}

Findings CheckSlurm(const Run& run, const std::vector<std::pair<std::string, std::string>>& sbatch_options,
                    bool users_submit) {
  Findings findings;
  std::vector<std::string> missing;
  for (const char* program : {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"}) {
    const absl::StatusOr<CommandResult> started = run({program, "--version"}, "");
    if (!started.ok() || !started->ok()) missing.emplace_back(program);
  }
  if (!missing.empty()) {
    return {Error(
        "slurm", absl::StrCat("these programs are missing or do not start: ", absl::StrJoin(missing, ", ")),
        "install slurm-client with the cluster's slurm.conf, or add the programs to PATH of the unit")};
  }
  const absl::StatusOr<CommandResult> site = run({"scontrol", "show", "config"}, "");
  if (!site.ok() || !site->ok()) {
    return {Error(
        "slurm", absl::StrCat("the controller does not answer: ", WhyFailed(site)),
        "start slurmctld; scontrol ping shows its state. Credentials of MUNGE must work between this machine "
        "and the controller's: munge -n | ssh HOST unmunge")};
  }
  CheckSite(run, Settings(site->out), findings);

  const absl::StatusOr<CommandResult> nodes =
      run({"sinfo", "--all", "--Node", "--noheader", absl::StrCat("--Format=", kSinfoColumns)}, "");
  const absl::StatusOr<ClusterView> view =
      nodes.ok() && nodes->ok() ? ParseView(nodes->out)
                                : absl::StatusOr<ClusterView>(absl::UnavailableError(WhyFailed(nodes)));
  if (view.ok()) {
    CheckPartitions(*view, findings);
  } else {
    findings.push_back(Error("nodes", absl::StrCat("sinfo: ", view.status().message()), "see slurm.conf"));
  }

  if (users_submit) {
    findings.push_back(Ok("submission", "the agents of the users submit the jobs, not this account"));
    return findings;
  }
  std::vector<std::string> argv = {"sbatch", "--test-only", "--job-name=scalelab-doctor", "--nodes=1",
                                   "--time=2"};
  const std::vector<std::string> more = SbatchArguments(sbatch_options);
  argv.insert(argv.end(), more.begin(), more.end());
  const absl::StatusOr<CommandResult> submitted = run(argv, "#!/bin/sh\ntrue\n");
  if (submitted.ok() && submitted->ok()) {
    findings.push_back(Ok("submission", "Slurm would accept a job of this account"));
  } else {
    findings.push_back(Error("submission",
                             absl::StrCat("Slurm would refuse a job of this account: ", WhyFailed(submitted)),
                             "sacctmgr show associations; or set sbatch_option to the account to use"));
  }
  return findings;
}

}  // namespace scalelab::server::doctor
