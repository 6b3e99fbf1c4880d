#include "server/scheduler/agent/agent_scheduler.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/accounts/accounts.h"
#include "server/accounts/lookup_cache.h"
#include "server/scheduler/agent/user_lane.h"
#include "server/scheduler/slurm_client.h"
#include "server/scheduler/slurm_jobs.h"
#include "server/scheduler/slurm_site.h"
#include "server/time/clock.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr size_t kRemembered = 1000;  // users of jobs that are not polled any more

JobStatus NeverSubmitted(const std::string& token) {
  JobStatus status;
  status.token = token;
  return status;
}

// Returns the status of Scheduler::Submit if the agent is not connected.
absl::Status AsUnavailable(const absl::Status& status) {
  return status.ok() ? status : absl::UnavailableError(status.message());
}

// Runs the queries about one user: on this machine if it may see the jobs of the user, else through the agent.
class QueryRunner final : public CommandRunner {
 public:
  QueryRunner(const SlurmSite& site, CommandRunner& here, CommandRunner& agent)
      : site_(site), here_(here), agent_(agent) {}
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                    const std::vector<std::string>& variables,
                                    absl::Duration timeout) override {
    return (site_.private_jobs() ? agent_ : here_).Run(argv, input, variables, timeout);
  }

 private:
  const SlurmSite& site_;
  CommandRunner& here_;
  CommandRunner& agent_;
};

// A user with jobs. The lane's thread uses the other members.
struct User {
  User(AgentHub& hub, const std::string& its_name, uid_t its_uid, SlurmSite& site, CommandRunner& here,
       absl::Duration timeout, SlurmJobs::Options options)
      : name(its_name),
        uid(its_uid),
        runner(hub, its_name),
        query(site, here, runner),
        jobs(SlurmClient(query, runner, its_uid, timeout), site, std::move(options)) {}

  const std::string name;
  const uid_t uid;
  AgentRunner runner;
  QueryRunner query;
  SlurmJobs jobs;
  UserLane lane;  // the last member: its thread ends first
};

class AgentScheduler final : public Scheduler {
 public:
  AgentScheduler(AgentSchedulerOptions options, AgentHub& hub)
      : options_(std::move(options)),
        hub_(hub),
        client_(local_, local_, geteuid(), options_.slurm.command_timeout),
        site_(client_, {options_.slurm.settle, options_.slurm.view_age, options_.slurm.now}),
        uids_(options_.uid_of ? options_.uid_of : LookUpUid,
              [now = options_.slurm.now] { return now() - absl::UnixEpoch(); }) {}

  SlurmSite& site() { return site_; }
  std::string name() const override { return "slurm"; }
  Capacity capacity() const override { return site_.capacity(); }
  std::string Script(const JobRequest& request) const override {
    return SlurmScript(ScriptOptions(request.user), request);
  }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override;
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override;
  absl::StatusOr<ClusterView> View() override { return site_.View(); }
  absl::Status Cancel(const std::vector<std::string>& tokens) override;

 private:
  using Tokens = std::map<User*, std::vector<std::string>>;

  SlurmScriptOptions ScriptOptions(const std::string& user) const {
    SlurmScriptOptions script = options_.slurm.script;
    script.runs_dir = DirectoryOfUser(script.runs_dir, user);
    return script;
  }
  // Waits until `deadline`, a time of Clock::Steady, if the account has to be looked up.
  absl::StatusOr<User*> UserOf(const std::string& name, absl::Duration deadline);
  bool HasNoAccount(const std::string& name);
  absl::StatusOr<Tokens> ByUser(const std::vector<std::string>& tokens, absl::Duration deadline);
  absl::StatusOr<std::map<uid_t, Queue>> QueryAll(const Tokens& tokens);
  void Forget(const std::vector<std::string>& polled);

  const AgentSchedulerOptions options_;
  AgentHub& hub_;
  LocalCommandRunner local_;
  const SlurmClient client_;
  SlurmSite site_;
  LookupCache<std::string, std::optional<uid_t>> uids_;
  std::map<std::string, std::string> user_of_;  // by token
  // Cancelled tokens whose user has no account. Nobody can query or end their jobs.
  std::set<std::string> unreachable_;
  std::map<std::string, std::unique_ptr<User>> users_;
};

absl::StatusOr<User*> AgentScheduler::UserOf(const std::string& name, absl::Duration deadline) {
  if (const auto it = users_.find(name); it != users_.end()) return it->second.get();
  const absl::Duration patience = std::max(deadline - Clock::System().Steady(), absl::ZeroDuration());
  const absl::StatusOr<std::optional<uid_t>> uid = uids_.Get(name, patience, patience);
  if (!uid.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the account ", name, " cannot be looked up now: ", uid.status().message()));
  }
  if (!uid->has_value()) {
    return absl::UnavailableError(absl::StrCat("this machine has no account ", name,
                                               ", under which the job has to run; submit the study as a user "
                                               "of the cluster, or ask the operator"));
  }
  auto user = std::make_unique<User>(
      hub_, name, **uid, site_, local_, options_.slurm.command_timeout,
      SlurmJobs::Options{ScriptOptions(name), /*files_are_here=*/false,
                         [this, name] { return AsUnavailable(hub_.Check(name)); }, options_.slurm.now});
  return (users_[name] = std::move(user)).get();
}

// Returns false while it is not known whether the user has an account: the jobs of the user may exist.
bool AgentScheduler::HasNoAccount(const std::string& name) {
  if (users_.contains(name)) return false;
  const absl::StatusOr<std::optional<uid_t>> uid =
      uids_.Get(name, absl::ZeroDuration(), absl::ZeroDuration());
  return uid.ok() && !uid->has_value();
}

absl::StatusOr<AgentScheduler::Tokens> AgentScheduler::ByUser(const std::vector<std::string>& tokens,
                                                              absl::Duration deadline) {
  Tokens by_user;
  bool asked = false;
  for (const std::string& token : tokens) {
    auto it = user_of_.find(token);
    if (it == user_of_.end() && !asked) {
      asked = true;
      absl::StatusOr<std::map<std::string, std::string>> users = options_.users_of_jobs();
      if (!users.ok()) return users.status();
      user_of_.merge(*users);
      it = user_of_.find(token);
    }
    if (it == user_of_.end()) continue;
    if (const absl::StatusOr<User*> user = UserOf(it->second, deadline); user.ok())
      by_user[*user].push_back(token);
  }
  return by_user;
}

absl::StatusOr<std::string> AgentScheduler::Submit(const JobRequest& request) {
  const absl::StatusOr<User*> found = UserOf(request.user, Clock::System().Steady() + options_.patience);
  if (!found.ok()) return found.status();
  User& user = **found;
  user_of_[request.token] = request.user;
  if (!user.lane.idle()) {
    return absl::UnavailableError(
        absl::StrCat("the agent of ", user.name, " has not answered an earlier command yet"));
  }
  // The result is shared with the lane, because the work of the lane may take longer than this call.
  const auto id = std::make_shared<absl::StatusOr<std::string>>(absl::UnknownError(""));
  user.lane.Start([&jobs = user.jobs, request, id] { *id = jobs.Submit(request); });
  if (user.lane.WaitIdle(Clock::System().Steady() + options_.patience)) return *id;
  return absl::UnavailableError(absl::StrCat("the agent of ", user.name, " has not answered for ",
                                             absl::FormatDuration(options_.patience),
                                             "; the job is submitted when it answers"));
}

// Queries the jobs of all these users together.
absl::StatusOr<std::map<uid_t, Queue>> AgentScheduler::QueryAll(const Tokens& tokens) {
  std::vector<uid_t> uids;
  std::vector<std::string> names;
  for (const auto& [user, its_tokens] : tokens) {
    uids.push_back(user->uid);
    names.insert(names.end(), its_tokens.begin(), its_tokens.end());
  }
  absl::StatusOr<std::map<uid_t, Queue>> queues = client_.JobsOf(uids, names);
  site_.RecordAnswer(queues.status());
  if (queues.ok()) return queues;
  for (const auto& [user, unused] : tokens) user->jobs.QueryFailed();
  return NoAnswer(site_, queues.status());
}

absl::StatusOr<std::vector<JobStatus>> AgentScheduler::Poll(const std::vector<std::string>& tokens) {
  if (tokens.empty()) return std::vector<JobStatus>();
  if (!site_.known()) site_.RecordAnswer(site_.View().status());
  absl::StatusOr<Tokens> by_user = ByUser(tokens, Clock::System().Steady() + options_.patience);
  if (!by_user.ok()) return by_user.status();
  // Only this thread starts work, so an idle lane stays idle. Leave out the jobs of busy lanes: an answer of
  // squeue must be used at once, because later it would count as newer than it is.
  std::erase_if(*by_user, [](const auto& entry) { return !entry.first->lane.idle(); });
  const bool shared = !site_.private_jobs();
  absl::StatusOr<std::map<uid_t, Queue>> queues = std::map<uid_t, Queue>();
  if (shared && !by_user->empty()) queues = QueryAll(*by_user);
  if (!queues.ok()) return queues.status();
  std::map<User*, std::shared_ptr<std::vector<JobStatus>>> answers;
  for (const auto& [user, its_tokens] : *by_user) {
    const auto answer = std::make_shared<std::vector<JobStatus>>();
    answers[user] = answer;
    if (shared) {
      user->lane.Start([answer, &jobs = user->jobs, its_tokens = its_tokens, queue = queues->at(user->uid)] {
        *answer = jobs.Statuses(its_tokens, queue);
      });
    } else {
      user->lane.Start([answer, uid = user->uid, &jobs = user->jobs, its_tokens = its_tokens] {
        const absl::StatusOr<std::map<uid_t, Queue>> queue = jobs.client().JobsOf({uid}, its_tokens);
        if (!queue.ok()) return jobs.QueryFailed();
        *answer = jobs.Statuses(its_tokens, queue->at(uid));
      });
    }
  }
  std::map<std::string, JobStatus> known;
  const absl::Duration deadline = Clock::System().Steady() + options_.patience;
  for (const auto& [user, answer] : answers) {
    if (!user->lane.WaitIdle(deadline)) continue;
    for (JobStatus& status : *answer) known[status.token] = std::move(status);
  }
  std::vector<JobStatus> statuses;
  for (const std::string& token : tokens) {
    if (const auto it = known.find(token); it != known.end()) statuses.push_back(std::move(it->second));
    const auto user = user_of_.find(token);
    if (user == user_of_.end() || (unreachable_.contains(token) && HasNoAccount(user->second)))
      statuses.push_back(NeverSubmitted(token));
  }
  const std::set<std::string> polled(tokens.begin(), tokens.end());
  std::erase_if(unreachable_, [&](const std::string& token) { return !polled.contains(token); });
  Forget(tokens);
  site_.RefreshView();
  return statuses;
}

// Forgets the users of jobs that are no longer polled.
void AgentScheduler::Forget(const std::vector<std::string>& polled) {
  if (user_of_.size() <= 2 * polled.size() + kRemembered) return;
  const std::set<std::string> kept(polled.begin(), polled.end());
  std::erase_if(user_of_, [&](const auto& entry) { return !kept.contains(entry.first); });
}

absl::Status AgentScheduler::Cancel(const std::vector<std::string>& tokens) {
  const absl::Duration accounts_deadline = Clock::System().Steady() + options_.patience;
  const absl::StatusOr<Tokens> by_user = ByUser(tokens, accounts_deadline);
  if (!by_user.ok()) return by_user.status();
  absl::Status first;
  for (const std::string& token : tokens) {
    const auto name = user_of_.find(token);
    if (name == user_of_.end()) continue;
    const absl::StatusOr<User*> user = UserOf(name->second, accounts_deadline);
    if (user.ok()) continue;
    if (HasNoAccount(name->second)) {
      unreachable_.insert(token);
    } else {
      first.Update(user.status());
    }
  }
  std::map<User*, std::shared_ptr<absl::Status>> results;
  for (const auto& [user, its_tokens] : *by_user) {
    if (!user->lane.idle()) {
      first.Update(absl::UnavailableError(absl::StrCat("the agent of ", user->name, " is busy")));
      continue;
    }
    const auto result = std::make_shared<absl::Status>();
    results[user] = result;
    user->lane.Start(
        [result, &jobs = user->jobs, its_tokens = its_tokens] { *result = jobs.Cancel(its_tokens); });
  }
  const absl::Duration deadline = Clock::System().Steady() + options_.patience;
  for (const auto& [user, result] : results) {
    first.Update(user->lane.WaitIdle(deadline) ? *result
                                               : absl::UnavailableError(absl::StrCat(
                                                     "the agent of ", user->name, " has not answered")));
  }
  return first;
}

}  // namespace

std::string DirectoryOfUser(const std::string& runs_dir, const std::string& user) {
  return absl::StrCat(runs_dir, "/", user);
}

std::string UserOfDirectory(const std::string& runs_dir, absl::string_view directory) {
  if (!absl::ConsumePrefix(&directory, runs_dir) || !absl::ConsumePrefix(&directory, "/")) return "";
  const std::vector<absl::string_view> parts = absl::StrSplit(directory, '/');
  return parts.size() == 4 ? std::string(parts[0]) : "";
}

absl::StatusOr<std::unique_ptr<Scheduler>> NewAgentScheduler(AgentSchedulerOptions options, AgentHub& hub) {
  if (absl::Status installed = CheckSlurmInstalled(); !installed.ok()) return installed;
  auto scheduler = std::make_unique<AgentScheduler>(std::move(options), hub);
  scheduler->site().Start();
  return scheduler;
}

}  // namespace scalelab::server
