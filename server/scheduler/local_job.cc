#include "server/scheduler/local_job.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {  // the header of glibc 2.36 forgets to say so
#include <sys/pidfd.h>
}

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace scalelab::server {
namespace {

using nlohmann::json;
using State = JobStatus::State;

struct StateName {
  State state;
  const char* name;
};
// States that the local scheduler writes down.
constexpr StateName kStateNames[] = {
    {State::kRunning, "running"},     {State::kCompleted, "completed"}, {State::kFailed, "failed"},
    {State::kCancelled, "cancelled"}, {State::kTimeout, "timeout"},     {State::kNodeFail, "node_fail"},
    {State::kBootFail, "boot_fail"},
};

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::Status WriteJobRecord(const std::string& directory, const JobRecord& record) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("make", directory);
  json document = {
      {"slots", record.slots}, {"gpus", record.gpus}, {"boot_id", record.boot_id}, {"reason", record.reason}};
  if (record.deadline != absl::InfiniteFuture()) document["deadline"] = absl::ToUnixMicros(record.deadline);
  for (const StateName& known : kStateNames) {
    if (known.state == record.state) document["state"] = known.name;
  }
  const std::string file = directory + "/job.json", part = file + ".part";
  std::ofstream stream(part, std::ios::trunc);
  stream << document.dump(2) << "\n";
  stream.close();
  if (!stream || rename(part.c_str(), file.c_str()) != 0) return SystemError("write", file);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<JobRecord>> ReadJobRecord(const std::string& directory) {
  const std::string file = directory + "/job.json";
  if (access(file.c_str(), R_OK) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return SystemError("read", file);
  }
  std::ifstream stream(file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) return SystemError("read", file);
  JobRecord record;
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return record;
  try {
    record.slots = document.value("slots", record.slots);
    record.gpus = document.value("gpus", record.gpus);
    record.boot_id = document.value("boot_id", "");
    record.reason = document.value("reason", "");
    if (document.contains("deadline"))
      record.deadline = absl::FromUnixMicros(document["deadline"].get<int64_t>());
    const std::string state = document.value("state", "running");
    for (const StateName& known : kStateNames) {
      if (known.name == state) record.state = known.state;
    }
  } catch (const json::exception&) {  // a key of another type: as good as unreadable
    return JobRecord{};
  }
  return record;
}

std::string BootId() {
  std::ifstream stream("/proc/sys/kernel/random/boot_id");
  std::string id;
  stream >> id;
  return id;
}

absl::StatusOr<LockView> LookAtLock(const std::string& directory) {
  const std::string file = directory + "/lock";
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return LockView{};
    return SystemError("open", file);
  }
  LockView view;
  view.held = flock(fd, LOCK_EX | LOCK_NB) != 0;
  const int error = errno;
  char text[32] = {};
  const ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
  close(fd);  // lets go of the lock
  errno = error;
  if (view.held && error != EWOULDBLOCK) return SystemError("lock", file);
  int pid = 0;
  if (length > 0 && absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &pid) && pid > 0) view.pid = pid;
  return view;
}

int OpenWorker(const std::string& directory, pid_t pid) {
  struct stat lock {};
  if (pid <= 0 || stat((directory + "/lock").c_str(), &lock) != 0) return -1;
  // First the pidfd, then the look: what is seen now belongs to the process the pidfd stands for, or it is
  // gone.
  const int pidfd = pidfd_open(pid, 0);
  if (pidfd < 0) return -1;
  const std::string fds = absl::StrCat("/proc/", pid, "/fd/");
  bool has_lock = false;
  if (DIR* list = opendir(fds.c_str())) {
    while (const dirent* entry = readdir(list)) {
      struct stat found {};
      if (stat((fds + entry->d_name).c_str(), &found) == 0 && found.st_dev == lock.st_dev &&
          found.st_ino == lock.st_ino) {
        has_lock = true;
        break;
      }
    }
    closedir(list);
  }
  if (has_lock) return pidfd;
  close(pidfd);
  return -1;
}

absl::StatusOr<pid_t> StartWorker(const std::string& directory, const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment) {
  const std::string log = directory + "/worker.log";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  // A library may have opened something without close-on-exec; the database's lock must not live on in a
  // worker.
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0].c_str(), &files, &attributes, Pointers(argv).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot start ", argv[0], " with output to ", log, ": ", std::strerror(error)));
  }
  return pid;
}

}  // namespace scalelab::server
