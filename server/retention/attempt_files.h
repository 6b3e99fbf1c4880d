// Removes files of attempts. Programs under training can write to the directory of their attempt, so that its entries are
// not trusted: no link is followed, and nothing outside the directory of runs is removed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::server {

// What was removed, or would be.
struct FilesRemoved {
  int64_t directories = 0;  // of attempts
  int64_t files = 0;
  int64_t bytes = 0;  // sizes of regular files with one name
  // Directories of attempts that were left alone, and why the last one was.
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

  // Removes the files of one attempt, or with `dry_run` only counts them, and adds to `removed`. `directory` is the path
  // that the database has. Leaves the attempt alone, and records why, if the path is not RUNS/STUDY/RUN/TOKEN of these
  // numbers and this token, or if a part of it is a link, is on another filesystem or belongs to another user. Does
  // nothing if there is no such directory. Returns an error of the filesystem; a later call continues.
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
