// Ends the processes of an attempt that this worker did not start itself: under Slurm, ranks are children of
// slurmstepd. They are known by the tag in their environment (Job::tag).
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

  // TERM to each of them on this machine, KILL to what is left after `grace`; calls `gone` once, not from
  // inside this method, when none is left. A second call may shorten the grace and replaces `gone`.
  void End(absl::Duration grace, std::function<void()> gone);

 private:
  void Sweep();
  void Forget(int pidfd);

  EventLoop& loop_;
  const std::string tag_;
  std::function<void()> gone_;
  std::map<int, ProcessInfo> watched_;  // by pidfd
  absl::Time kill_at_ = absl::InfiniteFuture();
  bool killing_ = false;
  EventLoop::TimerId kill_timer_ = 0, sweep_timer_ = 0;
};

}  // namespace scalelab::worker
