#include "client/export/python_export.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/session/interrupt.h"

namespace scalelab::client {
namespace {

// Returns how python3 ended, as waitpid does; nothing if it did not start. A process with gRPC threads must
// not fork. The process stays in the process group of this one, so that Ctrl-C reaches both.
std::optional<int> RunPython(std::vector<std::string> arguments, bool silent) {
  arguments.insert(arguments.begin(), "python3");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (silent) {
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  }
  // Without the mask, a signal that arrives before PassInterruptsTo would end this process only.
  sigset_t interrupts, before;
  sigemptyset(&interrupts);
  sigaddset(&interrupts, SIGINT);
  sigaddset(&interrupts, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &interrupts, &before);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &before);
  posix_spawnattr_setsigdefault(&attributes, &interrupts);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  if (error == 0) PassInterruptsTo(pid);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return std::nullopt;
  siginfo_t ended = {};
  while (waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  PassInterruptsTo(0);
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return std::nullopt;
  return status;
}

absl::StatusOr<ExitCode> ExitCodeOfPython(int status) {
  if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  if (number == SIGINT) return ExitCode::kInterrupted;
  if (number == SIGTERM) return ExitCode::kTerminated;
  return absl::UnknownError(absl::StrCat(
      "python3, which writes this format, was ended by signal ", number, " (", strsignal(number), ")",
      number == SIGKILL ? "; if the machine has too little memory, use --format csv, json or sqlite" : ""));
}

}  // namespace

absl::StatusOr<ExitCode> RunPythonClient(const std::vector<std::string>& arguments) {
  const std::optional<int> probe = RunPython({"-c", "import scalelab.__main__"}, /*silent=*/true);
  if (probe && WIFSIGNALED(*probe)) return ExitCodeOfPython(*probe);
  if (probe != 0) return absl::FailedPreconditionError("python3 cannot import scalelab");
  std::vector<std::string> all = {"-m", "scalelab"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const std::optional<int> status = RunPython(all, /*silent=*/false);
  if (!status) return absl::UnknownError("python3 cannot be started");
  return ExitCodeOfPython(*status);
}

}  // namespace scalelab::client
