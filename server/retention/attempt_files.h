// Removes files of attempts. Training programs can write to the directory of their attempt, so its entries
// are not trusted: links are not followed, and nothing outside the directory of runs is removed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::server {

// The files that a call has removed, or would remove.
struct FilesRemoved {
  int64_t directories = 0;  // number of attempts whose files were removed
  int64_t files = 0;
  int64_t bytes = 0;  // sum of the sizes of regular files with one hard link
  // Number of directories of attempts that were left alone, and the reason for the last one.
  int64_t left = 0;
  std::string why_left;
};

enum class FilesOf { kLogs, kEverything };

// The directory of runs. All calls block when the filesystem blocks. Not thread-safe.
class AttemptFiles {
 public:
  static absl::StatusOr<AttemptFiles> Open(const std::string& runs_dir);
  AttemptFiles(AttemptFiles&& other) noexcept;
  AttemptFiles& operator=(AttemptFiles&&) = delete;
  ~AttemptFiles();

  // Removes the files of one attempt and adds them to `removed`. With `dry_run`, only counts the files.
  // `directory` is the path in the database. Leaves the attempt alone and records the reason if the path is
  // not RUNS/STUDY/RUN/TOKEN with these ids and this token, or if a component of the path is a link, is on
  // another filesystem or belongs to another user. Does nothing if the directory does not exist. Returns
  // errors of the filesystem; the caller may call Remove again to continue.
  absl::Status Remove(const std::string& directory, int64_t study_id, int64_t run_id,
                      const std::string& token, FilesOf what, bool dry_run, FilesRemoved& removed);

 private:
  AttemptFiles(std::string path, int fd, uint64_t device)
      : path_(std::move(path)), fd_(fd), device_(device) {}
  const std::string path_;
  int fd_;
  const uint64_t device_;
};

}  // namespace scalelab::server
