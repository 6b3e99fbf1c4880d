#include "server/scheduler/agent/agent_hub.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

// Time for sending a request and its answer, in addition to the time limit of the request.
constexpr absl::Duration kMargin = absl::Seconds(5);
// Time limit of a read. Reads of a filesystem that hangs block threads of the service.
constexpr absl::Duration kReadTimeout = absl::Seconds(10);
// Maximum number of requests that wait for one agent. The scheduler makes one at a time; the others come from
// readers of logs.
constexpr size_t kMaxWaiting = 16;

absl::Status Missing(const std::string& user) {
  return absl::FailedPreconditionError(absl::StrCat("the agent of ", user,
                                                    " is not connected; run `scalelab agent --detach` as ",
                                                    user, " on the login node"));
}

}  // namespace

void AgentHub::SetListener(std::function<void(const std::string& user)> connected) {
  SteadyMutexLock lock(&mutex_);
  connected_ = std::move(connected);
}

void AgentHub::Lose(Agent& agent, const std::string& why) {
  for (auto& [id, waiting] : agent.waiting) {
    waiting->over = true;
    waiting->result->lost = why;
  }
  agent.waiting.clear();
  mutex_.SignalAll();
}

void AgentHub::Connect(const std::string& user, std::shared_ptr<AgentStream> stream) {
  std::function<void(const std::string&)> connected;
  {
    SteadyMutexLock lock(&mutex_);
    if (stopped_) {
      stream->End(absl::UnavailableError("scalelabd is stopping; connect again"));
      return;
    }
    Agent& agent = agents_[user];
    if (agent.stream != nullptr) {
      Lose(agent, "its agent was replaced by a newer one before it answered");
      agent.stream->End(absl::AbortedError(absl::StrCat("a newer agent of ", user, " has connected")));
    }
    agent.stream = std::move(stream);
    connected = connected_;
  }
  spdlog::info("the agent of {} is connected", user);
  if (connected) connected(user);
}

void AgentHub::Disconnect(const std::string& user, const AgentStream* stream) {
  SteadyMutexLock lock(&mutex_);
  const auto it = agents_.find(user);
  if (it == agents_.end() || it->second.stream.get() != stream) return;
  Lose(it->second, "its agent ended before it answered");
  agents_.erase(it);
  spdlog::info("the agent of {} has disconnected", user);
}

void AgentHub::Answer(const std::string& user, const AgentStream* stream, int64_t id,
                      absl::StatusOr<CommandResult> result) {
  SteadyMutexLock lock(&mutex_);
  const auto it = agents_.find(user);
  if (it == agents_.end() || it->second.stream.get() != stream) return;
  const auto waiting = it->second.waiting.find(id);
  if (waiting == it->second.waiting.end()) return;
  waiting->second->result = std::move(result);
  waiting->second->over = true;
  it->second.waiting.erase(waiting);
  mutex_.SignalAll();
}

absl::Status AgentHub::Check(const std::string& user) const {
  SteadyMutexLock lock(&mutex_);
  return agents_.contains(user) ? absl::OkStatus() : Missing(user);
}

absl::StatusOr<CommandResult> AgentHub::Ask(const std::string& user, const AgentRequest& request) {
  SteadyMutexLock lock(&mutex_);
  const auto it = agents_.find(user);
  if (it == agents_.end()) return Missing(user);
  if (it->second.waiting.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too many requests wait for the agent of ", user, "; try again later"));
  }
  const int64_t id = ++last_id_;
  const auto waiting = std::make_shared<Waiting>();
  it->second.waiting[id] = waiting;
  it->second.stream->Send(id, request);
  if (mutex_.AwaitWithTimeout([&] { return waiting->over; }, request.timeout + kMargin))
    return std::move(waiting->result);
  // The stream is still the same, because the end of a stream ends its requests.
  const auto now = agents_.find(user);
  spdlog::warn("the agent of {} has not answered in time", user);
  now->second.stream->End(absl::DeadlineExceededError("the agent has not answered in time"));
  Lose(now->second, absl::StrCat("the agent of ", user, " has not answered in time"));
  agents_.erase(now);
  return std::move(waiting->result);
}

absl::StatusOr<std::string> AgentHub::ReadFile(const std::string& user, const std::string& directory,
                                               const std::string& file, int64_t offset, int64_t length) {
  AgentRequest request;
  request.directory = directory;
  request.file = file;
  request.offset = offset;
  request.length = length;
  request.timeout = kReadTimeout;
  absl::StatusOr<CommandResult> result = Ask(user, request);
  if (!result.ok()) return result.status();
  if (!result->lost.empty())
    return absl::UnavailableError(absl::StrCat("cannot read ", directory, "/", file, ": ", result->lost));
  return std::move(result->out);
}

void AgentHub::Stop() {
  SteadyMutexLock lock(&mutex_);
  stopped_ = true;
  for (auto& [user, agent] : agents_) {
    Lose(agent, "scalelabd is stopping");
    agent.stream->End(absl::UnavailableError("scalelabd is stopping; connect again"));
  }
  agents_.clear();
}

absl::StatusOr<CommandResult> AgentRunner::Run(const std::vector<std::string>& argv, const std::string& input,
                                               const std::vector<std::string>& variables,
                                               absl::Duration timeout) {
  AgentRequest request;
  request.argv = argv;
  request.input = input;
  request.variables = variables;
  request.timeout = timeout;
  return hub_.Ask(user_, request);
}

}  // namespace scalelab::server
