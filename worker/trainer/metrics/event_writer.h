// The event file: docs/users/write-a-training-script.md.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace scalelab::trainer {

using Metric = std::pair<std::string_view, double>;

// Appends `{"key":value,...}`; a value that is not finite becomes a string.
void AppendMetrics(std::span<const Metric> metrics, std::string& out);

// Appends events to a file, whole lines only. Step events reach the file within 0.2 s, written by a thread of
// its own; all others at once. One thread calls.
class EventWriter {
 public:
  // An empty path means standard output. Throws TrainerError when the file cannot be opened.
  explicit EventWriter(const std::string& path);
  // Writes what is left.
  ~EventWriter();

  void Start(int rank, int world_size, int64_t total_steps);
  void Step(int64_t epoch, int64_t step, std::span<const Metric> metrics);
  void Epoch(int64_t epoch, std::span<const Metric> metrics);
  void Finish(std::span<const Metric> metrics, std::string_view parameter_hash);
  void Error(std::string_view message, std::string_view kind);

 private:
  void Add(std::string_view end, bool now);
  void FlushThread();
  void WriteOut(std::string_view lines);

  const std::string path_;
  int descriptor_ = -1;
  std::string line_;  // of the calling thread, kept for its memory

  std::mutex writing_;  // held around write(), so that lines keep their order; taken before mutex_
  std::mutex mutex_;    // guards what follows
  std::condition_variable changed_;
  std::string pending_;
  int write_error_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace scalelab::trainer
