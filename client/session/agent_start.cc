#include "client/session/agent_start.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/session/environment.h"

namespace scalelab::client {
namespace {

constexpr int kConnectMs = 10'000;

// Returns a short name for the server: FNV-1a of its address.
std::string FileNameOf(const ServerAddress& server) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : server.text) hash = (hash ^ c) * 0x100000001b3;
  return absl::StrFormat("agent-%016x", hash);
}

absl::Status Failed(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Waits for the first byte of the agent: it is connected. Exits.
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
  // As the workers' locks: other users can write to /tmp.
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

absl::StatusOr<int> LockAgent(const AgentFiles& files) {
  const int fd = open(files.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Failed("cannot open " + files.lock);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EWOULDBLOCK)
    return absl::AlreadyExistsError("an agent of this user runs on this machine already");
  errno = error;
  return Failed("cannot lock " + files.lock);
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

absl::Status StartAgent(const ServerOptions& server) {
  std::vector<std::string> argv = {"scalelab", "agent", "--detach", "--server", server.address.text};
  if (!server.token_file.empty()) argv.insert(argv.end(), {"--token-file", server.token_file});
  std::vector<char*> pointers;
  for (std::string& word : argv) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Failed("cannot create a pipe");
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDERR_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/proc/self/exe", &files, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got; error == 0 && (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  errno = error;
  if (error != 0) return Failed("cannot start scalelab agent");
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(std::string(absl::StripAsciiWhitespace(text)));
}

}  // namespace scalelab::client
