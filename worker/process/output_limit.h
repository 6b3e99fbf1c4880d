// Limits the size of the ranks' output files. A file that exceeds the limit is truncated to half the
// limit. The beginning of the output is kept, and ranks continue to append, so the file also has
// their latest output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/process/event_loop.h"

namespace scalelab::worker {

class OutputLimit {
 public:
  // Checks the files once a second, on the loop's thread. Between two checks a file may exceed the limit.
  OutputLimit(EventLoop& loop, int64_t limit_bytes) : loop_(loop), limit_(limit_bytes) {}
  ~OutputLimit() { loop_.Cancel(timer_); }
  OutputLimit(const OutputLimit&) = delete;

  // Starts to check `paths`. Writers must use O_APPEND. Files that do not exist (yet) or are not regular
  // files are skipped.
  void Watch(std::vector<std::string> paths);
  // Checks the files a last time and stops.
  void Finish();

 private:
  void Look();

  EventLoop& loop_;
  const int64_t limit_;
  std::vector<std::string> paths_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace scalelab::worker
