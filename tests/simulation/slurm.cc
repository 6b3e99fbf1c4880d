#include "tests/simulation/slurm.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/scheduler/slurm_scheduler.h"
#include "tests/simulation/process.h"

namespace scalelab::simulation {
namespace {

using server::CommandResult;
using server::JobRequest;
using server::JobStatus;

constexpr absl::Duration kKillWait = absl::Seconds(30);  // between SIGTERM and SIGKILL
constexpr absl::Duration kMinJobAge = absl::Minutes(5);  // ended jobs are listed for this long
// Maximum number of submits of one job. It is large, because the backoff of a coordinator begins again
// after each crash.
constexpr int kMostSubmits = 300;

CommandResult Success(std::string output) {
  CommandResult result;
  result.exit_code = 0;
  result.out = std::move(output);
  return result;
}

CommandResult Failure(const std::string& message) {
  CommandResult result;
  result.exit_code = 1;
  result.err = absl::StrCat("error: ", message, "\n");
  return result;
}

CommandResult TimedOut() {
  CommandResult result;
  result.timed_out = true;
  return result;
}

std::string ClockText(absl::Duration time) {
  const int64_t seconds = absl::ToInt64Seconds(time);
  return absl::StrFormat("%d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

// Returns Slurm's name of a state.
const char* NameOf(JobStatus::State state) {
  using State = JobStatus::State;
  switch (state) {
    case State::kPending:
      return "PENDING";
    case State::kRunning:
      return "RUNNING";
    case State::kCompleted:
      return "COMPLETED";
    case State::kFailed:
      return "FAILED";
    case State::kCancelled:
      return "CANCELLED";
    case State::kTimeout:
      return "TIMEOUT";
    case State::kPreempted:
      return "PREEMPTED";
    default:
      return "NODE_FAIL";
  }
}

}  // namespace

Slurm::Slurm(World& world, Hooks hooks) : world_(world), hooks_(std::move(hooks)) {
  const int64_t nodes = world_.random.Between(4, 8);
  for (int64_t n = 0; n < nodes; ++n) idle_[absl::StrCat("node-", n)] = true;
  for (const Fault fault :
       {Fault::kJobForgotten, Fault::kJobPreempted, Fault::kJobRequeued, Fault::kJobSuspended,
        Fault::kCancelledOutside, Fault::kNodeFails, Fault::kSlurmAway, Fault::kWorkerCrash}) {
    Misbehave(fault);
  }
  if (world_.random.Chance(0.5)) AddForeignJob();
}

// --- The scheduler of the service

// The real scheduler. Records the request of each job, because the batch script is not interpreted.
class Slurm::Scheduler final : public server::Scheduler {
 public:
  Scheduler(Slurm& slurm, std::unique_ptr<server::Scheduler> real) : slurm_(slurm), real_(std::move(real)) {}
  std::string name() const override { return real_->name(); }
  server::Capacity capacity() const override { return real_->capacity(); }
  absl::StatusOr<std::string> Submit(const JobRequest& request) override {
    slurm_.requests_[request.token] = request;
    return real_->Submit(request);
  }
  std::string Script(const JobRequest& request) const override { return real_->Script(request); }
  absl::StatusOr<std::vector<JobStatus>> Poll(const std::vector<std::string>& tokens) override {
    return real_->Poll(tokens);
  }
  absl::StatusOr<server::ClusterView> View() override { return real_->View(); }
  absl::Status Cancel(const std::vector<std::string>& tokens) override {
    slurm_.cancelling_ = {tokens.begin(), tokens.end()};
    slurm_.cancelled_.insert(tokens.begin(), tokens.end());
    absl::Status status = real_->Cancel(tokens);
    slurm_.cancelling_.clear();
    return status;
  }

 private:
  Slurm& slurm_;
  const std::unique_ptr<server::Scheduler> real_;
};

std::unique_ptr<server::Scheduler> Slurm::NewScheduler() {
  server::SlurmSchedulerOptions options;
  options.script.runs_dir = kRunsDirectory;
  options.file_timeout = absl::InfiniteDuration();  // the time of the machine must not change a simulation
  options.now = [this] { return absl::UnixEpoch() + world_.queue.Steady(); };
  options.wall = [this] { return world_.queue.Wall(); };
  options.runner = agent_ != nullptr ? agent_ : this;
  cancelling_.clear();  // a crash ends a call
  starting_ = true;
  auto real = server::NewSlurmScheduler(std::move(options));
  starting_ = false;
  return std::make_unique<Scheduler>(*this, *std::move(real));
}

// --- Slurm's programs

absl::StatusOr<CommandResult> Slurm::Run(const std::vector<std::string>& argv, const std::string&,
                                         const std::vector<std::string>&, absl::Duration) {
  const std::string& program = argv[0];
  std::string name;
  std::set<std::string> ids;
  for (size_t i = 1; i < argv.size(); ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--name=") || absl::ConsumePrefix(&argument, "--job-name=")) {
      name = std::string(argument);
    } else if (!absl::StartsWith(argument, "-")) {
      ids.insert(argv[i]);
    }
  }
  if (!BeginCall(program)) return Failure("Unable to contact slurm controller (connect failure)");
  CommandResult result = Success("");
  if (program == "sbatch") {
    result = Sbatch(name);
  } else if (program == "squeue") {
    result = Squeue(name);
  } else if (program == "scancel") {
    result = Scancel(name, ids);
  } else if (program == "sinfo") {
    result.out = Sinfo();
  } else {
    result.out = "ClusterName = simulation\nMessageTimeout = 10 sec\n";  // scontrol show config
  }
  EndCall();
  return result;
}

absl::StatusOr<CommandResult> Slurm::RunForAgent(const std::vector<std::string>& argv, bool late) {
  for_agent_ = true;
  late_ = late;
  absl::StatusOr<CommandResult> result = Run(argv, "", {}, absl::ZeroDuration());
  for_agent_ = late_ = false;
  return result;
}

// Returns whether the controller answers.
bool Slurm::BeginCall(const std::string& program) {
  if (starting_) return true;
  ++(program == "sbatch"    ? submits_
     : program == "squeue"  ? polls_
     : program == "scancel" ? cancels_
                            : views_);
  if (!for_agent_) hooks_.maybe_crash();
  if (!for_agent_ && world_.faults.Occurs(Fault::kSlurmSlow))
    hooks_.block(world_.random.Time(absl::Seconds(1), absl::Seconds(25)));
  if (world_.queue.Steady() >= away_until_) return true;
  if (!for_agent_) hooks_.block(world_.random.Time(absl::ZeroDuration(), absl::Seconds(10)));
  world_.Trace("slurm: no answer to ", program);
  return false;
}

void Slurm::EndCall() {
  if (starting_ || for_agent_) return;
  if (world_.faults.Occurs(Fault::kSlurmSlow))
    hooks_.block(world_.random.Time(absl::Seconds(1), absl::Seconds(25)));
  hooks_.maybe_crash();
}

// Draws whether a job is refused for a limit. The limit may hold for some time.
bool Slurm::Refuses() {
  if (world_.queue.Steady() < limit_until_) return true;
  if (!world_.faults.Occurs(Fault::kSubmitRefused)) return false;
  if (world_.random.Chance(0.2)) {
    limit_until_ = std::min(world_.faults.End(),
                            world_.queue.Steady() + world_.random.Time(absl::Minutes(1), absl::Minutes(20)));
  }
  return true;
}

// Accepts a second job of a name: only the service prevents that. A late job may become visible between squeue and sbatch.
CommandResult Slurm::Sbatch(const std::string& name) {
  if (++submits_of_[name] == kMostSubmits)
    world_.Violation("job ", name, " was submitted ", kMostSubmits, " times");
  if (Refuses()) {
    world_.Trace("slurm: refuses ", name, " for a limit");
    return Failure("QOSMaxSubmitJobPerUserLimit");
  }
  if (world_.faults.Occurs(Fault::kSubmitRefusedEver)) {
    world_.Trace("slurm: refuses ", name);
    return Failure("Batch job submission failed: Invalid qos specification");
  }
  for (const auto& [id, job] : jobs_) {
    if (job->request.token == name && !job->late && !late_ && !IsOver(job->state))
      world_.Violation("job ", name, " is submitted again although squeue lists job ", id);
  }
  const JobRequest request = requests_.at(name);
  if (!late_) hooks_.accepting(request);
  if (world_.faults.Occurs(Fault::kSubmitLate)) {
    world_.queue.After(world_.random.Time(absl::Seconds(1), absl::Minutes(5)),
                       [this, request] { Accept(request, /*late=*/true); });
    return TimedOut();
  }
  Accept(request, late_);
  if (world_.faults.Occurs(Fault::kSubmitUnanswered)) return TimedOut();
  return Success(absl::StrCat(number_, "\n"));
}

void Slurm::Accept(const JobRequest& request, bool late) {
  auto job = std::make_shared<Job>();
  job->request = request;
  job->id = ++number_;
  job->late = late;
  jobs_[job->id] = job;
  order_.push_back(job);
  world_.Trace("slurm: accepts ", request.token, late ? " late" : "", " as job ", job->id, ", ",
               request.nodes, " nodes");
  ScheduleSoon();
}

CommandResult Slurm::Squeue(const std::string& name) {
  CommandResult result = Success("");
  for (const auto& [id, job] : jobs_) {
    if (name.empty() || job->request.token == name) result.out += Row(*job);
  }
  return result;
}

// Returns a line with the columns server::kSqueueColumns.
std::string Slurm::Row(const Job& job) const {
  const absl::Duration now = world_.queue.Steady();
  const bool over = IsOver(job.state);
  std::string end = "N/A";
  if (over || job.state == State::kRunning) {
    const absl::Duration at = over ? job.ended : job.started + job.request.time_limit;
    end = absl::StrCat(absl::ToUnixSeconds(world_.queue.TrueWall() + (at - now)));
  }
  const bool started = !job.node_list.empty();
  const absl::Duration used = started ? (over ? job.ended : now) - job.started : absl::ZeroDuration();
  const char* const state = job.completing ? "COMPLETING" : job.suspended ? "SUSPENDED" : NameOf(job.state);
  return absl::StrCat(job.id, "|", geteuid() + (job.foreign ? 1 : 0), "|", state, " N/A|",
                      job.state == State::kPending ? "Resources" : "None", "|", job.exit_status << 8, "|",
                      end, "|", ClockText(used), "|", ClockText(job.request.time_limit), "|",
                      started ? job.node_list : "(null)", "|", job.request.token, "\n");
}

CommandResult Slurm::Scancel(const std::string& name, const std::set<std::string>& ids) {
  const bool fails = world_.faults.Occurs(Fault::kCancelFails);
  for (const auto& [id, job] : std::map(jobs_)) {
    if (!name.empty() && job->request.token != name) continue;
    if ((name.empty() || !ids.empty()) && !ids.contains(absl::StrCat(id))) continue;
    job->cancel_asked = true;
    if (fails && world_.random.Chance(0.5)) continue;
    if (job->foreign) world_.Violation("job ", id, " of another user was cancelled");
    // Slurm has a second job of a name only after a second sbatch.
    const bool asked = (late_ ? cancelled_ : cancelling_).contains(job->request.token);
    if (!asked && submits_of_[job->request.token] < 2)
      world_.Violation("job ", id, " of ", job->request.token,
                       " is cancelled, and the service did not ask for that");
    world_.Trace("slurm: cancels job ", id, " of ", job->request.token);
    EndBy(job, State::kCancelled, kKillWait);
  }
  return fails ? TimedOut() : Success("");
}

// Returns lines with the columns server::kSinfoColumns.
std::string Slurm::Sinfo() const {
  std::string text;
  for (const auto& [name, idle] : idle_) {
    absl::StrAppend(&text, name, "|main*|up|infinite|", idle ? "idle|0/8/0/8" : "allocated|8/0/0/8",
                    "|16000|(null)|(null)|none\n");
  }
  return text;
}

// --- The cluster

void Slurm::ScheduleSoon() {
  if (std::exchange(scheduling_, true)) return;
  world_.queue.After(world_.random.Time(absl::Milliseconds(100), absl::Seconds(5)), [this] {
    scheduling_ = false;
    StartJobs();
  });
}

void Slurm::StartJobs() {
  const std::vector<JobPointer> order = order_;
  for (const JobPointer& job : order) {
    if (job->state != State::kPending || job->forgotten) continue;
    // --dependency=singleton
    const bool waits = std::any_of(order.begin(), order.end(), [&](const JobPointer& other) {
      return other->request.token == job->request.token && other->state == State::kRunning &&
             !other->forgotten;
    });
    if (waits) continue;
    const auto idle = std::count_if(idle_.begin(), idle_.end(), [](const auto& node) { return node.second; });
    if (idle >= job->request.nodes) Start(job);
  }
}

void Slurm::Start(const JobPointer& job) {
  for (auto& [name, idle] : idle_) {
    if (static_cast<int>(job->nodes.size()) == job->request.nodes) break;
    if (std::exchange(idle, false)) job->nodes.push_back(name);
  }
  job->state = State::kRunning;
  job->started = world_.queue.Steady();
  job->node_list = absl::StrJoin(job->nodes, ",");
  const int incarnation = ++job->incarnation;
  world_.Trace("slurm: starts ", job->request.token, " on ", job->nodes.size(), " nodes");
  const auto then = [job, incarnation](auto what) {
    return [job, incarnation, what] {
      if (job->incarnation == incarnation && job->state == State::kRunning && !job->completing) what();
    };
  };
  if (job->foreign) {
    world_.queue.After(job->request.time_limit,
                       then([this, job] { EndBy(job, State::kCompleted, absl::ZeroDuration()); }));
    return;
  }
  job->processes = hooks_.launch(job->request, job->nodes, [this, job, incarnation](int status) {
    if (job->incarnation != incarnation) return;
    job->exit_status = status;
    if (job->ends_as == State::kUnknown) job->ends_as = status == 0 ? State::kCompleted : State::kFailed;
    Complete(job);
  });
  const absl::Duration limit = job->request.time_limit;
  const absl::Duration early = world_.random.Time(absl::ZeroDuration(), absl::Seconds(30));
  world_.queue.After(limit - server::WarningBeforeEnd(limit) - early,
                     then([job] { job->processes->Terminate(); }));
  world_.queue.After(limit, then([this, job] { EndBy(job, State::kTimeout, kKillWait); }));
}

void Slurm::EndBy(const JobPointer& job, State state, absl::Duration grace) {
  if (IsOver(job->state) || job->completing || job->ends_as != State::kUnknown) return;
  job->ends_as = state;
  if (job->state == State::kPending || job->foreign) return Complete(job);
  job->completing = true;
  if (job->suspended) job->processes->Suspend(false);
  job->suspended = false;
  // A node that does not answer ends its processes late. A node that has failed has no processes.
  absl::Duration late = absl::ZeroDuration();
  if (state != State::kNodeFail && !job->forgotten && world_.faults.Occurs(Fault::kLongCompleting))
    late = world_.random.Time(absl::Seconds(10), absl::Minutes(6));
  const auto unless_over = [this, job, incarnation = job->incarnation](absl::Duration delay, auto then) {
    world_.queue.After(delay, [job, incarnation, then] {
      if (job->incarnation == incarnation) then();
    });
  };
  unless_over(late, [job] { job->processes->Terminate(); });
  unless_over(late + grace, [this, job] {
    job->processes->Kill();
    Complete(job);
  });
}

// The processes have ended.
void Slurm::Complete(const JobPointer& job) {
  ++job->incarnation;
  const bool ran = job->state == State::kRunning;
  job->completing = ran;
  absl::Duration cleaning = absl::ZeroDuration();
  if (ran) cleaning = world_.random.Time(absl::ZeroDuration(), absl::Seconds(2));
  if (ran && !job->foreign && world_.faults.Occurs(Fault::kLongCompleting))
    cleaning = world_.random.Time(absl::Minutes(1), absl::Minutes(12));
  world_.queue.After(cleaning, [this, job] {
    job->completing = false;
    job->state = job->ends_as;
    job->ended = world_.queue.Steady();
    for (const std::string& node : std::exchange(job->nodes, {})) idle_[node] = true;
    std::erase(order_, job);
    world_.Trace("slurm: ", job->request.token, " has ended as ", static_cast<int>(job->state));
    ScheduleSoon();
    world_.queue.After(kMinJobAge, [this, job] {
      job->processes.reset();
      jobs_.erase(job->id);
    });
  });
}

void Slurm::Requeue(const JobPointer& job) {
  ++job->incarnation;
  job->processes->Kill();
  job->state = State::kPending;
  job->suspended = false;
  for (const std::string& node : std::exchange(job->nodes, {})) idle_[node] = true;
  ScheduleSoon();
}

// The controller loses its record of the job; the nodes end its processes when they notice.
void Slurm::Forget(const JobPointer& job) {
  job->forgotten = true;
  jobs_.erase(job->id);
  if (job->state != State::kRunning) {
    std::erase(order_, job);
    return;
  }
  if (!job->completing)
    EndBy(job, State::kCancelled, world_.random.Time(absl::ZeroDuration(), absl::Seconds(20)));
}

std::vector<std::string> Slurm::LiveJobs(bool late) const {
  std::vector<std::string> live;
  for (const JobPointer& job : order_) {
    if (!job->foreign && !job->forgotten && (late || !job->late)) live.push_back(job->request.token);
  }
  return live;
}

std::vector<std::string> Slurm::PendingJobs() const {
  std::vector<std::string> pending;
  for (const JobPointer& job : order_) {
    if (job->incarnation == 0 && !IsOver(job->state) && !job->foreign && !job->forgotten && !job->late &&
        !job->cancel_asked)
      pending.push_back(job->request.token);
  }
  return pending;
}

void Slurm::AddForeignJob() {
  world_.queue.After(world_.random.Time(absl::Seconds(10), absl::Minutes(5)), [this] {
    if (world_.faults.Over()) return;
    auto job = std::make_shared<Job>();
    job->foreign = true;
    job->id = ++number_;
    job->request.token = absl::StrCat("foreign-", number_);
    job->request.nodes = static_cast<int>(world_.random.Between(1, nodes()));
    job->request.time_limit = world_.random.Time(absl::Seconds(10), absl::Minutes(5));
    jobs_[job->id] = job;
    order_.push_back(job);
    ScheduleSoon();
    AddForeignJob();
  });
}

// --- Faults that begin at random times

Slurm::JobPointer Slurm::AnyJob(bool running) {
  std::vector<JobPointer> candidates;
  for (const JobPointer& job : order_) {
    if (!job->foreign && !job->forgotten && !job->completing && job->ends_as == State::kUnknown &&
        (!running || job->state == State::kRunning))
      candidates.push_back(job);
  }
  if (candidates.empty()) return nullptr;
  return candidates[world_.random.Between(0, static_cast<int64_t>(candidates.size()) - 1)];
}

void Slurm::Misbehave(Fault fault) {
  const absl::Duration until = world_.faults.Until(fault);
  if (until == absl::InfiniteDuration()) return;
  world_.queue.After(until, [this, fault] {
    if (world_.faults.Over()) return;
    Strike(fault);
    Misbehave(fault);
  });
}

void Slurm::Strike(Fault fault) {
  if (fault == Fault::kSlurmAway) {
    world_.faults.Count(fault);
    away_until_ = std::min(world_.faults.End(),
                           world_.queue.Steady() + world_.random.Time(absl::Seconds(5), absl::Minutes(10)));
    world_.Trace("slurm: away until ", absl::FormatDuration(away_until_));
    return;
  }
  const bool any = fault == Fault::kJobForgotten || fault == Fault::kCancelledOutside;
  const JobPointer job = AnyJob(!any);
  if (job == nullptr) return;
  world_.faults.Count(fault);
  world_.Trace("slurm: ", Name(fault), ": ", job->request.token);
  switch (fault) {
    case Fault::kJobForgotten:
      return Forget(job);
    case Fault::kJobPreempted:
      return EndBy(job, State::kPreempted, kKillWait);
    case Fault::kJobRequeued:
      return Requeue(job);
    case Fault::kNodeFails:
      return EndBy(job, State::kNodeFail, absl::ZeroDuration());
    case Fault::kCancelledOutside:
      return EndBy(job, State::kCancelled, kKillWait);
    case Fault::kWorkerCrash:
      return job->processes->CrashOne();
    case Fault::kJobSuspended:
      if (job->suspended) return;
      job->suspended = true;
      job->processes->Suspend(true);
      world_.queue.After(world_.random.Time(absl::Seconds(10), absl::Minutes(30)),
                         [job, incarnation = job->incarnation] {
                           if (job->incarnation != incarnation || !job->suspended) return;
                           job->suspended = false;
                           job->processes->Suspend(false);
                         });
      return;
    default:
      return;
  }
}

}  // namespace scalelab::simulation
