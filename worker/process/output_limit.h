// Limits the size of the ranks' output files. A file that exceeds the limit is truncated to half the
// limit. The beginning of the output is kept, and ranks continue to append, so the file also has
// their latest output.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

// The beginning of the line that marks where a file was cut. A line break precedes it.
inline constexpr absl::string_view kCutMark = "[scalelab-worker cut this file here";

class OutputLimit {
 public:
  // Called right before a file is truncated to `size` bytes. What it does not read of the rest is lost.
  using BeforeCut = std::function<void(const std::string& path, int64_t size)>;

  // Checks the files once a second, on the loop's thread. Between two checks a file may exceed the limit.
  OutputLimit(EventLoop& loop, int64_t limit_bytes) : loop_(loop), limit_(limit_bytes) {}
  ~OutputLimit() { loop_.Cancel(timer_); }
  OutputLimit(const OutputLimit&) = delete;

  // Starts to check `paths`. Writers must use O_APPEND. Files that do not exist (yet) or are not regular
  // files are skipped. `before_cut` may be empty; it is called on the loop's thread.
  void Watch(std::vector<std::string> paths, BeforeCut before_cut = {});
  // Checks the files a last time and stops.
  void Finish();

 private:
  void Look();

  EventLoop& loop_;
  const int64_t limit_;
  std::vector<std::string> paths_;
  BeforeCut before_cut_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace scalelab::worker
