#include "worker/agent.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "planted/bug.h"
#include "spdlog/spdlog.h"
#include "worker/backoff.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

// Delay before the start of an attempt is reported, so that simultaneous changes are in the same report. Ends
// are reported at once, because a slot waits for the next attempt.
constexpr absl::Duration kGather = absl::Milliseconds(5);
// Minimum delay between a call and its replacement: ends that occur together are reported together.
constexpr absl::Duration kSyncGap = absl::Milliseconds(1);
// Delay after an immediate answer without a change. It prevents a busy loop.
constexpr absl::Duration kIdlePause = absl::Milliseconds(100);
// Maximum number of attempts that wait while another attempt runs.
constexpr int kQueueLimit = 32;
constexpr absl::Duration kQuitGrace = absl::Seconds(5);

}  // namespace

Agent::Agent(EventLoop& loop, CoordinatorClient& client, const AttemptHost& host, AgentOptions options,
             std::function<void(Exit)> exited)
    : loop_(loop),
      client_(client),
      host_(host),
      options_(options),
      instance_(absl::StrFormat("%016x", loop.Random())),
      exited_(std::move(exited)),
      calibrator_(loop, AllowedCpus()),
      alive_(std::make_shared<bool>(true)) {}

Agent::~Agent() {
  loop_.Cancel(sync_timer_);
  loop_.Cancel(leave_timer_);
  loop_.Cancel(prepare_timer_);
}

void Agent::Start() {
  idle_since_ = loop_.Now();
  Sync();
}

void Agent::Refresh() { ScheduleSync(kGather); }

void Agent::Leave() {
  if (std::exchange(leaving_, true)) return;
  spdlog::info("Received SIGTERM, SIGINT or SIGUSR1: stopping {} attempts", attempts_.size());
  for (auto& [token, attempt] : attempts_) {
    if (attempt->begun()) {
      attempt->StopAfterCheckpoint(kQuitGrace);
    } else {
      Stop(*attempt, kQuitGrace);
    }
  }
  ExitIfQuiet();
  ScheduleSync(absl::ZeroDuration());
}

void Agent::ScheduleSync(absl::Duration within) {
  if (quitting_) return;
  const absl::Duration now = loop_.Now();
  if (sync_in_flight_) within = std::max(within, sync_sent_ + kSyncGap - now);
  const absl::Duration due = now + within;
  if (sync_timer_ != 0 && sync_due_ <= due) return;
  loop_.Cancel(sync_timer_);
  sync_due_ = due;
  sync_timer_ = loop_.After(within, [this] {
    sync_timer_ = 0;
    Sync();
  });
}

void Agent::Sync() {
  if (quitting_) return;
  if (sync_in_flight_) client_.CancelSynchronize();
  const uint64_t number = ++sync_number_;
  sync_in_flight_ = true;
  sync_sent_ = loop_.Now();
  sync_said_goodbye_ = leaving_ && AllEnded();
  client_.Synchronize(Request(), [this, number, alive = std::weak_ptr<bool>(alive_),
                                  loop = &loop_](absl::StatusOr<v1::SynchronizeResponse> response) {
    loop->Post([this, number, alive, response = std::move(response)]() mutable {
      if (!alive.expired()) OnSynchronized(number, std::move(response));
    });
  });
}

v1::SynchronizeRequest Agent::Request() const {
  v1::SynchronizeRequest request;
  request.set_node(host_.node);
  request.set_node_index(options_.node_index);
  request.set_instance(instance_);
  // Send generation 0, which never matches that of the coordinator, so that the final report is
  // answered at once.
  request.set_generation(sync_said_goodbye_ ? 0 : generation_);
  request.set_version(SCALELAB_VERSION);
  request.set_leaving(leaving_);
  request.set_queue_limit(kQueueLimit);
  *request.mutable_info() = host_.provenance.node();
  for (const auto& [token, attempt] : attempts_) {
    if (!attempt->abandoned()) *request.add_attempts() = attempt->Status();
  }
  return request;
}

void Agent::OnSynchronized(uint64_t number, absl::StatusOr<v1::SynchronizeResponse> response) {
  if (number != sync_number_ || quitting_) return;
  sync_in_flight_ = false;
  if (!response.ok()) return OnSilence(response.status());
  idle_since_ = loop_.Now();
  if (std::exchange(failures_, 0) > 0) {
    spdlog::info("The coordinator answers again");
    host_.follower.Retry();
    if (Planted(Bug::kStopLostAfterReconnect)) {
      generation_ = response->generation();
      return ScheduleSync(kIdlePause);
    }
  }
  const bool goodbye = sync_said_goodbye_;
  const bool news = response->generation() != generation_;
  Apply(*response);
  if (goodbye || (terminate_ && attempts_.empty())) return Quit(Exit::kDone);
  const bool waited = loop_.Now() - sync_sent_ > kIdlePause;
  ScheduleSync(news ? kGather : waited ? absl::ZeroDuration() : kIdlePause);
}

void Agent::OnSilence(const absl::Status& status) {
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    spdlog::error("The coordinator rejected this worker; exiting: {}", status.ToString());
    return Quit(Exit::kDenied);
  }
  ++failures_;
  if (failures_ == 1) spdlog::warn("No answer from the coordinator; retrying: {}", status.ToString());
  if (AnyRunning()) {
    idle_since_ = loop_.Now();
    return ScheduleSync(BackoffAfter(failures_, loop_.Random()));
  }
  const absl::Duration idle = loop_.Now() - idle_since_;
  if (idle >= options_.give_up_after) {
    spdlog::error("No attempt runs, and no answer from the coordinator for {}; exiting: {}",
                  absl::FormatDuration(idle), status.ToString());
    return Quit(Exit::kGaveUp);
  }
  ScheduleSync(std::min(BackoffAfter(failures_, loop_.Random()), options_.give_up_after - idle));
}

void Agent::Apply(const v1::SynchronizeResponse& response) {
  generation_ = response.generation();
  terminate_ = response.terminate();
  std::vector<LocalAttempt> local;
  for (const auto& [token, attempt] : attempts_) {
    local.push_back({token, attempt->phase() == Attempt::Phase::kEnded, attempt->stopping()});
  }
  for (const Action& action : Decide(local, response, leaving_)) Do(action);
  BeginNext();
}

void Agent::Begin(Attempt& attempt) {
  if (!NeedsCalibration(attempt)) return BeginNow(attempt);
  after_calibration_.push_back(attempt.token());
  if (!calibrator_.running()) Calibrate(attempt);
}

void Agent::BeginNow(Attempt& attempt) {
  const bool guarded = attempt.desired().calibration_seconds() > 0;
  attempt.Begin(guarded ? calibrator_.last() : std::nullopt);
  if (attempt.phase() == Attempt::Phase::kEnded) ScheduleSync(absl::ZeroDuration());
}

// A calibration would measure other attempts too, so wait until none is running.
bool Agent::NeedsCalibration(const Attempt& attempt) const {
  const Attempt::Desired& desired = attempt.desired();
  const bool stopped = desired.stop() || (attempt.stopping() && !attempt.ranks_finished());
  if (leaving_ || quitting_ || stopped || desired.calibration_seconds() <= 0) return false;
  return calibrator_.running() ||
         (calibrator_.Stale(absl::Seconds(desired.calibration_interval())) && !AnyBusy());
}

void Agent::Calibrate(const Attempt& attempt) {
  calibrator_.Start(absl::Seconds(attempt.desired().calibration_seconds()), [this] { OnCalibrated(); });
}

void Agent::OnCalibrated() {
  for (auto& [token, attempt] : attempts_) {
    if (attempt->awaits_calibration()) attempt->AddCalibration(*calibrator_.last());
  }
  for (const std::string& token : std::exchange(after_calibration_, {})) {
    const auto it = attempts_.find(token);
    if (!quitting_ && it != attempts_.end() && !it->second->begun() && !it->second->abandoned())
      BeginNow(*it->second);
  }
  if (quitting_ || leaving_) ExitIfQuiet();
  if (quitting_) return;
  BeginNext();
  ScheduleSync(absl::ZeroDuration());
}

bool Agent::AnyBusy() const {
  return std::any_of(attempts_.begin(), attempts_.end(),
                     [](const auto& entry) { return entry.second->busy(); });
}

void Agent::Stop(Attempt& attempt, absl::Duration grace) {
  attempt.Stop(grace);
  if (!attempt.begun()) Begin(attempt);  // the attempt ends at once, without starting a process
}

// Begins the attempts whose turn it is.
void Agent::BeginNext() {
  while (!turns_.empty()) {
    if (AnyBusy() || calibrator_.running()) return PrepareNext();
    const auto next = attempts_.find(turns_.front());
    turns_.pop_front();
    if (next != attempts_.end() && !next->second->begun() && !next->second->abandoned()) Begin(*next->second);
  }
}

// Prepares the attempt that begins next, while another one runs.
void Agent::PrepareNext() {
  if (prepare_timer_ != 0) return;
  prepare_timer_ = loop_.After(absl::ZeroDuration(), [this] {
    prepare_timer_ = 0;
    const auto next = turns_.empty() ? attempts_.end() : attempts_.find(turns_.front());
    if (next != attempts_.end() && !next->second->begun() && !next->second->stopping())
      next->second->Prepare();
  });
}

void Agent::Do(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kBegin: {
      auto attempt = std::make_unique<Attempt>(host_, *action.desired,
                                               [this, token = action.token] { OnChanged(token); });
      Attempt& added = *attempt;
      attempts_[action.token] = std::move(attempt);
      if (action.desired->in_turn() && !action.desired->stop()) {
        turns_.push_back(action.token);
      } else {
        Begin(added);
      }
      break;
    }
    case Action::Kind::kStop:
      if (action.finished) attempts_.at(action.token)->RanksFinished();
      Stop(*attempts_.at(action.token), action.grace);
      break;
    case Action::Kind::kForget:
      attempts_.erase(action.token);
      break;
    case Action::Kind::kAbandon:
      attempts_.at(action.token)->Abandon(action.grace);
      OnChanged(action.token);
      break;
  }
}

void Agent::OnChanged(const std::string& token) {
  auto it = attempts_.find(token);
  if (it == attempts_.end()) return;
  const bool ended = it->second->phase() == Attempt::Phase::kEnded;
  if (it->second->TakeProcessesGone() && !it->second->abandoned() && NeedsCalibration(*it->second)) {
    it->second->AwaitCalibration();
    if (!calibrator_.running()) Calibrate(*it->second);
  }
  if (ended && it->second->abandoned()) {
    // The attempt's callback may be running now, so the loop destroys the attempt later.
    loop_.Post([gone = std::shared_ptr<Attempt>(std::move(it->second))] {});
    attempts_.erase(it);
  }
  if (!quitting_) BeginNext();
  if (quitting_ || leaving_) ExitIfQuiet();
  // While other attempts wait, the node has work, so it need not wait for an answer.
  ScheduleSync(ended && turns_.empty() ? absl::ZeroDuration() : kGather);
}

bool Agent::AllEnded() const {
  return std::all_of(attempts_.begin(), attempts_.end(),
                     [](const auto& entry) { return entry.second->reports_end(); });
}

bool Agent::AnyRunning() const {
  return std::any_of(attempts_.begin(), attempts_.end(), [](const auto& entry) {
    return entry.second->phase() == Attempt::Phase::kPreparing ||
           entry.second->phase() == Attempt::Phase::kRunning;
  });
}

void Agent::Quit(Exit exit) {
  if (std::exchange(quitting_, true)) return;
  exit_ = exit;
  client_.CancelSynchronize();
  loop_.Cancel(sync_timer_);
  loop_.Cancel(leave_timer_);
  std::vector<Attempt*> all;  // Abandon may remove entries of attempts_
  for (auto& [token, attempt] : attempts_) all.push_back(attempt.get());
  for (Attempt* attempt : all) attempt->Abandon(kQuitGrace);
  ExitIfQuiet();
}

// When the agent quits, exits as soon as no process is left. After SIGTERM, also waits for the final report,
// but at most for `leave_within`; events that have not been sent by then remain in the event files.
void Agent::ExitIfQuiet() {
  if (quitting_) {
    if (AllEnded() && exited_)
      loop_.Post([exited = std::exchange(exited_, nullptr), exit = exit_] { exited(exit); });
    return;
  }
  if (AnyRunning() || leave_timer_ != 0) return;
  leave_timer_ = loop_.After(options_.leave_within, [this] {
    spdlog::warn("Exiting although the coordinator has not confirmed the final report");
    Quit(Exit::kDone);
  });
}

}  // namespace scalelab::worker
