#include "worker/process/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace scalelab::worker {
namespace {

constexpr size_t kStackBytes = 256 << 10;

// Everything the child needs, prepared by the parent. Until exec, both share one address space.
struct ChildPlan {
  pid_t parent;
  const char* program;
  char* const* argv;
  char* const* environment;
  const char* directory;
  const char* output;
  const char* error;
  const cpu_set_t* cpus;  // null: the parent's cores
  // The result.
  const char* failed = nullptr;  // the file or directory that caused the failure
  int failure = 0;               // errno
};

int Fail(ChildPlan* plan, const char* what) {
  plan->failed = what;
  plan->failure = errno;
  return 127;
}

// Does not wait for the reader of a FIFO, because the caller could wait for ever.
__attribute__((no_sanitize("address", "undefined", "thread"))) int OpenOutput(const char* path) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

// Runs in the child while the parent is suspended. Makes only system calls: allocates no memory and
// takes no lock.
__attribute__((no_sanitize("address", "undefined", "thread"))) int RunChild(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan->parent) _exit(127);  // the parent died before prctl
  setsid();
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGUSR1, SIGCHLD})
    sigaction(signal, &by_default, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (plan->cpus != nullptr && sched_setaffinity(0, sizeof *plan->cpus, plan->cpus) != 0) {
    return Fail(plan, "the cores it is bound to");
  }
  if (*plan->directory != '\0' && chdir(plan->directory) != 0) return Fail(plan, plan->directory);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0 || dup2(null, 0) < 0) return Fail(plan, "/dev/null");
  const char* const files[] = {plan->output, plan->error};
  for (int i = 0; i < 2; ++i) {
    int fd = null;
    if (*files[i] != '\0') fd = OpenOutput(files[i]);
    if (fd < 0 || dup2(fd, i + 1) < 0) return Fail(plan, files[i]);
  }
  execve(plan->program, plan->argv, plan->environment);
  return Fail(plan, plan->program);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Searches argv[0] in the command's own PATH. Returns argv[0] itself if it is not found, so that exec
// reports the reason.
std::string ProgramOf(const Command& command) {
  const std::string& name = command.argv[0];
  if (name.find('/') != std::string::npos) return name;
  std::string path = "/usr/local/bin:/usr/bin:/bin";
  for (const std::string& entry : command.environment) {
    if (entry.rfind("PATH=", 0) == 0) path = entry.substr(5);
  }
  for (size_t begin = 0; begin <= path.size();) {
    size_t end = path.find(':', begin);
    if (end == std::string::npos) end = path.size();
    const std::string program = path.substr(begin, end - begin) + "/" + name;
    if (end > begin && access(program.c_str(), X_OK) == 0) return program;
    begin = end + 1;
  }
  return name;
}

}  // namespace

pid_t Spawn(const Command& command, std::string* error, bool* of_output) {
  *of_output = false;
  if (command.argv.empty() || command.argv[0].empty()) {
    *error = "There is no program to start: the command is empty.";
    return -1;
  }
  static void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  const std::string program = ProgramOf(command);
  const std::vector<char*> argv = Pointers(command.argv);
  const std::vector<char*> environment = Pointers(command.environment);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : command.cpus) CPU_SET(cpu, &cpus);
  ChildPlan plan{getpid(),
                 program.c_str(),
                 argv.data(),
                 environment.data(),
                 command.directory.c_str(),
                 command.output.c_str(),
                 command.error.c_str(),
                 command.cpus.empty() ? nullptr : &cpus};
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  // Like vfork, this copies no page tables, and the parent sleeps until the child has executed the program or
  // has failed. Then `plan` holds the result.
  const pid_t pid =
      clone(RunChild, static_cast<char*>(stack) + kStackBytes, CLONE_VM | CLONE_VFORK | SIGCHLD, &plan);
  const int clone_error = errno;
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    *error = std::string("Could not start '") + program + "': " + strerror(clone_error) + ".";
    return -1;
  }
  if (plan.failed != nullptr) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    *error = std::string("Could not start '") + program + "'";
    *of_output = plan.failed == plan.output || plan.failed == plan.error;
    if (plan.failed != program) *error += std::string(", because of '") + plan.failed + "'";
    *error += std::string(": ") + strerror(plan.failure) + ".";
    return -1;
  }
  return pid;
}

}  // namespace scalelab::worker
