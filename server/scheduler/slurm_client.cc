#include "server/scheduler/slurm_client.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/scheduler/slurm_view.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Maximum number of names in one query. Linux limits the length of an argument to 128 KiB.
constexpr size_t kNamesPerQuery = 1000;

// Parses the jobs of a user in the output of squeue or sacct. UNAVAILABLE when it is incomplete or no line is valid.
absl::StatusOr<Queue> ReadQueue(const std::string& program, absl::string_view text, uid_t user) {
  Queue queue = ParseQueue(text, user);
  if (queue.malformed > 0)
    spdlog::warn("{}: {} malformed lines, the first is '{}'", program, queue.malformed,
                 queue.first_malformed);
  // A malformed line, such as the rest of a job name with a line break, does not make the other lines useless.
  if (queue.incomplete || (queue.malformed > 0 && queue.valid == 0)) {
    return absl::UnavailableError(
        absl::StrCat("the output of ", program, queue.incomplete ? " is incomplete" : " is malformed",
                     queue.malformed > 0 ? absl::StrCat(": '", queue.first_malformed, "'") : ""));
  }
  return queue;
}

}  // namespace

SlurmClient::SlurmClient(CommandRunner& query, CommandRunner& act, uid_t user, absl::Duration timeout)
    : query_(query), act_(act), uid_(user), user_(absl::StrCat(user)), timeout_(timeout) {}

absl::StatusOr<std::string> SlurmClient::Output(const std::vector<std::string>& argv) const {
  absl::StatusOr<CommandResult> result =
      query_.Run(argv, "", {"SLURM_TIME_FORMAT=%s"}, timeout_);  // seconds since 1970
  if (!result.ok()) return absl::UnavailableError(result.status().message());
  if (!result->ok()) return absl::UnavailableError(absl::StrCat(argv[0], ": ", FailureReason(*result)));
  return std::move(result->out);
}

absl::StatusOr<std::string> SlurmClient::Squeue(const std::string& users, const std::string& names) const {
  // --all is necessary, because squeue otherwise leaves out jobs in hidden partitions.
  std::vector<std::string> argv = {"squeue",     "--all",        "--user=" + users,
                                   "--noheader", "--states=all", absl::StrCat("--Format=", kSqueueColumns)};
  if (!names.empty()) argv.push_back(absl::StrCat("--name=", names));
  return Output(argv);
}

absl::StatusOr<Queue> SlurmClient::Jobs(const std::string& name) const {
  const absl::StatusOr<std::string> text = Squeue(user_, name);
  if (!text.ok()) return text.status();
  return ReadQueue("squeue", *text, uid_);
}

absl::StatusOr<std::map<uid_t, Queue>> SlurmClient::JobsOf(const std::vector<uid_t>& users,
                                                           const std::vector<std::string>& names) const {
  std::string text;
  for (size_t first = 0; first < names.size(); first += kNamesPerQuery) {
    const size_t last = std::min(first + kNamesPerQuery, names.size());
    const absl::StatusOr<std::string> part =
        Squeue(absl::StrJoin(users, ","), absl::StrJoin(names.begin() + first, names.begin() + last, ","));
    if (!part.ok()) return part.status();
    absl::StrAppend(&text, *part);
    if (!text.empty() && text.back() != '\n') break;  // incomplete, which ReadQueue reports
  }
  std::map<uid_t, Queue> queues;
  for (const uid_t user : users) {
    absl::StatusOr<Queue> queue = ReadQueue("squeue", text, user);
    if (!queue.ok()) return queue.status();
    queues.emplace(user, *std::move(queue));
  }
  return queues;
}

absl::StatusOr<Queue> SlurmClient::Accounted(const std::vector<std::string>& names) const {
  std::string text;
  for (size_t first = 0; first < names.size(); first += kNamesPerQuery) {
    const size_t last = std::min(first + kNamesPerQuery, names.size());
    const absl::StatusOr<std::string> part =
        Output({"sacct", "--uid=" + user_, "--allocations", "--noheader", "--parsable2",
                "--starttime=now-30days", absl::StrCat("--format=", kSacctColumns),
                absl::StrCat("--name=", absl::StrJoin(names.begin() + first, names.begin() + last, ","))});
    if (!part.ok()) return part.status();
    absl::StrAppend(&text, *part);
    if (!text.empty() && text.back() != '\n') break;  // incomplete, which ReadQueue reports
  }
  return ReadQueue("sacct", text, uid_);
}

absl::StatusOr<ClusterView> SlurmClient::View() const {
  const absl::StatusOr<std::string> text =
      Output({"sinfo", "--all", "--Node", "--noheader", absl::StrCat("--Format=", kSinfoColumns)});
  if (!text.ok()) return text.status();
  return ParseView(*text);
}

SlurmClient::Submitted SlurmClient::Submit(const JobRequest& request, const std::string& script,
                                           const std::string& directory) const {
  // --export=ALL exports exactly sbatch's environment. With a list of names slurmd would run a login shell on the
  // node to get the other variables.
  const absl::StatusOr<CommandResult> result =
      act_.Run({"sbatch", "--parsable", "--no-requeue", "--dependency=singleton", "--export=ALL",
                "--job-name=" + request.token, "--chdir=" + directory},
               script, {absl::StrCat(kSecretVariable, "=", request.secret)}, timeout_);
  if (!result.ok()) return {"", {absl::UnavailableError(result.status().message())}};
  // If sbatch was killed after it has printed the id, the job is accepted nevertheless.
  if (result->exit_code <= 0) {
    if (const auto id = ParseSubmitted(result->out)) return {*id, {}};
  }
  return {"", InterpretFailure(*result, request)};
}

absl::Status SlurmClient::Cancel(const std::string& name, const std::string& id) const {
  std::vector<std::string> argv = {"scancel", "--user=" + user_, "--name=" + name};
  if (!id.empty()) argv.push_back(id);
  return RunScancel(argv);
}

absl::Status SlurmClient::CancelIds(const std::vector<std::string>& ids) const {
  std::vector<std::string> argv = {"scancel", "--user=" + user_};
  argv.insert(argv.end(), ids.begin(), ids.end());
  return RunScancel(argv);
}

absl::Status SlurmClient::RunScancel(const std::vector<std::string>& argv) const {
  const absl::StatusOr<CommandResult> result = act_.Run(argv, "", {}, timeout_);
  if (!result.ok()) return absl::UnavailableError(result.status().message());
  if (result->ok()) return absl::OkStatus();
  const std::string reason = FailureReason(*result);
  const bool is_gone = absl::StrContains(reason, "Job/step already completing or completed") ||
                       absl::StrContains(reason, "Invalid job id specified");
  // One scancel may have messages about several jobs.
  if (is_gone && !MayPass(result->err)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("scancel: ", reason));
}

absl::StatusOr<SlurmClient::Site> SlurmClient::ReadSite() const {
  const absl::StatusOr<std::string> text = Output({"scontrol", "show", "config"});
  if (!text.ok()) return text.status();
  Site site;
  bool powers_nodes = false, shows_cloud = false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> setting =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(setting.first);
    const absl::string_view value = absl::StripAsciiWhitespace(setting.second);
    int64_t seconds = 0;
    if (name == "ClusterName") site.cluster = Printable(value);
    if (name == "SLURM_VERSION") site.version = Printable(value);
    if (name == "AccountingStorageType") site.accounting = absl::EndsWith(value, "slurmdbd");
    if (name == "PrivateData") {
      const std::vector<absl::string_view> kinds = absl::StrSplit(value, ',');
      site.private_jobs = std::find(kinds.begin(), kinds.end(), "jobs") != kinds.end();
      shows_cloud = std::find(kinds.begin(), kinds.end(), "cloud") != kinds.end();
    }
    if (name == "ResumeProgram") powers_nodes = !value.empty() && value != "(null)";
    if (name == "MessageTimeout" && absl::SimpleAtoi(value.substr(0, value.find(' ')), &seconds) &&
        seconds > 0)
      site.message_timeout = absl::Seconds(seconds);
  }
  site.hides_nodes = powers_nodes && !shows_cloud;
  if (site.cluster.empty())
    return absl::UnavailableError("the output of scontrol show config has no ClusterName");
  return site;
}

}  // namespace scalelab::server
