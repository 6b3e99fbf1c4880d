// Extracts metrics from the output of a program that writes no events. Follows standard output and
// standard error of rank 0, and appends event lines to its event file. All methods and callbacks run on
// the event loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "extract/pattern.h"
#include "google/protobuf/struct.pb.h"
#include "worker/process/event_loop.h"

namespace scalelab::worker {

class OutputMetrics {
 public:
  // `extract` is RunSpec.extract. The files of `outputs` need not exist yet. Returns INVALID_ARGUMENT if an
  // expression is not valid.
  static absl::StatusOr<std::unique_ptr<OutputMetrics>> New(EventLoop& loop,
                                                            const google::protobuf::Struct& extract,
                                                            std::vector<std::string> outputs,
                                                            std::string events);
  ~OutputMetrics() { loop_.Cancel(timer_); }
  OutputMetrics(const OutputMetrics&) = delete;

  // Starts to follow the output.
  void Start() { Look(); }
  // Reads the rest of an output, at most 64 MiB, because it is going to be truncated to `size` bytes. See
  // process/output_limit.h. Does nothing if the output is not followed or is not one of `outputs`.
  void BeforeCut(const std::string& path, int64_t size);
  // Reads the rest of the output, in parts. If `succeeded`, then also appends the finish event with the
  // metrics of the run, and retries a read that fails for one minute. Calls `done` with one sentence about
  // missing metrics, or with "".
  void Finish(bool succeeded, std::function<void(std::string)> done);

 private:
  enum class Take { kLast, kFirst, kMax, kMin, kMean };
  struct Rule {
    std::string metric;
    Pattern pattern;
    bool per_step = false;
    Take take = Take::kLast;
    int64_t matches = 0;
    double value = 0;  // value for the run; with kMean, the sum
  };

  struct Output {
    std::string path;
    int64_t at = 0;      // number of bytes that were read
    std::string unread;  // the beginning of a line
    std::string error;   // of the last read; empty if it succeeded or there is no such file
    int64_t cut_at = std::numeric_limits<int64_t>::max();  // where the file was cut; later output follows
  };

  OutputMetrics(EventLoop& loop, std::vector<Rule> rules, std::vector<Output> outputs, std::string events)
      : loop_(loop), rules_(std::move(rules)), outputs_(std::move(outputs)), events_(std::move(events)) {}

  void Look();
  bool ReadPart(Output& output);
  void TakeLines(Output& output);
  void TakeLine(absl::string_view line);
  static void Add(double value, Rule* rule);
  void End();
  void Append(const std::string& lines);

  EventLoop& loop_;
  std::vector<Rule> rules_;
  std::vector<Output> outputs_;
  const std::string events_;
  std::string appended_;  // event lines of this part
  std::string problem_;
  EventLoop::TimerId timer_ = 0;  // 0: the output is not followed
  bool finishing_ = false, succeeded_ = false;
  absl::Duration give_up_at_;  // EventLoop::Now; known after Finish
  std::function<void(std::string)> done_;
};

}  // namespace scalelab::worker
