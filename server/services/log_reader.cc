#include "server/services/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace scalelab::server {
namespace {

constexpr size_t kPiece = 64 * 1024;

absl::Status Irregular(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   " is not a regular file (a program has replaced it), and is not read; look at it on the "
                   "machine itself"));
}

absl::Status CannotRead(const std::string& path, int error) {
  if (error == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat("there is no ", path, "; check that the attempt has this rank and has started"));
  }
  if (error == ELOOP || error == ENOTDIR) return Irregular(path);
  return absl::UnavailableError(absl::StrCat("cannot read ", path, ": ", std::strerror(error)));
}

}  // namespace

LogReader::LogReader(std::string directory, int rank, v1::ReadRunLogRequest::Stream which)
    : directory_(std::move(directory)) {
  if (which != v1::ReadRunLogRequest::STDERR)
    files_.emplace_back(v1::ReadRunLogRequest::STDOUT, absl::StrCat("rank-", rank, ".out"));
  if (which != v1::ReadRunLogRequest::STDOUT)
    files_.emplace_back(v1::ReadRunLogRequest::STDERR, absl::StrCat("rank-", rank, ".err"));
}

LogReader::~LogReader() { Close(); }

void LogReader::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status LogReader::Open(const std::string& name) {
  const std::string path = absl::StrCat(directory_, "/", name);
  const int directory = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return CannotRead(errno == ENOENT ? path : directory_, errno);
  // Without O_NONBLOCK, opening a FIFO blocks until a program writes to it.
  fd_ = openat(directory, name.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  const int error = errno;
  close(directory);
  if (fd_ < 0) return CannotRead(path, error);
  struct stat found {};
  if (fstat(fd_, &found) == 0 && S_ISREG(found.st_mode)) return absl::OkStatus();
  Close();
  return Irregular(path);
}

absl::StatusOr<bool> LogReader::Next(v1::ReadRunLogResponse* response) {
  for (; at_ < files_.size(); ++at_, Close()) {
    if (fd_ < 0) {
      const absl::Status opened = Open(files_[at_].second);
      if (absl::IsNotFound(opened) && files_.size() > 1) continue;
      if (!opened.ok()) return opened;
    }
    std::string& data = *response->mutable_data();
    data.resize(kPiece);
    ssize_t got = -1;
    do {
      got = read(fd_, data.data(), data.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) return CannotRead(absl::StrCat(directory_, "/", files_[at_].second), errno);
    data.resize(static_cast<size_t>(got));
    response->set_stream(files_[at_].first);
    if (got > 0) return true;
  }
  return false;
}

}  // namespace scalelab::server
