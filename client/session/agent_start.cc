#include "client/session/agent_start.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/session/environment.h"
#include "server/command/command.h"

namespace scalelab::client {
namespace {

constexpr int kConnectMs = 10'000;
// This is longer than the time for which the agent waits for its connection, and longer than it takes to read
// its files from a slow filesystem.
constexpr absl::Duration kStartTimeout = absl::Minutes(1);

// Returns a short name for the server: FNV-1a of its address.
std::string FileNameOf(const ServerAddress& server) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : server.text) hash = (hash ^ c) * 0x100000001b3;
  return absl::StrFormat("agent-%016x", hash);
}

absl::Status Failed(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Waits for the byte that the agent writes when it is connected, prints the result and exits.
[[noreturn]] void WaitForAgent(int from, pid_t agent, const AgentFiles& files) {
  pollfd ready{from, POLLIN, 0};
  char byte = 0;
  const bool heard = poll(&ready, 1, kConnectMs) == 1;
  const bool connected = heard && read(from, &byte, 1) == 1;
  if (connected) {
    dprintf(STDERR_FILENO, "the agent runs as process %d; its log is %s\n", agent, files.log.c_str());
    _exit(0);
  }
  if (!heard) {
    dprintf(STDERR_FILENO, "the agent runs as process %d and is not connected yet; its log is %s\n", agent,
            files.log.c_str());
    _exit(0);
  }
  dprintf(STDERR_FILENO, "scalelab: the agent has ended; %s has the reason\n", files.log.c_str());
  _exit(1);
}

}  // namespace

absl::StatusOr<AgentFiles> MakeAgentFiles(const ServerAddress& server) {
  // Check the directory as for the workers' locks, because other users can write to /tmp.
  const std::string locks = absl::StrCat("/tmp/scalelab-", geteuid());
  struct stat found {};
  if (mkdir(locks.c_str(), 0700) != 0 && errno != EEXIST) return Failed("cannot create " + locks);
  if (lstat(locks.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) || found.st_uid != geteuid())
    return absl::FailedPreconditionError(absl::StrCat(locks, " is not a directory of this user; remove it"));
  const std::string state = Environment("XDG_STATE_HOME").empty() ? Environment("HOME") + "/.local/state"
                                                                  : Environment("XDG_STATE_HOME");
  std::error_code error;
  std::filesystem::create_directories(state + "/scalelab", error);
  // Without a home directory, the log is in the directory of the lock.
  const std::string logs = error ? locks : state + "/scalelab";
  const std::string name = FileNameOf(server);
  return AgentFiles{absl::StrCat(locks, "/", name, ".lock"), absl::StrCat(logs, "/", name, ".log")};
}

absl::StatusOr<LockFile> LockAgent(const AgentFiles& files) {
  absl::StatusOr<std::optional<LockFile>> lock = LockFile::Take(files.lock);
  if (!lock.ok()) return lock.status();
  if (!lock->has_value())
    return absl::AlreadyExistsError("an agent of this user runs on this machine already");
  return **std::move(lock);
}

absl::StatusOr<std::function<void()>> Detach(const AgentFiles& files) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Failed("cannot create a pipe");
  const int log = open(files.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (log < 0 || nothing < 0) return Failed("cannot open " + files.log);
  const pid_t agent = fork();
  if (agent < 0) return Failed("cannot start a process");
  if (agent > 0) {
    close(ends[1]);
    WaitForAgent(ends[0], agent, files);
  }
  close(ends[0]);
  setsid();
  dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  if (chdir("/") != 0) return Failed("cannot enter /");
  return std::function<void()>([end = ends[1]]() mutable {
    if (end < 0) return;
    (void)!write(end, "c", 1);
    close(end);
    end = -1;
  });
}

absl::Status StartAgent(const ServerOptions& server, std::string program) {
  std::error_code error;
  if (program.empty()) program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  std::vector<std::string> argv = {program, "agent", "--detach", "--server", server.address.text};
  if (!server.token_file.empty()) argv.insert(argv.end(), {"--token-file", server.token_file});
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const absl::StatusOr<server::CommandResult> result =
      server::RunCommand(argv, /*input=*/"", environment, kStartTimeout);
  if (!result.ok()) return result.status();
  if (result->ok()) return absl::OkStatus();
  if (result->timed_out)
    return absl::FailedPreconditionError("`scalelab agent --detach` has not ended after a minute");
  return absl::FailedPreconditionError(absl::StripAsciiWhitespace(absl::StrCat(result->out, result->err)));
}

}  // namespace scalelab::client
