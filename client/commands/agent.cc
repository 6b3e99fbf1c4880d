// `scalelab agent`: executes Slurm's programs for the user's studies, if the service runs jobs under the
// accounts of their users. Reconnects until the process is ended.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "agent/serve.h"
#include "client/commands/commands.h"
#include "client/session/agent_start.h"
#include "client/session/exit_code.h"
#include "proto/status.h"
#include "server/command/command_runner.h"

namespace scalelab::client {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLastPause = absl::Minutes(1);
constexpr absl::Duration kConnect = absl::Seconds(20);

struct AgentOptions {
  bool detach = false;
};

// Returns whether to reconnect after an error with this code.
bool Temporary(absl::StatusCode code) {
  using Code = absl::StatusCode;
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded || code == Code::kCancelled ||
         code == Code::kOk || code == Code::kInternal || code == Code::kUnknown ||
         code == Code::kResourceExhausted;
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

// The agent of one server.
class Agent {
 public:
  Agent(ServerOptions server, std::function<void()> connected)
      : server_(std::move(server)), connected_(std::move(connected)) {}

  // Serves requests until another agent replaces this one, or until a permanent error.
  absl::Status Run() {
    std::mt19937_64 random(std::random_device{}());
    absl::Duration pause = kFirstPause;
    while (true) {
      const absl::Time began = absl::Now();
      const absl::Status ended = Connect();
      if (ended.code() == absl::StatusCode::kAborted) {
        Log(std::string(ended.message()));
        return absl::OkStatus();
      }
      if (!Temporary(ended.code())) return ended;
      if (absl::Now() - began > kLastPause) pause = kFirstPause;
      const absl::Duration wait = pause * std::uniform_real_distribution<>(0.5, 1.5)(random);
      Log(absl::StrCat("the connection to ", server_.address.text, " ended (", ended.message(),
                       "); connecting again in ",
                       absl::FormatDuration(absl::Trunc(wait, absl::Milliseconds(100)))));
      absl::SleepFor(wait);
      pause = std::min(2 * pause, kLastPause);
    }
  }

 private:
  absl::Status Connect() {
    const auto connection = Connection::Open(server_, kConnect);
    if (!connection.ok()) return connection.status();
    agent::ServeOptions options;
    options.version = SCALELAB_VERSION;
    options.host = HostName();
    options.runner = &runner_;
    options.connected = [this] {
      Log(absl::StrCat("connected to ", server_.address.text));
      const std::string missing = server::MissingProgram({"sbatch", "squeue", "scancel"});
      if (!missing.empty()) Log(absl::StrCat(missing, " is not on PATH, so no job can be submitted"));
      if (connected_) std::exchange(connected_, nullptr)();
    };
    options.log = [this](const std::string& line) { Log(line); };
    const auto serve = [&] {
      return agent::Serve((*connection)->agents(), (*connection)->MakeContext(absl::InfiniteFuture()),
                          options);
    };
    grpc::Status ended = serve();
    if ((*connection)->Renew(ended, absl::InfiniteFuture())) ended = serve();
    return (*connection)->Explain(ended);
  }

  void Log(const std::string& line) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::cerr << absl::FormatTime("%Y-%m-%d %H:%M:%S ", absl::Now(), absl::LocalTimeZone()) << line
              << std::endl;
  }

  const ServerOptions server_;
  std::function<void()> connected_;
  server::LocalCommandRunner runner_;
  absl::Mutex mutex_;
};

absl::StatusOr<ExitCode> ExecuteAgent(const AgentOptions& options, Session& session) {
  const auto server = ResolveServer(session.options().server, session.options().token_file);
  if (!server.ok()) return server.status();
  const auto files = MakeAgentFiles(server->address);
  if (!files.ok()) return files.status();
  const absl::StatusOr<LockFile> lock = LockAgent(*files);
  if (absl::IsAlreadyExists(lock.status())) {
    session.Say(absl::StrCat(lock.status().message(), "; its log is ", files->log));
    return ExitCode::kOk;
  }
  if (!lock.ok()) return lock.status();
  std::function<void()> connected;
  if (options.detach) {
    auto detached = Detach(*files);
    if (!detached.ok()) return detached.status();
    connected = *std::move(detached);
  }
  if (auto s = Agent(*server, std::move(connected)).Run(); !s.ok()) return s;
  return ExitCode::kOk;
}

}  // namespace

void AddAgent(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<AgentOptions>();
  CLI::App* command = app.add_subcommand(
      "agent", "Run Slurm's programs for your studies, where jobs run under your own account");
  command->add_flag("--detach", options->detach, "Continue in the background");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteAgent(*options, session); };
  });
}

}  // namespace scalelab::client
