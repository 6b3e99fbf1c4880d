// Keeps what ranks print from filling the disk: a file past the limit is cut to half of it, so that its
// beginning and, as the rank goes on appending, its last words stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/process/event_loop.h"

namespace scalelab::worker {

class OutputLimit {
 public:
  // Looks at the files once a second, from the loop's thread. Between two looks a file may be longer.
  OutputLimit(EventLoop& loop, int64_t limit_bytes) : loop_(loop), limit_(limit_bytes) {}
  ~OutputLimit() { loop_.Cancel(timer_); }
  OutputLimit(const OutputLimit&) = delete;

  // Files that are written with O_APPEND; those that do not exist (yet) are passed over.
  void Watch(std::vector<std::string> paths);
  // The last look.
  void Finish();

 private:
  void Look();

  EventLoop& loop_;
  const int64_t limit_;
  std::vector<std::string> paths_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace scalelab::worker
