#include "client/export/python_export.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace scalelab::client {
namespace {

// Returns the exit status of python3; -1 if it did not start or was killed. A process with gRPC threads must not fork. The
// process stays in the process group of this one, so that Ctrl-C ends both.
int RunPython(std::vector<std::string> arguments, bool silent) {
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
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace

absl::StatusOr<ExitCode> RunPythonClient(const std::vector<std::string>& arguments) {
  if (RunPython({"-c", "import scalelab.__main__"}, /*silent=*/true) != 0)
    return absl::FailedPreconditionError("python3 cannot import scalelab");
  std::vector<std::string> all = {"-m", "scalelab"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const int status = RunPython(all, /*silent=*/false);
  return status < 0 ? ExitCode::kFailure : static_cast<ExitCode>(status);
}

}  // namespace scalelab::client
