#include "tests/simulation/worker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/simulation/worker_client.h"
#include "tests/simulation/worker_processes.h"

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kHeartbeatPause = absl::Seconds(2);
// Longest time between two calls of a worker: the deadline of a call, and the pause after an error.
constexpr absl::Duration kLongestPause = absl::Seconds(27);

}  // namespace

// The objects that are destroyed at the end of the process.
struct Worker::Core {
  Core(Worker& worker, int node_index)
      : loop({[&queue = worker.world_.queue] { return queue.Steady(); },
              [&random = worker.world_.random] { return random.Next(); }}),
        heartbeats(std::make_unique<WorkerClient>(worker), kHeartbeatPause, [this] { return loop.Now(); }),
        processes(worker),
        follower(loop, worker::SendThrough(heartbeats, loop)),
        provenance(loop, {"", "", ""}, {}),
        host{loop, processes, follower, provenance, frameworks, launch, worker.node_, worker.allocation_},
        agent(loop, heartbeats, host, Options(node_index),
              [this](worker::Agent::Exit exit) { exited = exit == worker::Agent::Exit::kDenied ? 1 : 0; }) {
    frameworks.push_back(worker::NewNativeFramework("/bin/true"));
    launch.launcher = worker::Launcher::kSrun;
    host.tagged = [this, &worker](const std::string& tag) {
      return WorkerProcesses::Tagged(worker, loop, tag);
    };
    provenance.AskTrainer(processes, [] {});  // there is none
  }
  static worker::AgentOptions Options(int node_index) {
    worker::AgentOptions options;
    options.node_index = node_index;
    return options;
  }

  worker::EventLoop loop;
  worker::Heartbeats heartbeats;
  WorkerProcesses processes;
  worker::EventFollower follower;
  worker::Provenance provenance;
  worker::Frameworks frameworks;
  worker::LaunchHost launch;
  worker::AttemptHost host;
  std::optional<int> exited;  // the exit status
  worker::Agent agent;
};

Worker::Worker(Site& site, std::string allocation, std::string node, int node_index,
               std::function<void(int)> exited, std::function<void()> wrote)
    : site_(site),
      world_(site.world),
      allocation_(std::move(allocation)),
      node_(std::move(node)),
      queue_limit_(static_cast<int>(world_.random.Between(0, 4))),
      exited_(std::move(exited)),
      wrote_(std::move(wrote)),
      timers_(world_.queue),
      core_(std::make_unique<Core>(*this, node_index)) {
  if (world_.faults.Occurs(Fault::kWorkerHangs))
    timers_.After(world_.random.Time(absl::Seconds(1), absl::Minutes(5)), [this] { Hang(); });
  if (world_.faults.Occurs(Fault::kWorkerBlocked))
    timers_.After(world_.random.Time(absl::Seconds(1), absl::Minutes(5)), [this] { Block(); });
}

Worker::~Worker() { Kill(); }

void Worker::Start(absl::Duration delay) {
  timers_.After(delay, [this] {
    core_->agent.Start();
    Rearm();
  });
}

void Worker::Leave() {
  timers_.Bind([this] {
    core_->agent.Leave();
    Rearm();
  })();
}

void Worker::Kill() {
  timers_.Kill();
  core_.reset();
}

void Worker::AddRanks(std::shared_ptr<Ranks> ranks) {
  ranks->Follow(wrote_);
  ranks_.push_back(std::move(ranks));
}

void Worker::Post(std::function<void()> call) {
  if (core_ == nullptr) return;
  core_->loop.Post(std::move(call));
  Rearm();
}

// --- Steps

void Worker::Rearm() {
  if (core_ == nullptr) return;
  const absl::Duration now = world_.queue.Steady();
  const absl::Duration step = std::max(now, core_->loop.NextStep());
  if (!blocked_ && step < step_due_) {
    step_due_ = step;
    timers_.After(step - now, [this, number = ++step_number_] {
      if (number == step_number_) Step();
    });
  }
  const absl::Duration heartbeat = std::max(now, core_->heartbeats.NextStep());
  if (heartbeat < heartbeat_due_) {
    heartbeat_due_ = heartbeat;
    timers_.After(heartbeat - now, [this, number = ++heartbeat_number_] {
      if (number == heartbeat_number_) StepHeartbeats();
    });
  }
}

void Worker::Step() {
  step_due_ = absl::InfiniteDuration();
  if (blocked_) return;
  core_->loop.Step();
  if (!core_->exited) return Rearm();
  const int status = *core_->exited;
  Kill();
  exited_(status);
}

void Worker::StepHeartbeats() {
  heartbeat_due_ = absl::InfiniteDuration();
  core_->heartbeats.Step();
  Rearm();
}

// --- Faults

void Worker::Suspend(bool suspend) {
  if (suspend) return timers_.Stop();
  timers_.Continue();
  if (last_call_ != absl::InfiniteDuration()) last_call_ = world_.queue.Steady();
}

void Worker::Hang() {
  Suspend(true);
  world_.Trace(node_, " of ", allocation_, " hangs");
  world_.queue.After(world_.random.Time(absl::Seconds(5), absl::Minutes(20)),
                     [this, alive = std::weak_ptr<int>(alive_)] {
                       if (!alive.expired()) Suspend(false);
                     });
}

// The event loop waits for a file server that does not answer.
void Worker::Block() {
  blocked_ = true;
  world_.Trace("the loop of ", node_, " of ", allocation_, " is blocked");
  CheckHeartbeats();
  timers_.After(world_.random.Time(absl::Seconds(5), absl::Minutes(20)), [this] {
    blocked_ = false;
    world_.Trace("the loop of ", node_, " of ", allocation_, " continues");
    Rearm();
  });
}

void Worker::CheckHeartbeats() {
  if (!blocked_) return;
  const absl::Duration silent = world_.queue.Steady() - last_call_;
  if (silent > kLongestPause) {
    return world_.Violation(node_, " of ", allocation_, " is blocked and has made no call for ",
                            absl::FormatDuration(silent));
  }
  timers_.After(absl::Seconds(1), [this] { CheckHeartbeats(); });
}

// --- The workers of a job

namespace {

class Workers final : public JobProcesses {
 public:
  Workers(Site& site, const server::JobRequest& request, const std::vector<std::string>& nodes,
          std::function<void(int)> ended)
      : world_(site.world), ended_(std::move(ended)), left_(nodes.size()) {
    for (size_t n = 0; n < nodes.size(); ++n) {
      workers_.push_back(std::make_unique<Worker>(
          site, request.token, nodes[n], static_cast<int>(n), [this](int status) { OnExit(status); },
          [this, alive = std::weak_ptr<int>(alive_)] {
            if (alive.expired()) return;
            for (auto& worker : workers_) worker->Rearm();
          }));
      workers_[n]->Start(world_.random.Time(absl::Milliseconds(300), absl::Seconds(6)));
    }
  }
  void Terminate() override {
    for (auto& worker : workers_) worker->Leave();
  }
  void Kill() override {
    ended_ = nullptr;
    for (const auto& ranks : AllRanks()) ranks->End(128 + 9);
    for (auto& worker : workers_) worker->Kill();
  }
  void Suspend(bool suspend) override {
    for (auto& worker : workers_) worker->Suspend(suspend);
    for (const auto& ranks : AllRanks()) ranks->Suspend(suspend);
  }
  void CrashOne() override {
    Worker& worker = *workers_[world_.random.Between(0, static_cast<int64_t>(workers_.size()) - 1)];
    // Its spawner ends the ranks; srun ends the other workers.
    worker.Kill();
    for (const auto& ranks : AllRanks()) ranks->Stop(absl::Seconds(5));
    OnExit(1);
  }

 private:
  std::vector<std::shared_ptr<Ranks>> AllRanks() const {
    std::vector<std::shared_ptr<Ranks>> all;
    for (const auto& worker : workers_) all.insert(all.end(), worker->ranks().begin(), worker->ranks().end());
    return all;
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
