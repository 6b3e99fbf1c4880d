// The attempts of a simulated worker: their ranks, and the events that are sent to the coordinator.
#include <algorithm>
#include <utility>

#include "server/core/ingest.h"
#include "tests/simulation/worker.h"

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(20);
constexpr absl::Duration kTick = absl::Milliseconds(500);

using Streams = std::vector<v1::ReportEventsResponse::Stream>;

// Does what the service does with a ReportEvents.
void Report(Process& process, const std::string& allocation, const v1::ReportEventsRequest& request,
            const Network::Done<v1::ReportEventsResponse>& done) {
  std::vector<server::ParsedBatch> batches;
  for (const v1::EventBatch& batch : request.batches()) {
    auto parsed = server::ParseBatch(batch);
    if (!parsed.ok()) return done(parsed.status());
    batches.push_back(*std::move(parsed));
  }
  process.coordinator().Report(allocation, std::move(batches), [done](absl::StatusOr<Streams> streams) {
    if (!streams.ok()) return done(streams.status());
    v1::ReportEventsResponse response;
    for (auto& stream : *streams) *response.add_streams() = std::move(stream);
    done(std::move(response));
  });
}

}  // namespace

void Worker::Add(const Desired& desired) {
  auto attempt = std::make_shared<Attempt>();
  attempt->desired = desired;
  attempts_[desired.token()] = attempt;
  if (desired.in_turn() && !desired.stop()) {
    turns_.push_back(attempt);
  } else {
    Begin(attempt);
  }
}

// Begins the attempts whose turn it is: no processes of an earlier one may be left.
void Worker::BeginNext() {
  while (!turns_.empty() && !quitting_) {
    const bool busy = std::any_of(attempts_.begin(), attempts_.end(), [](const auto& entry) {
      const Attempt& attempt = *entry.second;
      return attempt.begun && (attempt.phase == Phase::kPreparing || attempt.phase == Phase::kRunning);
    });
    if (busy) return;
    const AttemptPointer next = turns_.front();
    turns_.erase(turns_.begin());
    if (next->phase == Phase::kPreparing) Begin(next);
  }
}

void Worker::Begin(const AttemptPointer& attempt) {
  const Desired& desired = attempt->desired;
  attempt->begun = true;
  attempt->stopping = desired.stop();
  const auto& nodes = desired.nodes();
  const auto own = std::find(nodes.begin(), nodes.end(), node_);
  if (own == nodes.end()) {
    world_.Violation("attempt ", desired.token(), " is sent to ", node_, ", which is none of its nodes");
    return Fail(attempt, v1::Attempt::LAUNCH_ERROR, 126, "not one of the attempt's nodes");
  }
  const int place = static_cast<int>(own - nodes.begin());
  attempt->launches = place == 0;
  auto& ranks = site_.directories[desired.token()];
  if (attempt->stopping && attempt->launches && (ranks == nullptr || !ranks->launched())) {
    attempt->phase = Phase::kEnded;  // nothing was started
    return ScheduleSync(absl::ZeroDuration());
  }
  if (ranks == nullptr) ranks = std::make_shared<Ranks>(world_, site_.model, desired);
  attempt->ranks = ranks;
  const int first = place * desired.ranks_per_node();
  for (int rank = first; rank < std::min(first + desired.ranks_per_node(), desired.spec().ranks()); ++rank) {
    attempt->streams.push_back({rank});
  }
  ranks->Follow([this, attempt, alive = std::weak_ptr<int>(alive_)] {
    if (!alive.expired()) timers_.Bind([this, attempt] { OnRanksChanged(attempt); })();
  });
  if (!attempt->launches) {
    attempt->phase = Phase::kRunning;
    if (attempt->stopping) OnRanksChanged(attempt);
    return;
  }
  if (ranks->launched()) {
    attempt->cause = v1::Attempt::WORKER_LOST;
    attempt->exit_status = 128 + 9;
    attempt->message = "The worker was restarted while the attempt ran.";
    attempt->phase = Phase::kRunning;
    ranks->Stop();
    return OnRanksChanged(attempt);
  }
  for (Stream& stream : attempt->streams) stream.known = true;
  if (world_.faults.Occurs(Fault::kStorageError))
    return Fail(attempt, v1::Attempt::STORAGE_ERROR, 126,
                "Cannot write 'launch.json': No space left on device");
  timers_.After(world_.random.Time(absl::Milliseconds(10), absl::Seconds(2)),
                [this, attempt] { Launch(attempt); });
}

void Worker::Launch(const AttemptPointer& attempt) {
  if (attempt->phase != Phase::kPreparing) return;
  attempt->phase = Phase::kRunning;
  for (const auto& [token, other] : attempts_) {
    if (attempt->desired.in_turn() && other != attempt && other->phase == Phase::kRunning)
      world_.Violation("attempt ", attempt->desired.token(), " begins while ", token, " runs");
  }
  attempt->ranks->Launch();
  ScheduleSync(absl::Milliseconds(5));
}

void Worker::Fail(const AttemptPointer& attempt, v1::Attempt::Cause cause, int status, std::string message) {
  attempt->cause = cause;
  attempt->exit_status = status;
  attempt->message = std::move(message);
  End(attempt);
}

void Worker::Stop(const AttemptPointer& attempt) {
  if (attempt->phase == Phase::kEnded || std::exchange(attempt->stopping, true)) return;
  if (attempt->phase == Phase::kPreparing) {
    attempt->exit_status = 128 + 15;
    attempt->message = "Stopped.";
    return End(attempt);
  }
  if (attempt->phase != Phase::kRunning) return;
  attempt->ranks->Stop();
  OnRanksChanged(attempt);
}

void Worker::Abandon(const AttemptPointer& attempt) {
  if (std::exchange(attempt->abandoned, true)) return;
  Stop(attempt);
  if (attempt->phase == Phase::kDraining || attempt->phase == Phase::kEnded || !attempt->ranks->live())
    End(attempt);
}

void Worker::OnRanksChanged(const AttemptPointer& attempt) {
  if (attempt->phase == Phase::kPreparing || attempt->phase == Phase::kEnded) return;
  SendSoon(attempt, attempt->ranks->live() ? kTick : absl::ZeroDuration());
  // A node that has not launched the attempt ends it when the coordinator requests that.
  if (attempt->ranks->live() || attempt->phase == Phase::kDraining ||
      (!attempt->launches && !attempt->stopping))
    return;
  attempt->phase = Phase::kDraining;
  BeginNext();
  if (attempt->abandoned) return End(attempt);
  if (attempt->cause == v1::Attempt::CAUSE_UNSPECIFIED && attempt->launches) {
    attempt->exit_status = attempt->ranks->exit_status();
    if (attempt->exit_status > 128 && !attempt->stopping) attempt->cause = v1::Attempt::RANK_KILLED;
    if (attempt->exit_status != 0) attempt->message = "last words";
  }
  EndIfDrained(attempt);
}

void Worker::End(const AttemptPointer& attempt) {
  attempt->phase = Phase::kEnded;
  if (attempt->abandoned) attempts_.erase(attempt->desired.token());
  BeginNext();
  if (quitting_ || leaving_) ExitIfQuiet();
  ScheduleSync(absl::ZeroDuration());
}

// --- Events

void Worker::SendSoon(const AttemptPointer& attempt, absl::Duration within) {
  if (attempt->sending || attempt->phase == Phase::kEnded) return;
  if (within > absl::ZeroDuration() && std::exchange(attempt->send_due, true)) return;
  timers_.After(within, [this, attempt] {
    attempt->send_due = false;
    Send(attempt);
  });
}

void Worker::Send(const AttemptPointer& attempt) {
  if (attempt->sending || attempt->phase == Phase::kEnded || attempt->abandoned) return;
  v1::ReportEventsRequest request;
  for (const Stream& stream : attempt->streams) {
    const int64_t written = attempt->ranks->lines(stream.rank);
    if (stream.fenced || (stream.known && stream.durable >= written)) continue;
    const int64_t end = stream.known ? world_.random.Between(stream.durable + 1, written) : stream.durable;
    attempt->ranks->Read(stream.rank, stream.durable, end, *request.add_batches());
  }
  if (request.batches().empty()) return EndIfDrained(attempt);
  attempt->sending = true;
  site_.network.Call<v1::ReportEventsResponse>(
      node_, kDeadline,
      [allocation = allocation_, request, killed = timers_.Killed()](
          Process& process, Network::Done<v1::ReportEventsResponse> done) {
        if (!killed()) Report(process, allocation, request, done);
      },
      [this, attempt, request,
       alive = std::weak_ptr<int>(alive_)](absl::StatusOr<v1::ReportEventsResponse> answer) {
        if (alive.expired()) return;
        timers_.Bind(
            [this, attempt, request, answer = std::move(answer)] { OnAnswer(attempt, request, answer); })();
      });
}

void Worker::OnAnswer(const AttemptPointer& attempt, const v1::ReportEventsRequest& sent,
                      const absl::StatusOr<v1::ReportEventsResponse>& answer) {
  attempt->sending = false;
  bool moved = false;
  for (int i = 0; answer.ok() && i < answer->streams_size(); ++i) {
    const auto& state = answer->streams(i);
    const auto stream = std::find_if(attempt->streams.begin(), attempt->streams.end(),
                                     [&](const Stream& s) { return s.rank == state.rank(); });
    if (state.outcome() == v1::ReportEventsResponse::Stream::FENCED) {
      stream->fenced = moved = true;
      continue;
    }
    moved |= !std::exchange(stream->known, true) || state.line() != sent.batches(i).begin_line();
    stream->durable = state.line();
    site_.model.LinesAcknowledged(attempt->desired.token(), stream->rank, state.line());
  }
  attempt->failures = moved ? 0 : attempt->failures + 1;
  EndIfDrained(attempt);
  SendSoon(attempt, moved ? absl::ZeroDuration() : Backoff(attempt->failures));
}

void Worker::EndIfDrained(const AttemptPointer& attempt) {
  if (attempt->phase != Phase::kDraining) return;
  const bool drained =
      std::all_of(attempt->streams.begin(), attempt->streams.end(), [&](const Stream& stream) {
        return stream.fenced || (stream.known && stream.durable == attempt->ranks->lines(stream.rank));
      });
  if (drained) End(attempt);
}

// --- The workers of a job

namespace {

class Workers final : public JobProcesses {
 public:
  Workers(Site& site, const server::JobRequest& request, const std::vector<std::string>& nodes,
          std::function<void(int)> ended)
      : world_(site.world), ended_(std::move(ended)), left_(nodes.size()) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      workers_.push_back(std::make_unique<Worker>(site, request.token, nodes[n], static_cast<int>(n),
                                                  [this](int status) { OnExit(status); }));
      workers_[n]->timers().After(world_.random.Time(absl::Milliseconds(300), absl::Seconds(6)),
                                  [worker = workers_[n].get()] { worker->Start(); });
    }
  }
  void Terminate() override {
    for (auto& worker : workers_) worker->timers().Bind([&worker] { worker->Leave(); })();
  }
  void Kill() override {
    ended_ = nullptr;
    for (const auto& ranks : LiveRanks()) ranks->End(128 + 9);
    for (auto& worker : workers_) worker->timers().Kill();
  }
  void Suspend(bool suspend) override {
    for (auto& worker : workers_) suspend ? worker->timers().Stop() : worker->timers().Continue();
    for (const auto& ranks : LiveRanks()) ranks->Suspend(suspend);
  }
  void CrashOne() override {
    Worker& worker = *workers_[world_.random.Between(0, static_cast<int64_t>(workers_.size()) - 1)];
    // Its spawner ends the ranks; srun ends the other workers.
    worker.timers().Kill();
    for (const auto& ranks : LiveRanks()) ranks->Stop();
    OnExit(1);
  }

 private:
  std::vector<std::shared_ptr<Ranks>> LiveRanks() const {
    std::vector<std::shared_ptr<Ranks>> ranks;
    for (const auto& worker : workers_) worker->AddRanks(ranks);
    return ranks;
  }
  void OnExit(int status) {
    if (ended_ == nullptr) return;
    if (status == 0 && --left_ > 0) return;
    auto ended = std::exchange(ended_, nullptr);
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), absl::Seconds(6)),
                       [this, ended, status, alive = std::weak_ptr<int>(alive_)] {
                         if (alive.expired()) return;
                         Kill();
                         ended(status);
                       });
  }

  World& world_;
  std::function<void(int)> ended_;
  size_t left_;
  std::vector<std::unique_ptr<Worker>> workers_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace

std::unique_ptr<JobProcesses> LaunchWorkers(Site& site, const server::JobRequest& request,
                                            std::vector<std::string> nodes, std::function<void(int)> ended) {
  return std::make_unique<Workers>(site, request, nodes, std::move(ended));
}

}  // namespace scalelab::simulation
