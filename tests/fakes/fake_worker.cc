// A fake scalelab-worker for tests of the local scheduler: it takes the lock named by --lock, writes its
// process id into the lock file, reports, and waits. SIGTERM ends it with status 0, SIGUSR1 with 3.
//
// $FAKE_WORKER selects another behaviour:
//   no-lock        exits with status 4 before it takes the lock
//   stubborn       ignores SIGTERM
//   lingering      a child keeps the lock after the worker's end, until SIGUSR2 is sent to it
//
// $FAKE_WORKER_REPORT names a FIFO: the worker writes one line "<pid> <child pid or 0> <secret> <cuda
// devices>" to it once it holds the lock.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? "-" : value;
}

// Returns the first line of standard input; "-" if there is none.
std::string InputLine() {
  std::string line;
  char c = 0;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, 0) > 0 && read(STDIN_FILENO, &c, 1) == 1 && c != '\n') line += c;
  return line.empty() ? "-" : line;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(120);                 // ends the process even if the test crashes
  prctl(PR_SET_DUMPABLE, 0);  // as the real worker: hides /proc/<pid>/fd from the scheduler
  const std::string mode = Variable("FAKE_WORKER");
  if (mode == "no-lock") return 4;
  std::string lock;
  for (int i = 1; i < argc; ++i) {
    std::printf("%s%c", argv[i], i + 1 < argc ? ' ' : '\n');
    if (std::strcmp(argv[i], "--lock") == 0 && i + 1 < argc) lock = argv[i + 1];
  }
  std::fflush(stdout);
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) return 5;
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) return 5;
  pid_t child = 0;
  if (mode == "lingering") {
    child = fork();
    if (child == 0) {
      alarm(120);
      int signal = 0;
      do sigwait(&signals, &signal);
      while (signal != SIGUSR2);
      return 0;
    }
  }
  std::FILE* report = std::fopen(Variable("FAKE_WORKER_REPORT").c_str(), "w");
  if (report == nullptr) return 6;
  std::fprintf(report, "%d %d %s %s\n", getpid(), child, InputLine().c_str(),
               Variable("CUDA_VISIBLE_DEVICES").c_str());
  std::fclose(report);
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (signal == SIGTERM && mode != "stubborn") return 0;
    if (signal == SIGUSR1) return 3;
  }
}
