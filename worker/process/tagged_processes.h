// Ends the processes of an attempt that are not descendants of this worker: under Slurm, ranks are
// children of slurmstepd. They are identified by the tag in their environment (Job::tag). Runs on the
// event loop's thread.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "worker/process/event_loop.h"
#include "worker/process/process_tree.h"

namespace scalelab::worker {

class TaggedProcesses {
 public:
  // `tag`: "NAME=value".
  TaggedProcesses(EventLoop& loop, std::string tag);
  ~TaggedProcesses();  // stops watching
  TaggedProcesses(const TaggedProcesses&) = delete;
  TaggedProcesses& operator=(const TaggedProcesses&) = delete;

  // Sends SIGTERM to each tagged process on this machine and SIGKILL to the remaining ones after `grace`.
  // Calls `gone` once when none is left, but not from inside this method. A second call may shorten the grace
  // and replaces `gone`.
  void End(absl::Duration grace, std::function<void()> gone);

 private:
  void Sweep();
  void Forget(int pidfd);

  EventLoop& loop_;
  const std::string tag_;
  std::function<void()> gone_;
  std::map<int, ProcessInfo> watched_;                 // by pidfd
  absl::Duration kill_at_ = absl::InfiniteDuration();  // SteadyNow
  bool killing_ = false;
  EventLoop::TimerId kill_timer_ = 0, sweep_timer_ = 0;
};

}  // namespace scalelab::worker
