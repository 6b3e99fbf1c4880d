#include "server/scheduler/local_job.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {  // missing in the header of glibc 2.36
#include <sys/pidfd.h>
}

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "server/command/command.h"
#include "server/time/clock.h"

namespace scalelab::server {
namespace {

using nlohmann::json;
using State = JobStatus::State;

struct StateName {
  State state;
  const char* name;
};
// States that the local scheduler writes to job.json.
constexpr StateName kStateNames[] = {
    {State::kRunning, "running"},     {State::kCompleted, "completed"}, {State::kFailed, "failed"},
    {State::kCancelled, "cancelled"}, {State::kTimeout, "timeout"},     {State::kNodeFail, "node_fail"},
    {State::kBootFail, "boot_fail"},
};

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status WriteJobRecord(const std::string& directory, const JobRecord& record) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("create", directory);
  json document = {
      {"slots", record.slots}, {"gpus", record.gpus}, {"boot_id", record.boot_id}, {"reason", record.reason}};
  if (record.time_limit != absl::InfiniteDuration())
    document["time_limit"] = absl::ToInt64Microseconds(record.time_limit);
  if (record.deadline != absl::InfiniteDuration())
    document["deadline_monotonic"] = absl::ToInt64Microseconds(record.deadline);
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
    if (document.contains("time_limit"))
      record.time_limit = absl::Microseconds(document["time_limit"].get<int64_t>());
    if (document.contains("deadline_monotonic")) {
      record.deadline = absl::Microseconds(document["deadline_monotonic"].get<int64_t>());
    } else if (document.contains("deadline")) {
      // An earlier version wrote this file, and stored the deadline as a time of the wall clock.
      record.deadline = Clock::System().Steady() +
                        (absl::FromUnixMicros(document["deadline"].get<int64_t>()) - absl::Now());
    }
    const std::string state = document.value("state", "running");
    for (const StateName& known : kStateNames) {
      if (known.name == state) record.state = known.state;
    }
  } catch (const json::exception&) {  // a key has another type
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

std::string LockOf(const std::string& directory) { return directory + "/lock"; }

int OpenWorker(const std::string& directory, pid_t pid) {
  if (pid <= 0) return -1;
  // Open the pidfd first. If the process of the pidfd is still alive afterwards, /proc/<pid>
  // shows this process.
  const int pidfd = pidfd_open(pid, 0);
  if (pidfd < 0) return -1;
  // The list of open files cannot be read: a worker hides its memory, and with it /proc/<pid>/fd.
  std::ifstream stream(absl::StrCat("/proc/", pid, "/cmdline"));
  const std::string file = LockOf(directory);
  for (std::string argument; std::getline(stream, argument, '\0');) {
    if (argument == file) return pidfd;
  }
  close(pidfd);
  return -1;
}

absl::StatusOr<pid_t> StartWorker(const std::string& directory, const std::vector<std::string>& argv,
                                  const std::vector<std::string>& environment, const std::string& secret) {
  const std::string log = directory + "/worker.log";
  const std::string line = secret + "\n";
  int ends[2] = {-1, -1};  // of a pipe, which holds the line until the worker reads it
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("make", "a pipe for the worker");
  const int in = ends[0];
  absl::Cleanup close_in = [&] { close(in); };
  const ssize_t count = write(ends[1], line.data(), line.size());
  const int error = errno;
  close(ends[1]);
  errno = error;
  if (count != static_cast<ssize_t>(line.size())) return SystemError("write to", "the pipe of the worker");
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (out < 0) return SystemError("open", log);
  absl::Cleanup close_out = [&] { close(out); };
  return Spawn({argv, environment, in, out, out, /*new_session=*/true});
}

}  // namespace scalelab::server
