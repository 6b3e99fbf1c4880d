#include "tests/fakes/loopback_agent.h"

#include <unistd.h>

#include <utility>

#include "server/services/agent_messages.h"

namespace scalelab::server {

class LoopbackAgent::Stream final : public AgentStream {
 public:
  Stream(AgentHub& hub, std::string user, std::string directory)
      : hub_(hub),
        user_(std::move(user)),
        executor_({geteuid(), std::move(directory)}, runner_),
        thread_([this] { Work(); }) {}
  ~Stream() override { Stop(); }

  void Send(int64_t id, const AgentRequest& request) override {
    v1::ServeResponse message;
    message.set_id(id);
    FillRequest(request, &message);
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(message));
  }
  void End(const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    ended_ = why;
  }

  void Kill() {
    {
      absl::MutexLock lock(&mutex_);
      killed_ = true;
    }
    hub_.Disconnect(user_, this);
  }
  void Suspend() {
    absl::MutexLock lock(&mutex_);
    suspended_ = true;
  }
  void WaitForRequests(int count) {
    absl::MutexLock lock(&mutex_);
    const std::pair<Stream*, int> wanted{this, count};
    mutex_.Await(absl::Condition(
        +[](const std::pair<Stream*, int>* w)
             ABSL_NO_THREAD_SAFETY_ANALYSIS { return w->first->requests_ >= w->second; },
        &wanted));
  }
  int requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  absl::Status ended() {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }
  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  bool Ready() const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || killed_ || (!queue_.empty() && !suspended_);
  }
  void Work() {
    while (true) {
      v1::ServeResponse next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &Stream::Ready));
        if (stopping_ || killed_) return;
        next = std::move(queue_.front());
        queue_.pop_front();
        ++requests_;
      }
      v1::ServeRequest::Answer answer = executor_.Answer(next);
      hub_.Answer(user_, this, next.id(), ResultOf(answer));
    }
  }

  AgentHub& hub_;
  const std::string user_;
  LocalCommandRunner runner_;
  const agent::Executor executor_;
  absl::Mutex mutex_;
  std::deque<v1::ServeResponse> queue_ ABSL_GUARDED_BY(mutex_);
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;
  bool killed_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

LoopbackAgent::LoopbackAgent(AgentHub& hub, std::string user, std::string directory)
    : stream_(std::make_shared<Stream>(hub, user, std::move(directory))) {
  hub.Connect(user, stream_);
}

LoopbackAgent::~LoopbackAgent() {
  Kill();
  stream_->Stop();
}

void LoopbackAgent::Kill() { stream_->Kill(); }
void LoopbackAgent::Suspend() { stream_->Suspend(); }
void LoopbackAgent::WaitForRequests(int count) { stream_->WaitForRequests(count); }
int LoopbackAgent::requests() { return stream_->requests(); }
absl::Status LoopbackAgent::ended() { return stream_->ended(); }

}  // namespace scalelab::server
