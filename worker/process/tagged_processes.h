// Ends the processes of an attempt that are not descendants of this worker: under Slurm, ranks are
// children of slurmstepd. They are identified by the tag in their environment (Job::tag). Runs on the
// event loop's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/process/event_loop.h"
#include "worker/process/process_tree.h"

namespace scalelab::worker {

class TaggedProcesses {
 public:
  virtual ~TaggedProcesses() = default;  // stops watching

  // Sends SIGTERM to each tagged process on this machine and SIGKILL to the remaining ones after `grace`.
  // Calls `gone` once when none is left, but not from inside this method. A second call may shorten the grace
  // and replaces `gone`, which may destroy this object.
  virtual void End(absl::Duration grace, std::function<void()> gone) = 0;
};

// `tag`: "NAME=value". `loop` must outlive the returned object. `open` opens a pidfd or sets errno, like pidfd_open(2).
// Processes for which it fails (Linux before 5.3, a filter of system calls) are looked for again until they are
// gone. While /proc cannot be read, no process counts as gone, and the search is repeated.
std::unique_ptr<TaggedProcesses> NewTaggedProcesses(EventLoop& loop, std::string tag,
                                                    std::function<int(pid_t)> open = OpenPidfd);

}  // namespace scalelab::worker
