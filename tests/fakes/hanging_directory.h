// A directory whose files hang. It simulates a file server that does not answer.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace scalelab {

// Mounts a FUSE file system over `directory` that answers no request but the first one. Every look-up, open and read
// below the directory then blocks, until the mount is removed by the destructor. Needs root and /dev/fuse.
class HangingDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<HangingDirectory>> Mount(const std::string& directory);
  ~HangingDirectory();
  // Returns whether a call is blocked below the directory.
  bool blocks() const;
  HangingDirectory(const HangingDirectory&) = delete;
  HangingDirectory& operator=(const HangingDirectory&) = delete;

 private:
  HangingDirectory(std::string directory, int fd) : directory_(std::move(directory)), fd_(fd) {}

  const std::string directory_;
  const int fd_;
};

}  // namespace scalelab
