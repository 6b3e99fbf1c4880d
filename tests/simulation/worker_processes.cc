#include "tests/simulation/worker_processes.h"

#include <signal.h>

#include <utility>

namespace scalelab::simulation {
namespace {

constexpr int kPid = 1000;

// Returns the token in an entry "NAME=value".
std::string TokenOf(const std::string& tag) { return tag.substr(tag.find('=') + 1); }

class TaggedRanks final : public worker::TaggedProcesses {
 public:
  TaggedRanks(Worker& worker, worker::EventLoop& loop, std::string token)
      : worker_(worker), loop_(loop), token_(std::move(token)) {}
  ~TaggedRanks() override { loop_.Cancel(timer_); }

  void End(absl::Duration grace, std::function<void()> gone) override {
    gone_ = std::move(gone);
    const auto found = worker_.site().directories.find(token_);
    if (found == worker_.site().directories.end() || !found->second->live()) return FinishSoon();
    const std::shared_ptr<Ranks>& ranks = found->second;
    ranks->Stop(grace);
    ranks->Follow([this, ranks = ranks.get(), alive = std::weak_ptr<int>(alive_)] {
      if (alive.expired() || ranks->live()) return;
      worker_.Post([this, alive] {
        if (!alive.expired()) FinishSoon();
      });
    });
  }

 private:
  void FinishSoon() {
    if (timer_ != 0) return;
    timer_ = loop_.After(absl::ZeroDuration(), [this] {
      timer_ = 0;
      if (gone_) std::exchange(gone_, nullptr)();  // may destroy this object
    });
  }

  Worker& worker_;
  worker::EventLoop& loop_;
  const std::string token_;
  std::function<void()> gone_;
  worker::EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace

std::unique_ptr<worker::TaggedProcesses> WorkerProcesses::Tagged(Worker& worker, worker::EventLoop& loop,
                                                                 const std::string& tag) {
  return std::make_unique<TaggedRanks>(worker, loop, TokenOf(tag));
}

uint64_t WorkerProcesses::Start(const worker::Job& job, Started started, Ended ended) {
  const uint64_t id = ++last_id_;
  jobs_[id] = {TokenOf(job.tag), std::move(started), std::move(ended)};
  worker_.timers().After(worker_.site().world.random.Time(absl::Milliseconds(10), absl::Seconds(2)),
                         [this, id, alive = std::weak_ptr<int>(alive_)] {
                           if (!alive.expired()) Launch(id);
                         });
  return id;
}

void WorkerProcesses::Launch(uint64_t id) {
  Running& job = jobs_.at(id);
  worker_.Post([started = std::exchange(job.started, nullptr)] { started(kPid); });
  if (job.stopped) return End(id, 128 + SIGTERM);
  Site& site = worker_.site();
  const Desired& desired = site.attempts.at(job.token);
  CheckTurn(desired);
  job.ranks = std::make_shared<Ranks>(site.world, site.model, desired);
  if (!site.directories.emplace(job.token, job.ranks).second)
    site.world.Violation("attempt ", job.token, " is launched twice");
  worker_.AddRanks(job.ranks);
  job.ranks->Follow([this, id, ranks = job.ranks.get(), alive = std::weak_ptr<int>(alive_)] {
    if (alive.expired() || ranks->live()) return;
    worker_.timers().Bind([this, id, alive, status = ranks->exit_status()] {
      if (!alive.expired()) End(id, status);
    })();
  });
  job.ranks->Launch();
}

// An attempt that waits for its turn begins when no ranks of other attempts are left.
void WorkerProcesses::CheckTurn(const Desired& desired) {
  if (!desired.in_turn()) return;
  for (const auto& [token, other] : worker_.site().attempts) {
    const auto ranks = worker_.site().directories.find(token);
    if (token == desired.token() || ranks == worker_.site().directories.end() || !ranks->second->live())
      continue;
    for (const std::string& node : other.nodes()) {
      if (node == worker_.node())
        worker_.site().world.Violation("attempt ", desired.token(), " begins while ", token, " runs on ",
                                       node);
    }
  }
}

void WorkerProcesses::End(uint64_t id, int status) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  worker::JobResult result;
  result.exit_status = status;
  result.failed = status == 0 ? -1 : 0;
  result.stopped = job->second.stopped;
  worker_.Post([ended = std::move(job->second.ended), result] { ended(result); });
  jobs_.erase(job);
}

void WorkerProcesses::Notify(uint64_t id) {
  const auto job = jobs_.find(id);
  if (job != jobs_.end() && job->second.ranks != nullptr) job->second.ranks->Notify();
}

void WorkerProcesses::Stop(uint64_t id, absl::Duration grace) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second.stopped = true;
  if (job->second.ranks != nullptr) job->second.ranks->Stop(grace);
}

}  // namespace scalelab::simulation
