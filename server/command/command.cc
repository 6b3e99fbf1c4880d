#include "server/command/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {  // missing in the header of glibc 2.36
#include <sys/pidfd.h>
}

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace scalelab::server {
namespace {

// The limit has room for 100,000 lines of squeue. More output is an error.
constexpr size_t kMaxOutput = 16 << 20;

absl::Status SystemError(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Makes a file in memory: unlike a pipe it needs no thread that feeds it, and raises no SIGPIPE.
absl::StatusOr<int> InputFile(const std::string& input) {
  const int fd = memfd_create("input", MFD_CLOEXEC);
  if (fd < 0) return SystemError("cannot create a file in memory");
  if (pwrite(fd, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size())) {
    close(fd);
    return SystemError("cannot write a file in memory");
  }
  return fd;
}

// Appends what can be read without blocking. Returns false at the end of the file.
bool Drain(int fd, std::string* text) {
  char buffer[64 << 10];
  while (text->size() <= kMaxOutput) {
    const ssize_t length = read(fd, buffer, sizeof buffer);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0) return errno == EAGAIN;
    if (length == 0) return false;
    text->append(buffer, length);
  }
  return true;
}

// Longer timeouts do not occur; it avoids an overflow of the clock.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

using SteadyTime = std::chrono::steady_clock::time_point;

// Reads output until the process ends (`pidfd` becomes readable), `cancel` becomes readable or `deadline`
// passes. Does not wait for children of the process that keep the output open.
void Follow(int pidfd, int out, int err, int cancel, SteadyTime deadline, CommandResult* result) {
  pollfd watch[] = {{pidfd, POLLIN, 0}, {out, POLLIN, 0}, {err, POLLIN, 0}, {cancel, POLLIN, 0}};
  std::string* texts[] = {nullptr, &result->out, &result->err};
  while (true) {
    const absl::Duration left =
        std::max(absl::FromChrono(deadline - std::chrono::steady_clock::now()), absl::ZeroDuration());
    const int ready = poll(watch, 4, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    const bool over = ready > 0 && watch[0].revents != 0;
    for (int i : {1, 2}) {
      if (watch[i].fd >= 0 && !Drain(watch[i].fd, texts[i])) watch[i].fd = -1;
    }
    result->truncated = result->out.size() > kMaxOutput || result->err.size() > kMaxOutput;
    if (over || result->truncated) return;
    const bool cancelled = ready > 0 && watch[3].revents != 0;
    if (cancelled || std::chrono::steady_clock::now() >= deadline) {
      result->timed_out = true;
      return;
    }
  }
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, options.in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, options.out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, options.err, STDERR_FILENO);
  // Close all other descriptors, because a library may have opened a file without close-on-exec, and because
  // a child must not inherit the lock of the database.
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, (options.new_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP) |
                                            POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, options.argv[0].c_str(), &files, &attributes,
                                 Pointers(options.argv).data(), Pointers(options.environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error == 0) return pid;
  return absl::FailedPreconditionError(
      absl::StrCat("cannot start ", options.argv[0], ": ", std::strerror(error)));
}

absl::StatusOr<CommandResult> RunCommand(const std::vector<std::string>& argv, const std::string& input,
                                         const std::vector<std::string>& environment, absl::Duration timeout,
                                         int cancel) {
  // The steady clock, because a wall clock that is set back would prolong the timeout.
  const SteadyTime deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(timeout, kLongest));
  std::vector<int> open;
  absl::Cleanup close_all = [&] {
    for (int fd : open) close(fd);
  };
  const absl::StatusOr<int> in = InputFile(input);
  if (!in.ok()) return in.status();
  open.push_back(*in);
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0) return SystemError("cannot create a pipe");
  open.insert(open.end(), out, out + 2);
  if (pipe2(err, O_CLOEXEC) != 0) return SystemError("cannot create a pipe");
  open.insert(open.end(), err, err + 2);
  for (int fd : {out[0], err[0]}) fcntl(fd, F_SETFL, O_NONBLOCK);

  const absl::StatusOr<pid_t> pid = Spawn({argv, environment, *in, out[1], err[1]});
  if (!pid.ok()) return pid.status();
  CommandResult result;
  const int pidfd = pidfd_open(*pid, 0);
  if (pidfd >= 0) {
    open.push_back(pidfd);
    Follow(pidfd, out[0], err[0], cancel, deadline, &result);
  }
  // Until the process is reaped, its id and that of its group cannot belong to another process.
  siginfo_t info{};
  kill(-*pid, SIGKILL);
  while (waitid(P_PID, *pid, &info, WEXITED) != 0 && errno == EINTR) {
  }
  if (pidfd < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot open a pidfd of ", argv[0]));
  if (info.si_code == CLD_EXITED) {
    result.exit_code = info.si_status;
  } else {
    result.signal = info.si_status;
  }
  return result;
}

std::string MissingProgram(const std::vector<std::string>& programs) {
  const char* path = std::getenv("PATH");
  const std::vector<std::string> directories =
      absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':', absl::SkipEmpty());
  for (const std::string& program : programs) {
    const bool found = std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
      return access(absl::StrCat(directory, "/", program).c_str(), X_OK) == 0;
    });
    if (!found) return program;
  }
  return "";
}

std::vector<std::string> CommandEnvironment() {
  static constexpr absl::string_view kNames[] = {
      "HOME",      "USER",      "LOGNAME",    "SHELL",      "PATH",        "LD_LIBRARY_PATH",
      "LANG",      "TZ",        "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX",
      "CUDA_HOME", "CUDA_PATH", "SLURM_CONF", "SLURM_JWT"};
  static constexpr absl::string_view kPrefixes[] = {"NCCL_", "OMPI_MCA_", "PMIX_MCA_", "UCX_",
                                                    "FI_",   "GLOO_",     "OMP_",      "MKL_"};
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view name =
        *std::vector<absl::string_view>(absl::StrSplit(*entry, absl::MaxSplits('=', 1))).begin();
    const auto starts = [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); };
    if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
        std::any_of(std::begin(kPrefixes), std::end(kPrefixes), starts)) {
      environment.emplace_back(*entry);
    }
  }
  environment.push_back("LC_ALL=C.UTF-8");  // the language of the messages that slurm_errors interprets
  return environment;
}

}  // namespace scalelab::server
