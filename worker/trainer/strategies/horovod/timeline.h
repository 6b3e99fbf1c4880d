// When which tensor was in which state, in the Trace Event Format that Chrome's trace viewer and Perfetto
// open.
#pragma once

#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

namespace scalelab::trainer::horovod {

// One row ("thread") a tensor; times are microseconds since the timeline began. One thread calls.
class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws TrainerError when the file cannot be written.
  explicit Timeline(const std::string& path);
  // Completes the file: until then its last bracket is missing, which viewers tolerate.
  ~Timeline();

  void Span(const std::string& tensor, std::string_view state, Time from, Time to);
  // A mark across all rows.
  void Mark(std::string_view what, Time at);

 private:
  int Row(const std::string& tensor);
  double Microseconds(Time at) const;

  std::ofstream file_;
  Time start_ = std::chrono::steady_clock::now();
  std::map<std::string, int> rows_;
};

}  // namespace scalelab::trainer::horovod
