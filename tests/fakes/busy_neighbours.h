// Processes that use CPU time, like the processes of other users of a node.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace scalelab {

// Runs `count` busy processes until the object is destroyed.
class BusyNeighbours {
 public:
  explicit BusyNeighbours(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        for (;;) asm volatile("");
      }
      pids_.push_back(pid);
    }
  }
  BusyNeighbours(const BusyNeighbours&) = delete;
  BusyNeighbours& operator=(const BusyNeighbours&) = delete;
  ~BusyNeighbours() {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> pids_;
};

}  // namespace scalelab
