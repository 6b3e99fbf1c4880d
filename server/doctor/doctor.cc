#include "server/doctor/doctor.h"

#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
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

void CheckPlaces(const Subject& subject, uid_t user, Findings& findings) {
  DirectoryUse data{.subject = "data", .must_be_local = !subject.rollback_journal, .must_be_private = true};
  Add(CheckDirectory(ReadDirectory(subject.data_dir), data, user), findings);
  DirectoryUse runs{.subject = "runs", .nodes_use_it = subject.scheduler == "slurm"};
  Add(CheckDirectory(ReadDirectory(subject.runs_dir), runs, user), findings);
  Add(CheckSecrets(ReadSecrets(subject.data_dir), user), findings);
  const pid_t server = RunningServer(subject.data_dir);
  for (const std::string& address : subject.listen) {
    AddressFacts facts = ReadAddress(address);
    // An absent data directory is no error, because the first start creates it.
    if (absl::StartsWith(address, absl::StrCat("unix:", subject.data_dir, "/")) && !Exists(subject.data_dir))
      facts.error.clear();
    findings.push_back(CheckAddress(facts, server));
  }
  const absl::StatusOr<Address> workers = ParseAddress(subject.worker_server);
  if (workers.ok()) findings.push_back(CheckWorkerServer(subject.worker_server, Resolve(workers->host)));
}

}  // namespace

Findings Examine(const Subject& subject) {
  const Run run = RunHere();
  const uid_t user = geteuid();
  Findings findings;
  findings.push_back(subject.mistake.empty() ? Ok("config", "valid")
                                             : Error("config", subject.mistake,
                                                     "correct it; scalelabd.yaml(5) describes all keys"));
  findings.push_back(CheckClock(ReadClock()));
  findings.push_back(CheckLimits(ReadLimits()));
  Add(CheckUnit(run), findings);
  findings.push_back(CheckAccount(findings, user));
  if (!subject.mistake.empty()) return findings;  // the other members of `subject` may not be set

  CheckPlaces(subject, user, findings);
  Add(CheckWorkerPrograms(run, subject.worker_program, subject.version), findings);
  const bool slurm = subject.scheduler == "slurm";
  if (slurm) Add(CheckSlurm(run, subject.sbatch_options), findings);
  if (subject.test_job) {
    TestJob job;
    job.slurm = slurm;
    job.sbatch_options = subject.sbatch_options;
    job.worker_program = subject.worker_program;
    job.version = subject.version;
    job.runs_dir = subject.runs_dir;
    job.worker_server = subject.worker_server;
    job.sleep = absl::SleepFor;
    Add(RunTestJob(run, job), findings);
  }
  return findings;
}

}  // namespace scalelab::server::doctor
