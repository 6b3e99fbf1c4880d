#include "tests/simulation/worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);
constexpr absl::Duration kGather = absl::Milliseconds(5);
constexpr absl::Duration kIdlePause = absl::Milliseconds(100);
constexpr absl::Duration kGiveUpAfter = absl::Hours(1);
constexpr absl::Duration kLeaveWithin = absl::Seconds(10);

}  // namespace

Worker::Worker(Site& site, std::string allocation, std::string node, int node_index,
               std::function<void(int)> exited)
    : site_(site),
      world_(site.world),
      allocation_(std::move(allocation)),
      node_(std::move(node)),
      node_index_(node_index),
      instance_(absl::StrCat("instance-", world_.random.Next())),
      exited_(std::move(exited)),
      queue_limit_(static_cast<int>(world_.random.Between(0, 4))),
      last_contact_(world_.queue.Steady()),
      timers_(world_.queue) {
  if (world_.faults.Occurs(Fault::kWorkerHangs)) {
    world_.queue.After(world_.random.Time(absl::Seconds(1), absl::Minutes(5)), timers_.Bind([this] {
      timers_.Stop();
      world_.Trace(node_, " of ", allocation_, " hangs");
      world_.queue.After(world_.random.Time(absl::Seconds(5), absl::Minutes(20)),
                         [this, alive = std::weak_ptr<int>(alive_)] {
                           if (!alive.expired()) timers_.Continue();
                         });
    }));
  }
}

absl::Duration Worker::Backoff(int failures) {
  return absl::Seconds(std::min(5.0, 0.05 * std::exp2(std::min(failures - 1, 10))) *
                       (0.5 + world_.random.Unit() / 2));
}

void Worker::Leave() {
  if (std::exchange(leaving_, true)) return;
  for (const auto& [token, attempt] : std::map(attempts_)) Stop(attempt);
  ExitIfQuiet();
  ScheduleSync(absl::ZeroDuration());
}

void Worker::ScheduleSync(absl::Duration within) {
  const absl::Duration due = world_.queue.Steady() + within;
  if (quitting_ || sync_due_ <= due) return;
  sync_due_ = due;
  timers_.After(within, [this, number = ++timer_number_] {
    if (number == timer_number_) Sync();
  });
}

void Worker::Sync() {
  sync_due_ = absl::InfiniteDuration();
  ++timer_number_;
  if (quitting_) return;
  sync_sent_ = world_.queue.Steady();
  goodbye_ = leaving_ && AllEnded();
  const uint64_t number = ++sync_number_;
  site_.network.Call<v1::SynchronizeResponse>(
      node_, kDeadline,
      [allocation = allocation_, request = Request(), killed = timers_.Killed(), &model = site_.model](
          Process& process, Network::Done<v1::SynchronizeResponse> done) {
        if (killed()) return;  // the connection is closed
        model.WorkerReports(allocation, request.node_index());
        process.coordinator().Synchronize(allocation, request, std::move(done));
      },
      [this, number, alive = std::weak_ptr<int>(alive_)](absl::StatusOr<v1::SynchronizeResponse> response) {
        if (alive.expired()) return;
        timers_.Bind([this, number, response = std::move(response)] { OnSynchronized(number, response); })();
      });
}

v1::SynchronizeRequest Worker::Request() const {
  using Status = v1::SynchronizeRequest::AttemptStatus;
  v1::SynchronizeRequest request;
  request.set_node(node_);
  request.set_node_index(node_index_);
  request.set_instance(instance_);
  request.set_generation(goodbye_ ? 0 : generation_);
  request.set_leaving(leaving_);
  request.set_queue_limit(queue_limit_);
  for (const auto& [token, attempt] : attempts_) {
    if (attempt->abandoned) continue;
    Status& status = *request.add_attempts();
    status.set_token(token);
    status.set_stopped(attempt->stopping);
    status.set_state(attempt->phase == Phase::kPreparing ? Status::PREPARING
                     : attempt->phase == Phase::kEnded   ? Status::ENDED
                                                         : Status::RUNNING);
    if (attempt->phase != Phase::kEnded) continue;
    // Makes the coordinator assign runs ahead, whatever their time.
    status.set_run_seconds(0.001);
    status.set_exit_status(attempt->exit_status);
    status.set_cause(attempt->cause);
    status.set_message(attempt->message);
  }
  return request;
}

void Worker::OnSynchronized(uint64_t number, absl::StatusOr<v1::SynchronizeResponse> response) {
  if (number != sync_number_ || quitting_) return;
  const absl::Duration now = world_.queue.Steady();
  if (!response.ok()) {
    if (absl::IsUnauthenticated(response.status())) return Quit(1);
    if (now - last_contact_ >= kGiveUpAfter) return Quit(1);
    return ScheduleSync(std::min(Backoff(++failures_), kGiveUpAfter - (now - last_contact_)));
  }
  last_contact_ = now;
  failures_ = 0;
  const bool goodbye = goodbye_;
  const bool news = response->generation() != generation_;
  Apply(*response);
  if (goodbye || (terminate_ && attempts_.empty())) return Quit(0);
  ScheduleSync(news ? kGather : now - sync_sent_ > kIdlePause ? absl::ZeroDuration() : kIdlePause);
}

void Worker::Apply(const v1::SynchronizeResponse& response) {
  generation_ = response.generation();
  terminate_ = response.terminate();
  const std::map<std::string, AttemptPointer> known = attempts_;
  std::set<std::string> wanted;
  for (const Desired& desired : response.attempts()) {
    wanted.insert(desired.token());
    const auto it = known.find(desired.token());
    if (it == known.end()) {
      if (!leaving_) Add(desired);
    } else if (desired.stop()) {
      Stop(it->second);
    }
  }
  for (const auto& [token, attempt] : known) {
    if (wanted.contains(token)) continue;
    if (attempt->phase == Phase::kEnded) {
      attempts_.erase(token);
    } else {
      Abandon(attempt);
    }
  }
  BeginNext();
}

bool Worker::AllEnded() const {
  return std::all_of(attempts_.begin(), attempts_.end(),
                     [](const auto& entry) { return entry.second->phase == Phase::kEnded; });
}

void Worker::Quit(int status) {
  if (std::exchange(quitting_, true)) return;
  status_ = status;
  for (const auto& [token, attempt] : std::map(attempts_)) Abandon(attempt);
  ExitIfQuiet();
}

void Worker::ExitIfQuiet() {
  if (quitting_) {
    if (!AllEnded() || exited_ == nullptr) return;
    timers_.After(absl::Milliseconds(1),
                  [exited = std::exchange(exited_, nullptr), status = status_] { exited(status); });
    return;
  }
  const bool processes = std::any_of(attempts_.begin(), attempts_.end(), [](const auto& entry) {
    return entry.second->phase == Phase::kPreparing || entry.second->phase == Phase::kRunning;
  });
  if (processes || std::exchange(leave_timer_, true)) return;
  timers_.After(kLeaveWithin, [this] { Quit(0); });
}

void Worker::AddRanks(std::vector<std::shared_ptr<Ranks>>& ranks) const {
  for (const auto& [token, attempt] : attempts_) {
    if (attempt->launches && attempt->ranks != nullptr) ranks.push_back(attempt->ranks);
  }
}

}  // namespace scalelab::simulation
