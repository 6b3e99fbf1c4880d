#include "server/doctor/doctor.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/doctor/account.h"
#include "server/doctor/facts.h"
#include "server/doctor/machine_checks.h"
#include "server/doctor/program_checks.h"
#include "server/doctor/test_job.h"
#include "server/rpc/socket.h"

namespace scalelab::server::doctor {
namespace {

void Add(Findings more, Findings& findings) {
  for (Finding& finding : more) findings.push_back(std::move(finding));
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Finding CheckAccount(const Findings& others, uid_t user) {
  if (user != 0) return Ok("account", absl::StrCat("checked as user ", user));
  for (const Finding& finding : others) {
    if (finding.subject == "systemd")
      return Warning("account", "checked as root, who may do more than the account of the service",
                     "run: sudo -u scalelab scalelabd doctor --config FILE");
  }
  return Ok("account", "checked as root");
}

void CheckRuns(const Subject& subject, uid_t user, Findings& findings) {
  DirectoryUse runs{
      .subject = "runs", .nodes_use_it = subject.scheduler == "slurm", .users_write = subject.users_submit};
  Add(CheckDirectory(ReadDirectory(subject.runs_dir), runs, user), findings);
}

void CheckPlaces(const Subject& subject, const DirectoryFacts& data_dir, uid_t user, Findings& findings) {
  DirectoryUse data{.subject = "data", .must_be_local = !subject.rollback_journal, .must_be_private = true};
  Add(CheckDirectory(data_dir, data, user), findings);
  CheckRuns(subject, user, findings);
  Add(CheckSecrets(ReadSecrets(subject.data_dir), user), findings);
  const pid_t server = RunningServer(subject.data_dir);
  for (const std::string& address : subject.listen) {
    AddressFacts facts = ReadAddress(address);
    // A missing data directory is not an error, because the first start creates it.
    if (absl::StartsWith(address, absl::StrCat("unix:", subject.data_dir, "/")) && !Exists(subject.data_dir))
      facts.error.clear();
    findings.push_back(CheckAddress("listen", facts, server));
    Add(CheckSocketAccess(facts, subject.socket_mode), findings);
  }
  for (const auto& [key, address] : {std::pair("metrics", subject.metrics), std::pair("web", subject.web)}) {
    if (!address.empty()) findings.push_back(CheckAddress(key, ReadAddress(address), server));
  }
  const absl::StatusOr<Address> workers = ParseAddress(subject.worker_server);
  if (workers.ok()) findings.push_back(CheckWorkerServer(subject.worker_server, Resolve(workers->host)));
}

void CheckNotify(const Subject& subject, const Run& run, Findings& findings) {
  std::vector<ProgramFacts> programs;
  if (!subject.sendmail.empty()) programs.push_back(ReadProgram("sendmail", subject.sendmail));
  for (const auto& [name, program] : subject.notify_commands)
    programs.push_back(ReadProgram(absl::StrCat("notify_commands: ", name), program));
  const pid_t server = RunningServer(subject.data_dir);
  const std::optional<bool> running = server == 0 ? std::nullopt : HasNoNewPrivileges(server);
  Add(CheckNotifications(programs, running.has_value() ? *running : UnitIgnoresSetuid(run)), findings);
}

// Checks the files that encrypted TCP connections need.
void CheckCertificate(const Subject& subject, Findings& findings) {
  const bool tcp = std::any_of(subject.listen.begin(), subject.listen.end(), [](const std::string& address) {
    return !absl::StartsWith(address, "unix:");
  });
  if (!tcp || subject.insecure) return;
  std::vector<TlsFileFacts> files;
  const std::string own = subject.data_dir + "/tls.pem";
  if (!subject.tls_certificate.empty()) {
    files.push_back(ReadCertificate("tls_certificate", subject.tls_certificate));
    files.push_back(ReadKey("tls_key", subject.tls_key, subject.tls_certificate));
    if (!subject.tls_authority.empty())
      files.push_back(ReadCertificate("tls_authority", subject.tls_authority));
  } else if (Exists(own)) {
    files.push_back(ReadCertificate("", own));
  }
  Add(CheckTls(files, absl::Now()), findings);
}

// `as_user`: this process has the account of a user, as the agents that submit jobs.
Findings CheckJob(const Subject& subject, bool as_user, const Run& run) {
  if (subject.users_submit && !as_user) {
    return {
        Warning("node", "no test job, because jobs run under the accounts of their users",
                "sudo scalelabd doctor --config FILE --job --as USER, or run it as a user of the cluster")};
  }
  TestJob job;
  job.as_user = as_user;
  job.slurm = subject.scheduler == "slurm";
  job.sbatch_options = subject.sbatch_options;
  job.worker_program = subject.worker_program;
  job.version = subject.version;
  job.runs_dir = subject.runs_dir;
  job.worker_server = subject.worker_server;
  job.sleep = absl::SleepFor;
  job.now = [] { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); };
  return RunTestJob(run, job);
}

}  // namespace

Findings Examine(const Subject& subject, const Run& run) {
  const uid_t user = geteuid();
  Findings findings;
  findings.push_back(subject.mistake.empty() ? Ok("config", "valid")
                                             : Error("config", subject.mistake,
                                                     "correct it; scalelabd.yaml(5) describes all keys"));
  findings.push_back(CheckClock(ReadClock()));
  findings.push_back(CheckLimits(ReadLimits()));
  Add(CheckUnit(run), findings);
  if (!subject.mistake.empty()) {  // the other members of `subject` may not be set
    findings.push_back(CheckAccount(findings, user));
    return findings;
  }

  const DirectoryFacts data_dir = ReadDirectory(subject.data_dir);
  bool as_user = subject.users_submit && IsClusterUser(data_dir, user);
  if (as_user) {
    findings.push_back(Ok(
        "account", absl::StrCat("user ", user,
                                " submits jobs; data, keys, tls and addresses are checked under the account "
                                "of the service only")));
    CheckRuns(subject, user, findings);
  } else {
    findings.push_back(CheckAccount(findings, user));
    CheckPlaces(subject, data_dir, user, findings);
    CheckCertificate(subject, findings);
    CheckNotify(subject, run, findings);
  }
  Add(CheckWorkerPrograms(run, subject.worker_program, subject.version), findings);
  if (!subject.munge_socket.empty()) findings.push_back(CheckMunge(run, subject.munge_socket));
  if (!subject.job_user.empty()) {
    if (const absl::Status changed = BecomeUser(subject.job_user); !changed.ok()) {
      findings.push_back(Error("account", std::string(changed.message()),
                               "check the name of the account, and run this command as root; or log in as "
                               "that user and omit --as"));
      return findings;
    }
    as_user = true;
  }
  if (subject.scheduler == "slurm")
    Add(CheckSlurm(run, subject.sbatch_options, subject.users_submit && !as_user), findings);
  if (subject.test_job) Add(CheckJob(subject, as_user, run), findings);
  return findings;
}

}  // namespace scalelab::server::doctor
