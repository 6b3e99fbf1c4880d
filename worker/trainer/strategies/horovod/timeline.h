// A timeline of the states of tensors, in the Trace Event Format of Chrome's trace viewer and Perfetto.
#pragma once

#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

namespace scalelab::trainer::horovod {

// The file has one row ("thread") for each tensor. Times are in microseconds since the construction of the
// timeline. Only one thread may call the methods.
class Timeline {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws TrainerError if the file cannot be written.
  explicit Timeline(const std::string& path);
  // Writes the closing bracket of the file. Viewers accept files without it.
  ~Timeline();

  void Span(const std::string& tensor, std::string_view state, Time from, Time to);
  // Adds a mark across all rows.
  void Mark(std::string_view what, Time at);

 private:
  int Row(const std::string& tensor);
  double Microseconds(Time at) const;

  std::ofstream file_;
  Time start_ = std::chrono::steady_clock::now();
  std::map<std::string, int> rows_;
};

}  // namespace scalelab::trainer::horovod
