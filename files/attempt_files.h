// Removes files of attempts. Training programs can write to the directory of their attempt, so its entries
// are not trusted: links are not followed, and nothing outside the directory of runs is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab {

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
  // another filesystem or belongs to another user. Does nothing if the directory does not exist. Removes the
  // directory of the run too if it is then empty, but not that of the study. Returns errors of the
  // filesystem, and CANCELLED if `over` returns true, which is called before each file to remove; the caller may
  // call Remove again to continue.
  absl::Status Remove(
      const std::string& directory, int64_t study_id, int64_t run_id, const std::string& token, FilesOf what,
      bool dry_run, FilesRemoved& removed, const std::function<bool()>& over = [] { return false; });

  // Returns whether there is a directory RUNS/STUDY. Returns the filesystem's errors.
  absl::StatusOr<bool> HasStudy(int64_t study_id);
  // Removes RUNS/STUDY if it is an empty directory.
  void RemoveEmptyStudy(int64_t study_id);

  // Returns the ids larger than `above` of the studies that have a directory RUNS/STUDY, in ascending order. Leaves
  // out entries that are not directories, that belong to another user or whose names are not ids. Returns the
  // filesystem's errors.
  absl::StatusOr<std::vector<int64_t>> ListStudies(int64_t above = 0);

  // Removes RUNS/STUDY with everything in it and adds it to `removed`, unless a file in it was changed after `until`
  // by the clock of the filesystem. If it contains no file, the times of its directories count. Returns whether it was
  // old enough. With `dry_run`, only counts the files. Leaves it alone and records the reason if it is a link, is on
  // another filesystem, or it or the directory of a run or an attempt in it belongs to another user. Returns CANCELLED
  // if `over` returns true, which is called before each file to remove, and errors of the filesystem; the caller
  // may call RemoveStudy again to continue.
  absl::StatusOr<bool> RemoveStudy(int64_t study_id, absl::Time until, bool dry_run,
                                   const std::function<bool()>& over, FilesRemoved& removed);

 private:
  AttemptFiles(std::string path, int fd, uint64_t device)
      : path_(std::move(path)), fd_(fd), device_(device) {}
  const std::string path_;
  int fd_;
  const uint64_t device_;
};

}  // namespace scalelab
