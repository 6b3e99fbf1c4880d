// A thread for operations on a filesystem that may stop responding, such as that of a file server.
#pragma once

#include <memory>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace scalelab::server {

// Used by one thread at a time.
class FileLane {
 public:
  // `limit` is the time limit of each operation.
  explicit FileLane(absl::Duration limit);
  // Does not wait for a blocked operation, which continues until the filesystem responds.
  ~FileLane();
  FileLane(const FileLane&) = delete;
  FileLane& operator=(const FileLane&) = delete;

  // Calls `work` on the lane's thread and returns its result. Returns UNAVAILABLE if `work` does not end within the
  // limit, or at once if an earlier operation has not ended yet; the message contains the time since that operation
  // began. An operation that has exceeded the limit continues, even after the lane's destructor, so it must own
  // everything that it uses. It must not return UNAVAILABLE.
  absl::Status Run(absl::AnyInvocable<absl::Status()> work);

 private:
  struct Shared;  // outlives the lane while the thread is blocked
  static void Serve(const std::shared_ptr<Shared>& shared);

  const absl::Duration limit_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace scalelab::server
