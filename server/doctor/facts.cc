#include "server/doctor/facts.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "db/sqlite/filesystem.h"
#include "files/lock_file.h"

namespace scalelab::server::doctor {
namespace {

constexpr absl::Duration kCommandTimeout = absl::Seconds(15);

std::string ClosestExisting(const std::string& path) {
  std::filesystem::path at = path;
  std::error_code error;
  while (!std::filesystem::exists(at, error) && at.has_parent_path() && at != at.parent_path())
    at = at.parent_path();
  return at.string();
}

// Writes a temporary file, and sets write_error and clock_offset.
void TryToWrite(DirectoryFacts& facts) {
  std::string name = facts.existing + "/.scalelab-doctor-XXXXXX";
  const int fd = mkostemp(name.data(), O_CLOEXEC);
  if (fd < 0) {
    facts.write_error = std::strerror(errno);
    return;
  }
  const absl::Cleanup remove = [&] {
    close(fd);
    unlink(name.c_str());
  };
  const absl::Time before = absl::Now();
  struct stat written {};
  if (write(fd, "x", 1) != 1 || fsync(fd) != 0 || fstat(fd, &written) != 0) {
    facts.write_error = std::strerror(errno);
    return;
  }
  const absl::Time stamp = absl::TimeFromTimespec(written.st_mtim), after = absl::Now();
  // The time stamp should be between `before` and `after`. The kernel rounds it down to a tick of its clock.
  if (stamp > after) facts.clock_offset = stamp - after;
  if (stamp < before - absl::Milliseconds(20)) facts.clock_offset = stamp - before;
}

}  // namespace

Run RunHere() {
  return [](const std::vector<std::string>& argv, const std::string& input) {
    return RunCommand(argv, input, CommandEnvironment(), kCommandTimeout);
  };
}

ClockFacts ReadClock() {
  timex clock{};
  const int state = adjtimex(&clock);
  if (state < 0) return {};
  return {true, state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0};
}

DirectoryFacts ReadDirectory(const std::string& path) {
  DirectoryFacts facts;
  facts.path = path;
  facts.existing = ClosestExisting(path);
  struct stat found {};
  if (stat(facts.existing.c_str(), &found) == 0) {
    facts.is_directory = S_ISDIR(found.st_mode);
    facts.owner = found.st_uid;
    facts.mode = found.st_mode & 07777;
  }
  struct statfs type {};
  if (statfs(facts.existing.c_str(), &type) == 0) facts.network = db::NetworkFilesystem(type.f_type);
  struct statvfs space {};
  if (statvfs(facts.existing.c_str(), &space) == 0) {
    facts.free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
    if (space.f_files > 0) facts.free_inodes = static_cast<int64_t>(space.f_favail);
  }
  if (facts.is_directory) TryToWrite(facts);
  return facts;
}

std::vector<FileFacts> ReadSecrets(const std::string& data_dir) {
  std::vector<FileFacts> secrets;
  std::error_code error;
  for (std::filesystem::directory_iterator it(data_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string extension = it->path().extension();
    const bool secret = extension == ".key" || extension == ".token" || it->path().filename() == "tls.pem";
    struct stat found {};
    if (!secret || stat(it->path().c_str(), &found) != 0) continue;
    secrets.push_back({it->path().string(), found.st_uid, found.st_mode & 07777});
  }
  std::sort(secrets.begin(), secrets.end(),
            [](const FileFacts& a, const FileFacts& b) { return a.path < b.path; });
  return secrets;
}

LimitFacts ReadLimits() {
  LimitFacts facts;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.files = limit.rlim_max;
  if (getrlimit(RLIMIT_NPROC, &limit) == 0) facts.processes = limit.rlim_cur;
  return facts;
}

ProgramFacts ReadProgram(const std::string& setting, const std::string& path) {
  ProgramFacts facts;
  facts.setting = setting;
  facts.path = path;
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    facts.error = std::strerror(errno);
    return facts;
  }
  if (!S_ISREG(found.st_mode)) {
    facts.error = "not a file";
    return facts;
  }
  if (access(path.c_str(), X_OK) != 0) facts.error = std::strerror(errno);
  std::error_code error;
  const std::filesystem::path program = std::filesystem::canonical(path, error);
  std::vector<std::filesystem::path> started = {program};
  if (absl::StartsWith(program.filename().string(), "sendmail")) {
    // Postfix and nullmailer pass the mail to one of these programs.
    for (const char* helper : {"postdrop", "nullmailer-queue"})
      started.push_back(program.parent_path() / helper);
  }
  for (const std::filesystem::path& each : started) {
    const bool exists = stat(each.c_str(), &found) == 0;
    if (exists && facts.privileged.empty() && (found.st_mode & (S_ISUID | S_ISGID)) != 0)
      facts.privileged = each.string();
  }
  return facts;
}

std::optional<bool> HasNoNewPrivileges(pid_t process) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "NoNewPrivs:")) return absl::EndsWith(line, "1");
  }
  return std::nullopt;
}

pid_t RunningServer(const std::string& data_dir) {
  const absl::StatusOr<LockHolder> holder = FindLockHolder(data_dir + "/scalelabd.lock");
  return holder.ok() && holder->held ? holder->pid : 0;
}

}  // namespace scalelab::server::doctor
