#include "server/doctor/program_checks.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "catalog/installation.h"
#include "server/scheduler/slurm_errors.h"

namespace scalelab::server::doctor {
namespace {

// Parses lines "KEY=VALUE".
std::map<std::string, std::string> Values(const std::string& text) {
  std::map<std::string, std::string> values;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> value = absl::StrSplit(line, absl::MaxSplits('=', 1));
    values.insert(value);
  }
  return values;
}

// Returns the libraries that are "not found" in the output of ldd.
std::vector<std::string> MissingLibraries(const std::string& ldd) {
  std::vector<std::string> missing;
  for (const absl::string_view line : absl::StrSplit(ldd, '\n')) {
    if (absl::StrContains(line, "not found"))
      missing.emplace_back(absl::StripAsciiWhitespace(line.substr(0, line.find("=>"))));
  }
  return missing;
}

// Returns whether an executable is a script, by the output of ldd. Sites write scripts that start the worker elsewhere,
// for example in an image of Apptainer.
bool IsScript(const Run& run, const std::string& program, const CommandResult& ldd) {
  if (!absl::StrContains(absl::StrCat(ldd.out, ldd.err), "not a dynamic executable")) return false;
  const absl::StatusOr<CommandResult> executable = run({"test", "-x", program}, "");
  return executable.ok() && executable->ok();
}

}  // namespace

std::string WhyFailed(const absl::StatusOr<CommandResult>& result) {
  return result.ok() ? FailureReason(*result) : std::string(result.status().message());
}

Finding CheckMunge(const Run& run, const std::string& socket) {
  std::vector<std::string> munge = {"munge", "--no-input"}, unmunge = {"unmunge"};
  if (!socket.empty()) {
    munge.push_back("--socket=" + socket);
    unmunge.push_back("--socket=" + socket);
  }
  const absl::StatusOr<CommandResult> credential = run(munge, "");
  if (!credential.ok() || !credential->ok()) {
    return Error("munge", absl::StrCat("munge makes no credential: ", WhyFailed(credential)),
                 "install munge and start munged; /etc/munge/munge.key must be that of the cluster");
  }
  const absl::StatusOr<CommandResult> decoded = run(unmunge, credential->out);
  if (!decoded.ok() || !decoded->ok()) {
    return Error("munge", absl::StrCat("unmunge refuses a credential of this machine: ", WhyFailed(decoded)),
                 "see /var/log/munge/munged.log; the clocks must agree within 5 minutes");
  }
  return Ok("munge", "makes and accepts credentials");
}

Findings CheckUnit(const Run& run) {
  const absl::StatusOr<CommandResult> shown =
      run({"systemctl", "show", "scalelabd.service",
           "--property=LoadState,ActiveState,UnitFileState,NRestarts,Result,NeedDaemonReload"},
          "");
  // On a machine without systemd, systemctl is missing or fails because there is no system bus.
  if (!shown.ok() || !shown->ok()) return {};
  std::map<std::string, std::string> unit = Values(shown->out);
  if (unit["LoadState"] == "not-found") return {};
  if (unit["LoadState"] != "loaded") {
    return {Error("systemd", absl::StrCat("scalelabd.service is ", unit["LoadState"]),
                  "systemctl unmask scalelabd; systemd-analyze verify scalelabd.service shows mistakes")};
  }
  if (unit["ActiveState"] == "failed") {
    return {Error("systemd", absl::StrCat("scalelabd.service has failed (", unit["Result"], ")"),
                  "journalctl -u scalelabd shows why; then systemctl restart scalelabd")};
  }
  Findings findings;
  if (unit["NeedDaemonReload"] == "yes") {
    findings.push_back(
        Warning("systemd", "scalelabd.service has changed since systemd read it", "systemctl daemon-reload"));
  }
  if (unit["UnitFileState"] == "disabled") {
    findings.push_back(Warning("systemd", "scalelabd.service does not start when the machine starts",
                               "systemctl enable scalelabd scalelabd-backup.timer"));
  }
  if (!unit["NRestarts"].empty() && unit["NRestarts"] != "0") {
    findings.push_back(
        Warning("systemd",
                absl::StrCat("scalelabd.service was restarted ", unit["NRestarts"], " times after crashes"),
                "journalctl -u scalelabd shows why"));
  }
  if (findings.empty())
    findings.push_back(Ok("systemd", absl::StrCat("scalelabd.service is ", unit["ActiveState"])));
  return findings;
}

bool UnitIgnoresSetuid(const Run& run) {
  // With each of these settings, systemd sets no_new_privs for a service that has User=, even with NoNewPrivileges=no.
  const absl::StatusOr<CommandResult> shown =
      run({"systemctl", "show", "scalelabd.service",
           "--property=NoNewPrivileges,LockPersonality,MemoryDenyWriteExecute,PrivateDevices,ProtectClock,"
           "ProtectHostname,ProtectKernelLogs,ProtectKernelModules,ProtectKernelTunables,RestrictRealtime,"
           "RestrictSUIDSGID"},
          "");
  return shown.ok() && shown->ok() && absl::StrContains(shown->out, "=yes\n");
}

Findings CheckWorkerPrograms(const Run& run, const std::string& worker_program, const std::string& version) {
  Findings findings;
  const std::string trainer = CompanionProgram(worker_program, "scalelab-trainer");
  const std::vector<std::string> programs = {worker_program,
                                             CompanionProgram(worker_program, "scalelab-rank"), trainer};
  bool worker_is_script = false;
  for (const std::string& program : programs) {
    const absl::StatusOr<CommandResult> libraries = run({"ldd", program}, "");
    if (!libraries.ok() || !libraries->ok()) {
      if (libraries.ok() && IsScript(run, program, *libraries)) {
        worker_is_script = worker_is_script || program == worker_program;
        continue;
      }
      if (worker_is_script) {  // the worker finds the other programs where the script starts it
        if (program == trainer) {
          findings.push_back(
              Warning("programs", absl::StrCat(program, ": ", WhyFailed(libraries)),
                      "write a script that starts scalelab-trainer; scalelabd needs it for studies of "
                      "native engines"));
        }
        continue;
      }
      findings.push_back(Error("programs", absl::StrCat(program, ": ", WhyFailed(libraries)),
                               "install the package scalelab-worker, or set worker_program"));
      continue;
    }
    if (const std::vector<std::string> missing = MissingLibraries(libraries->out); !missing.empty()) {
      findings.push_back(Error("programs", absl::StrCat(program, " lacks ", absl::StrJoin(missing, ", ")),
                               "install the packages with these libraries"));
    }
  }
  if (HasError(findings)) return findings;
  const absl::StatusOr<CommandResult> started = run({worker_program, "--version"}, "");
  if (!started.ok() || !started->ok())
    return {
        Error("programs", absl::StrCat(worker_program, ": ", WhyFailed(started)),
              worker_is_script
                  ? "correct the script; it must pass --version to scalelab-worker and print what that prints"
                  : "install it again")};
  const std::string printed(absl::StripAsciiWhitespace(started->out));
  const std::string expected = absl::StrCat("scalelab-worker ", version);
  if (printed != expected) {
    findings.push_back(Warning("programs",
                               absl::StrCat(worker_program, " is ", printed, ", and scalelabd is ", version),
                               "install the same version of scalelab-server and scalelab-worker"));
  }
  if (findings.empty()) {
    findings.push_back(Ok("programs", worker_is_script
                                          ? absl::StrCat(worker_program, " is a script, and starts here")
                                          : absl::StrCat(worker_program,
                                                         ", scalelab-rank and scalelab-trainer start "
                                                         "here")));
  }
  return findings;
}

}  // namespace scalelab::server::doctor
