#include "server/readers/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

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

absl::Status BeyondEnd(const std::string& name, int64_t offset) {
  return MakeError(absl::StatusCode::kOutOfRange, "OFFSET_BEYOND_END",
                   absl::StrCat(name, " has fewer than ", offset,
                                " bytes (the worker cuts outputs that are too long); read from a smaller "
                                "offset, or from a negative one, which counts from the end"));
}

// Opens a regular file of the directory. Returns its descriptor.
absl::StatusOr<int> Open(const std::string& directory, const std::string& name) {
  const std::string path = absl::StrCat(directory, "/", name);
  const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return CannotRead(errno == ENOENT ? path : directory, errno);
  // Without O_NONBLOCK, opening a FIFO blocks until a program writes to it.
  const int nonblocking = Planted(Bug::kFifoOpenedBlocking) ? 0 : O_NONBLOCK;
  const int fd = openat(folder, name.c_str(), O_RDONLY | nonblocking | O_NOFOLLOW | O_CLOEXEC);
  const int error = errno;
  close(folder);
  if (fd < 0) return CannotRead(path, error);
  struct stat found {};
  if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) return fd;
  close(fd);
  return Irregular(path);
}

}  // namespace

ReadPiece LocalPieces(std::string directory) {
  return [directory = std::move(directory)](const std::string& name,
                                            int64_t offset) -> absl::StatusOr<std::string> {
    const absl::StatusOr<int> fd = Open(directory, name);
    if (!fd.ok()) return fd.status();
    std::string data(kLogPiece, '\0');
    ssize_t got = -1;
    do {
      got = pread(*fd, data.data(), data.size(), offset);
    } while (got < 0 && errno == EINTR);
    const int error = errno;
    close(*fd);
    if (got < 0) return CannotRead(absl::StrCat(directory, "/", name), error);
    data.resize(static_cast<size_t>(got));
    return data;
  };
}

LogReader::LogReader(ReadPiece read, int rank, v1::ReadRunLogRequest::Stream which, int64_t offset)
    : read_(std::move(read)), offset_(offset), unchecked_(offset > 0) {
  if (which != v1::ReadRunLogRequest::STDERR)
    files_.emplace_back(v1::ReadRunLogRequest::STDOUT, absl::StrCat("rank-", rank, ".out"));
  if (which != v1::ReadRunLogRequest::STDOUT)
    files_.emplace_back(v1::ReadRunLogRequest::STDERR, absl::StrCat("rank-", rank, ".err"));
}

// An agent can only read pieces and does not return sizes. So the search for the end of the file reads at
// positions whose distances first grow and then shrink.
absl::StatusOr<int64_t> LogReader::FindEnd(const std::string& name) const {
  constexpr auto kPiece = static_cast<int64_t>(kLogPiece);
  int64_t known = 0;  // the file has at least as many bytes
  bool growing = true;
  for (int64_t step = kPiece; step >= kPiece; step = growing ? step * 2 : step / 2) {
    const absl::StatusOr<std::string> piece = read_(name, known + step);
    if (!piece.ok()) return piece.status();
    if (piece->empty()) {
      growing = false;
      continue;
    }
    known += step;
    if (static_cast<int64_t>(piece->size()) < kPiece) return known + static_cast<int64_t>(piece->size());
  }
  const absl::StatusOr<std::string> last = read_(name, known);
  if (!last.ok()) return last.status();
  return known + static_cast<int64_t>(last->size());
}

absl::StatusOr<bool> LogReader::Next(v1::ReadRunLogResponse* response) {
  for (; at_ < files_.size(); ++at_, offset_ = 0) {
    if (offset_ < 0) {
      const absl::StatusOr<int64_t> end = FindEnd(files_[at_].second);
      if (!end.ok()) return end.status();
      offset_ = std::max<int64_t>(0, *end + offset_);
    }
    // An agent does not return sizes, so the byte before the position shows that the file is long enough.
    const bool check = std::exchange(unchecked_, false);
    absl::StatusOr<std::string> data = read_(files_[at_].second, check ? offset_ - 1 : offset_);
    if (absl::IsNotFound(data.status()) && files_.size() > 1) continue;
    if (!data.ok()) return data.status();
    if (check && data->empty()) return BeyondEnd(files_[at_].second, offset_);
    if (check) data->erase(0, 1);
    if (data->empty()) continue;
    response->set_offset(offset_);
    offset_ += static_cast<int64_t>(data->size());
    response->set_data(*std::move(data));
    response->set_stream(files_[at_].first);
    return true;
  }
  return false;
}

}  // namespace scalelab::server
