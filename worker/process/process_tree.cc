#include "worker/process/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <unordered_map>
#include <utility>

namespace scalelab::worker {
namespace {

// Reads a file of /proc, about `limit` bytes at most. Sets `*error` to the number of an error of open(2) or
// read(2), else to 0.
std::string ReadProc(const char* path, int* error = nullptr, size_t limit = 1 << 20) {
  std::string text;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (error != nullptr) *error = fd < 0 ? errno : 0;
  if (fd < 0) return text;
  char buffer[4096];
  ssize_t got = 0;
  while (text.size() < limit && (got = read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, got);
  if (error != nullptr && got < 0) *error = errno;
  close(fd);
  return text;
}

// Returns false if all threads of the process have ended.
bool ReadProcess(pid_t pid, ProcessInfo* info, int* error = nullptr) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const std::string stat = ReadProc(path, error);
  // The command name in parentheses may contain ')' and spaces, so the fields start after the last ')'.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return false;
  char state = 0;
  int parent = 0, session = 0, threads = 0;
  unsigned long long start = 0;
  if (sscanf(stat.c_str() + name_end + 1,
             " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu", &state, &parent,
             &session, &threads, &start) != 5) {
    return false;
  }
  *info = {pid, parent, session, start};
  // The state is that of the main thread, which may end before the others.
  return state != 'X' && (state != 'Z' || threads > 1);
}

}  // namespace

std::vector<ProcessInfo> DescendantsOf(pid_t root) {
  std::unordered_multimap<pid_t, ProcessInfo> by_parent;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return {};
  while (const dirent* entry = readdir(proc)) {
    const int pid = atoi(entry->d_name);
    ProcessInfo info;
    if (pid > 0 && ReadProcess(pid, &info)) by_parent.emplace(info.parent, info);
  }
  closedir(proc);
  std::vector<ProcessInfo> found;
  std::vector<pid_t> open{root};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    auto [begin, end] = by_parent.equal_range(parent);
    for (auto it = begin; it != end; ++it) {
      found.push_back(it->second);
      open.push_back(it->second.pid);
    }
  }
  return found;
}

bool ReadOwnChildren(std::vector<pid_t>* children) {
  const int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  close(fd);
  const std::string text = ReadProc("/proc/thread-self/children");
  children->clear();
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end;
    const long pid = strtol(at, &end, 10);
    if (end == at) break;
    children->push_back(static_cast<pid_t>(pid));
    at = end;
  }
  return true;
}

bool HasEnvironment(pid_t pid, const std::string& entry, int* error) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  const std::string environment = ReadProc(path, error);
  for (size_t at = 0; at < environment.size();) {
    const size_t length = strnlen(environment.data() + at, environment.size() - at);
    if (environment.compare(at, length, entry) == 0) return true;
    at += length + 1;
  }
  return false;
}

std::optional<std::vector<ProcessInfo>> ProcessesWithEnvironment(const std::string& entry) {
  std::vector<ProcessInfo> found;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return std::nullopt;
  bool complete = true;
  while (true) {
    errno = 0;
    const dirent* directory = readdir(proc);
    if (directory == nullptr) break;
    const int pid = atoi(directory->d_name);
    int error = 0;
    ProcessInfo info;
    if (pid > 0 && HasEnvironment(pid, entry, &error) && ReadProcess(pid, &info, &error))
      found.push_back(info);
    complete = complete && error != EMFILE && error != ENFILE && error != ENOMEM;
  }
  complete = complete && errno == 0;
  closedir(proc);
  return complete ? std::optional(std::move(found)) : std::nullopt;
}

int OpenPidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

void Signal(const ProcessInfo& process, int signal) {
  const int fd = OpenPidfd(process.pid);
  if (fd < 0 && errno == ESRCH) return;
  ProcessInfo now;
  const bool same = ReadProcess(process.pid, &now) && now.start_time == process.start_time;
  if (same && fd < 0) kill(process.pid, signal);  // Linux before 5.3, or a filter of system calls
  if (same && fd >= 0) syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0);
  if (fd >= 0) close(fd);
}

void KillAllDescendants() {
  // This process is a subreaper, so it adopts and reaps every killed process. The next walk finds processes
  // that were forked in the meantime.
  for (;;) {
    for (const ProcessInfo& process : DescendantsOf(getpid())) Signal(process, SIGKILL);
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

}  // namespace scalelab::worker
