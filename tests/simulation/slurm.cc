#include "tests/simulation/slurm.h"

#include <algorithm>
#include <utility>

namespace scalelab::simulation {
namespace {

using server::JobRequest;
using server::JobStatus;

constexpr absl::Duration kKillWait = absl::Seconds(30);  // between SIGTERM and SIGKILL
constexpr absl::Duration kMinJobAge = absl::Minutes(5);  // ended jobs are listed for this long
// Submits of one job. A coordinator that crashes often begins anew with its backoff.
constexpr int kMostSubmits = 300;

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

// --- Calls of the coordinator

absl::Status Slurm::BeginCall(const char* what) {
  hooks_.maybe_crash();
  if (world_.faults.Occurs(Fault::kSlurmSlow))
    hooks_.block(world_.random.Time(absl::Seconds(1), absl::Seconds(25)));
  if (world_.queue.Steady() < away_until_) {
    hooks_.block(world_.random.Time(absl::ZeroDuration(), absl::Seconds(10)));
    world_.Trace("slurm: no answer to ", what);
    return absl::UnavailableError("Slurm does not answer");
  }
  return absl::OkStatus();
}

void Slurm::EndCall() {
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

absl::StatusOr<std::string> Slurm::Submit(const JobRequest& request) {
  ++submits_;
  if (++submits_of_[request.token] == kMostSubmits)
    world_.Violation("job ", request.token, " was submitted ", kMostSubmits, " times");
  if (auto s = BeginCall("submit"); !s.ok()) return s;
  if (const auto it = jobs_.find(request.token); it != jobs_.end()) return it->second->id;
  if (Refuses()) {
    world_.Trace("slurm: refuses ", request.token, " for a limit");
    return absl::ResourceExhaustedError("QOSMaxSubmitJobPerUserLimit");
  }
  if (world_.faults.Occurs(Fault::kSubmitRefusedEver)) {
    world_.Trace("slurm: refuses ", request.token);
    return absl::InvalidArgumentError("Invalid qos specification");
  }
  hooks_.accepting(request);
  auto job = std::make_shared<Job>();
  job->request = request;
  job->id = absl::StrCat(++number_);
  jobs_[request.token] = job;
  order_.push_back(job);
  world_.Trace("slurm: accepts ", request.token, " as job ", job->id, ", ", request.nodes, " nodes");
  ScheduleSoon();
  const bool unanswered = world_.faults.Occurs(Fault::kSubmitUnanswered);
  EndCall();
  if (unanswered) return absl::UnavailableError("sbatch timed out");
  return job->id;
}

JobStatus Slurm::StatusOf(const std::string& token) const {
  JobStatus status;
  status.token = token;
  const auto it = jobs_.find(token);
  if (it == jobs_.end()) return status;
  const Job& job = *it->second;
  status.external_id = job.id;
  status.state = job.state;
  if (job.state == State::kPending) status.reason = "waits for free resources (Resources)";
  if (job.state == State::kRunning) {
    status.ending = job.completing;
    status.suspended = job.suspended;
    status.ends_at = world_.queue.TrueWall() + (job.started + job.request.time_limit - world_.queue.Steady());
  }
  if (IsOver(job.state)) status.reason = absl::StrCat("ended as ", static_cast<int>(job.state));
  status.from_outside = job.state == State::kCancelled && job.cancelled_outside;
  return status;
}

absl::StatusOr<std::vector<JobStatus>> Slurm::Poll(const std::vector<std::string>& tokens) {
  ++polls_;
  if (auto s = BeginCall("poll"); !s.ok()) return s;
  std::vector<JobStatus> statuses;
  for (const std::string& token : tokens) statuses.push_back(StatusOf(token));
  EndCall();
  return statuses;
}

absl::StatusOr<server::ClusterView> Slurm::View() {
  ++views_;
  if (auto s = BeginCall("view"); !s.ok()) return s;
  server::ClusterView view;
  for (const auto& [name, idle] : idle_)
    view.nodes.push_back({name, {}, idle ? "IDLE" : "ALLOCATED", "", 8, 0, 0, 0, 0});
  EndCall();
  return view;
}

absl::Status Slurm::Cancel(const std::vector<std::string>& tokens) {
  ++cancels_;
  if (auto s = BeginCall("cancel"); !s.ok()) return s;
  const bool fails = world_.faults.Occurs(Fault::kCancelFails);
  for (const std::string& token : tokens) {
    if (const auto it = jobs_.find(token); it != jobs_.end()) it->second->cancel_asked = true;
    if (fails && world_.random.Chance(0.5)) continue;
    const auto it = jobs_.find(token);
    if (it == jobs_.end()) continue;
    if (it->second->foreign) world_.Violation("the job ", token, " of another user was cancelled");
    it->second->cancelled_by_service = true;
    world_.Trace("slurm: cancels ", token);
    EndBy(it->second, State::kCancelled, kKillWait);
  }
  EndCall();
  return fails ? absl::UnavailableError("scancel timed out") : absl::OkStatus();
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
    if (job->ends_as == State::kUnknown) {
      const absl::Duration limit = job->request.time_limit;
      const absl::Duration used = world_.queue.Steady() - job->started;
      const absl::Duration warned = limit - server::WarningBeforeEnd(limit) - absl::Seconds(35);
      job->ends_as = used >= std::max(warned, limit / 2) ? State::kTimeout
                     : status == 0                       ? State::kCompleted
                                                         : State::kFailed;
    }
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
  // A node that does not answer ends its processes late. One that has failed has none any more.
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
    for (const std::string& node : std::exchange(job->nodes, {})) idle_[node] = true;
    std::erase(order_, job);
    world_.Trace("slurm: ", job->request.token, " has ended as ", static_cast<int>(job->state));
    ScheduleSoon();
    world_.queue.After(kMinJobAge, [this, job] {
      job->processes.reset();
      if (const auto it = jobs_.find(job->request.token); it != jobs_.end() && it->second == job)
        jobs_.erase(it);
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
  jobs_.erase(job->request.token);
  if (job->state != State::kRunning) {
    std::erase(order_, job);
    return;
  }
  if (!job->completing)
    EndBy(job, State::kCancelled, world_.random.Time(absl::ZeroDuration(), absl::Seconds(20)));
}

std::vector<std::string> Slurm::LiveJobs() const {
  std::vector<std::string> live;
  for (const JobPointer& job : order_) {
    if (!job->foreign && !job->forgotten) live.push_back(job->request.token);
  }
  return live;
}

std::vector<std::string> Slurm::PendingJobs() const {
  std::vector<std::string> pending;
  for (const JobPointer& job : order_) {
    if (job->incarnation == 0 && !IsOver(job->state) && !job->foreign && !job->forgotten &&
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
    job->id = absl::StrCat(++number_);
    job->request.token = absl::StrCat("foreign-", number_);
    job->request.nodes = static_cast<int>(world_.random.Between(1, nodes()));
    job->request.time_limit = world_.random.Time(absl::Seconds(10), absl::Minutes(5));
    jobs_[job->request.token] = job;
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
      job->cancelled_outside = !job->cancelled_by_service;
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
