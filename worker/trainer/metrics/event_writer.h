// Writes the event file (docs/users/write-a-training-script.md).
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

// Appends `{"key":value,...}` to `out`. A value that is not finite becomes a string.
void AppendMetrics(std::span<const Metric> metrics, std::string& out);

// Appends events to a file, whole lines only. A background thread writes step events within 0.2 s; all other
// events are written before the call returns. Throws TrainerError if an event could not be written: the call
// for an event other than a step reports its own failure and earlier ones. Only one thread may call the
// methods.
class EventWriter {
 public:
  // Opens the file; an empty path means standard output. Throws TrainerError if the file cannot be opened.
  explicit EventWriter(const std::string& path);
  // Writes the pending events.
  ~EventWriter();

  // `device`: its name; empty if it is unknown. `resumed_step`: number of steps of the checkpoint that the rank continues from; 0 if it begins with the first step.
  void Start(int rank, int world_size, int64_t total_steps, std::string_view device,
             int64_t resumed_step = 0);
  void Step(int64_t epoch, int64_t step, std::span<const Metric> metrics);
  void Epoch(int64_t epoch, std::span<const Metric> metrics);
  // `steps`: number of steps that the checkpoint contains.
  void Checkpoint(int64_t steps, std::span<const Metric> metrics);
  void Finish(std::span<const Metric> metrics, std::string_view parameter_hash);
  void Error(std::string_view message, std::string_view kind);
  // Writes the pending events.
  void Flush();
  // Writes the pending events and syncs the file, so that all events so far survive a power failure. Throws
  // TrainerError if one of them could not be written or synced. A pipe or a terminal has nothing to sync.
  void Sync();

 private:
  // Throws TrainerError.
  [[noreturn]] void FailToWrite(int error) const;
  void Add(std::string_view end, bool now);
  void FlushThread();
  void WriteOut(std::string_view lines);

  const std::string path_;
  int descriptor_ = -1;
  std::string line_;  // used by the calling thread; a member to reuse its memory

  std::mutex writing_;  // held around write(), so that lines keep their order; taken before mutex_
  std::mutex mutex_;    // guards pending_, write_error_ and closing_
  std::condition_variable changed_;
  std::string pending_;
  int write_error_ = 0;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace scalelab::trainer
