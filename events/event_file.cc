#include "events/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "files/regular_file.h"

namespace scalelab {
namespace {

constexpr size_t kReadBudget = 8 << 20;  // bytes read by one call of Read
// Limit for one line; holes of a sparse file do not count.
constexpr int64_t kMaxSkippedBytes = int64_t{4} << 30;
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50), kLongestRetry = absl::Seconds(5);

}  // namespace

EventFile::EventFile(std::string path, absl::Duration unreadable)
    : path_(std::move(path)), unreadable_(unreadable) {}

EventFile::~EventFile() { Close(); }

void EventFile::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void EventFile::Seek(Place place) {
  place_ = place;
  skip_from_ = 0;
  skipped_ = 0;
}

void EventFile::Finish(absl::Duration now) {
  finishing_ = true;
  finished_at_ = now;
  retry_at_ = finished_at_;
}

void EventFile::Abort(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
  ended_ = true;
  Close();
}

bool EventFile::AtEnd() const { return ended_ || (finishing_ && size_ >= 0 && place_.position >= size_); }

void EventFile::SetProblem(const std::string& what) {
  if (problem_.empty()) problem_ = absl::StrCat(path_.substr(path_.rfind('/') + 1), " ", what);
}

// Handles an error that may be temporary. The file is opened again, because ESTALE concerns the descriptor.
void EventFile::OnError(absl::string_view error, absl::Duration now) {
  Close();
  if (error_.empty()) failing_since_ = now;
  error_ = std::string(error);
  RetryLater(now);
  if (!finishing_ || now - std::max(finished_at_, failing_since_) < unreadable_) return;
  SetProblem(absl::StrCat("cannot be read: ", error));
  ended_ = true;
}

void EventFile::RetryLater(absl::Duration now) {
  retry_at_ = now + std::min(kLongestRetry, kFirstRetry * (1 << std::min(failures_++, 10)));
}

// Returns whether the file is open and, after Finish, its size is known.
bool EventFile::Open(absl::Duration now) {
  if (ended_ || now < retry_at_) return false;
  if (fd_ >= 0) return FindSize(now);
  const absl::StatusOr<int> fd = OpenRegularFile(path_, O_RDONLY);
  if (fd.ok()) {
    fd_ = *fd;
    return FindSize(now);
  }
  if (absl::IsNotFound(fd.status())) {
    if (!finishing_) return false;
    if (size_ < 0 ? place_.position > 0 : place_.position < size_)
      SetProblem("was deleted while it was read; events may be missing");
    ended_ = true;
    return false;
  }
  if (!absl::IsFailedPrecondition(fd.status())) {
    OnError(fd.status().message(), now);
    return false;
  }
  // Until Finish, a regular file may still replace this one, so try again later.
  if (finishing_) {
    SetProblem(std::string(fd.status().message()));
    ended_ = true;
  }
  RetryLater(now);
  return false;
}

// After Finish, determines the end of the file from its size, and checks that it is still the same file.
bool EventFile::FindSize(absl::Duration now) {
  if (!finishing_ || size_ >= 0) return true;
  struct stat open_file {};
  struct stat named_file {};
  if (fstat(fd_, &open_file) != 0) {
    OnError(strerror(errno), now);
    return false;
  }
  size_ = open_file.st_size;
  CheckSize(size_);
  const bool same = lstat(path_.c_str(), &named_file) != 0 ||
                    (named_file.st_dev == open_file.st_dev && named_file.st_ino == open_file.st_ino);
  if (!same) SetProblem("was replaced while it was read; the events of the new file are missing");
  return true;
}

// Checks whether the file, whose size is now `size`, has become shorter.
void EventFile::CheckSize(int64_t size) {
  if (size >= std::max(place_.position, size_)) return;
  SetProblem("was truncated while it was read; events may be missing");
  if (size_ >= 0) size_ = std::min(size_, std::max(size, place_.position));
}

// Returns the number of bytes read; 0 at the file's end; -1 after an error, which has been handled.
int64_t EventFile::ReadAt(int64_t position, std::vector<char>& buffer, absl::Duration now) {
  size_t size = buffer.size();
  if (size_ >= 0)
    size = static_cast<size_t>(std::clamp<int64_t>(size_ - position, 0, static_cast<int64_t>(size)));
  if (size == 0) return 0;
  ssize_t got;
  do got = pread(fd_, buffer.data(), size, position);
  while (got < 0 && errno == EINTR);
  if (got >= 0) {
    failures_ = 0;
    error_.clear();
  } else {
    OnError(strerror(errno), now);
  }
  return got;
}

bool EventFile::Read(BatchBuilder& batch, size_t limit, std::vector<char>& buffer, absl::Duration now) {
  if (!Open(now)) return false;
  size_t budget = kReadBudget;
  while (batch.bytes() < limit) {
    if (budget == 0) return true;
    if (skip_from_ > 0) {
      if (SkipLongLine(batch, buffer, &budget, now)) continue;
      return budget == 0;
    }
    const int64_t got = ReadAt(place_.position, buffer, now);
    struct stat status {};
    if (got == 0 && fstat(fd_, &status) == 0) CheckSize(status.st_size);
    if (got <= 0) return false;
    budget -= std::min(budget, static_cast<size_t>(got));
    const char* at = buffer.data();
    const char* const end = at + got;
    while (batch.bytes() < limit) {
      const char* line_end = static_cast<const char*>(memchr(at, '\n', end - at));
      if (line_end == nullptr) break;
      batch.Add({at, static_cast<size_t>(line_end - at)}, place_.line++);
      place_.position += line_end + 1 - at;
      at = line_end + 1;
    }
    if (at != buffer.data()) continue;
    if (static_cast<size_t>(got) > kMaxLineBytes) {
      skip_from_ = place_.position + got;
    } else if (size_ >= 0 && place_.position + got >= size_) {
      batch.AddMalformed(place_.line++, "cut off: the file ends before the line does");
      place_.position += got;
    } else {
      return false;
    }
  }
  return false;
}

// A hole of a sparse file contains no line feed.
void EventFile::SkipHole() {
  struct stat status {};
  const off_t data = lseek(fd_, skip_from_, SEEK_DATA);
  if (data >= 0) {
    skip_from_ = data;
  } else if (errno == ENXIO && fstat(fd_, &status) == 0) {  // the rest of the file is a hole
    skip_from_ = std::max<int64_t>(skip_from_, size_ >= 0 ? size_ : status.st_size);
  }
}

// Searches for the end of a line that is too long. Returns whether it was found, or the file's end after Finish.
bool EventFile::SkipLongLine(BatchBuilder& batch, std::vector<char>& buffer, size_t* budget,
                             absl::Duration now) {
  while (*budget > 0) {
    SkipHole();
    const int64_t got = ReadAt(skip_from_, buffer, now);
    if (got < 0 || (got == 0 && size_ < 0)) return false;
    const void* line_end = got > 0 ? memchr(buffer.data(), '\n', static_cast<size_t>(got)) : nullptr;
    *budget -= std::min(*budget, static_cast<size_t>(got));
    skipped_ += got;
    if (got > 0 && line_end == nullptr) {
      skip_from_ += got;
      if (skipped_ < kMaxSkippedBytes) continue;
      SetProblem("has a line longer than 4 GiB; the events after it are missing");
      size_ = place_.position;
      return false;
    }
    batch.AddMalformed(place_.line++, "longer than 64 KiB");
    Seek({skip_from_, place_.line});
    if (line_end != nullptr) place_.position += static_cast<const char*>(line_end) - buffer.data() + 1;
    return true;
  }
  return false;
}

}  // namespace scalelab
