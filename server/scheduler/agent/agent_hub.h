// The connected agents of users, and the requests that wait for their answers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/command/command_runner.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

// A request to an agent: to run a program, to read a part of a file, or to remove files.
struct AgentRequest {
  std::vector<std::string> argv;  // empty: read or remove files
  std::string input;
  std::vector<std::string> variables;
  absl::Duration timeout = absl::Seconds(30);
  std::string directory, file;  // the file to read
  int64_t offset = 0, length = 0;
  // What to do with the files in `directory`, see RemoveFiles in agent.proto.
  enum class Files { kRead, kRemoveLogs, kRemoveEverything, kRemoveEmptyStudy };
  Files files = Files::kRead;
  bool dry_run = false;  // only count the files to remove
};

// The connection to one agent. Methods may be called from any thread, also after the connection has ended. They must not
// block, and they must not call the hub.
class AgentStream {
 public:
  virtual ~AgentStream() = default;
  virtual void Send(int64_t id, const AgentRequest& request) = 0;
  virtual void End(const absl::Status& why) = 0;
};

// Methods may be called from any thread.
class AgentHub {
 public:
  ~AgentHub() { Stop(); }

  // Calls `connected` when an agent of a user has connected, on the thread that calls Connect. Call it before Connect.
  void SetListener(std::function<void(const std::string& user)> connected) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes `stream` the agent of the user. Ends an older stream of the same user.
  void Connect(const std::string& user, std::shared_ptr<AgentStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Forgets the stream, if it is still the agent of the user. The outcome of its requests is unknown.
  void Disconnect(const std::string& user, const AgentStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // Passes an answer of the stream to the call that waits for it. Ignores the answer if no call waits for it.
  // An error means that the agent has refused the request.
  void Answer(const std::string& user, const AgentStream* stream, int64_t id,
              absl::StatusOr<CommandResult> result) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns OK if an agent of the user is connected; otherwise FAILED_PRECONDITION, with what the user has to do.
  absl::Status Check(const std::string& user) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the request to the agent of the user and blocks until the answer arrives, for the time limit of the request and
  // a margin. Errors and `lost` are as in CommandRunner. An agent that does not answer in time is disconnected, because
  // it may execute the request later; it may connect again. RESOURCE_EXHAUSTED if too many requests wait for it.
  absl::StatusOr<CommandResult> Ask(const std::string& user, const AgentRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads at most `length` bytes of a file in a directory of the user's jobs, with Ask. Returns no bytes at
  // the end of the file. NOT_FOUND if there is no such file.
  absl::StatusOr<std::string> ReadFile(const std::string& user, const std::string& directory,
                                       const std::string& file, int64_t offset, int64_t length)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all streams, and all calls of Ask. No agent can connect afterwards.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    bool over = false;
    absl::StatusOr<CommandResult> result = CommandResult();
  };
  struct Agent {
    std::shared_ptr<AgentStream> stream;
    std::map<int64_t, std::shared_ptr<Waiting>> waiting;  // by number of the request
  };
  void Lose(Agent& agent, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable SteadyMutex mutex_;
  std::map<std::string, Agent> agents_ ABSL_GUARDED_BY(mutex_);  // by user; only those connected
  std::function<void(const std::string&)> connected_ ABSL_GUARDED_BY(mutex_);
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

// Runs programs through the agent of a user.
class AgentRunner final : public CommandRunner {
 public:
  // `hub` must outlive the runner.
  AgentRunner(AgentHub& hub, std::string user) : hub_(hub), user_(std::move(user)) {}
  absl::StatusOr<CommandResult> Run(const std::vector<std::string>& argv, const std::string& input,
                                    const std::vector<std::string>& variables,
                                    absl::Duration timeout) override;

 private:
  AgentHub& hub_;
  const std::string user_;
};

}  // namespace scalelab::server
