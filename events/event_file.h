// Reads the complete lines of one rank's event file, which a training program may truncate, replace or make
// unreadable at any time.
//
// A read returns soon, unless the filesystem blocks: it does not wait for a FIFO, and reads a bounded number of bytes.
// Errors of the filesystem (EIO, ESTALE) are retried with backoff. After Finish the file has an end, whatever is written
// later. `now` is the time of a clock that is never set back.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "events/event_line.h"

namespace scalelab {

class EventFile {
 public:
  // A place in the file: the byte and the number of the line that begins there.
  struct Place {
    int64_t position = 0;
    int64_t line = 0;
    bool operator==(const Place&) const = default;
  };

  // The file may appear later. After Finish, reads that fail are retried for `unreadable`.
  EventFile(std::string path, absl::Duration unreadable);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Adds complete lines to `batch` until it has `limit` bytes, the file ends, or this call has read 8 MiB.
  // Returns true in the last case: the caller should then call Read again. A line longer than kMaxLineBytes
  // is added as malformed.
  bool Read(BatchBuilder& batch, size_t limit, std::vector<char>& buffer, absl::Duration now);
  // Makes the next Read start at `place`.
  void Seek(Place place);
  // Call it when no process writes to the file any more. The present content of the file is still read; an
  // incomplete last line is added as malformed.
  void Finish(absl::Duration now);
  // Stops reading, and stores the reason.
  void Abort(std::string problem);

  // The place after the last line that was read.
  Place place() const { return place_; }
  // Returns whether Finish was called and everything has been read, or nothing more can be read.
  bool AtEnd() const;
  // The defect of the file because of which events may be missing, for example "events-0.jsonl is a FIFO, not
  // a regular file". Empty if there is none.
  const std::string& problem() const { return problem_; }
  // The error after which a later Read will try again. Empty if the last one succeeded.
  const std::string& error() const { return error_; }

 private:
  bool Open(absl::Duration now);
  void Close();
  bool FindSize(absl::Duration now);
  void CheckSize(int64_t size);
  void OnError(absl::string_view error, absl::Duration now);
  void RetryLater(absl::Duration now);
  int64_t ReadAt(int64_t position, std::vector<char>& buffer, absl::Duration now);
  void SkipHole();
  bool SkipLongLine(BatchBuilder& batch, std::vector<char>& buffer, size_t* budget, absl::Duration now);
  void SetProblem(const std::string& what);

  const std::string path_;
  const absl::Duration unreadable_;
  int fd_ = -1;
  Place place_;
  int64_t skip_from_ = 0;   // > 0: a line is too long; the search for its end continues at this position
  int64_t skipped_ = 0;     // bytes of that line that were read
  bool finishing_ = false;  // Finish was called
  bool ended_ = false;      // nothing more is read
  int64_t size_ = -1;       // reading ends at this position; -1: the end is not known yet
  int failures_ = 0;        // number of failures since the last successful call
  absl::Duration retry_at_ = -absl::InfiniteDuration();
  absl::Duration finished_at_;
  absl::Duration failing_since_;  // the first error since the last successful read
  std::string problem_, error_;
};

}  // namespace scalelab
