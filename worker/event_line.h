// Event lines (docs/users/write-a-training-script.md) into the columns of an EventBatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/strings/string_view.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab::worker {

inline constexpr size_t kMaxLineBytes = 64 << 10;  // without its end

// Collects the lines of one rank's file, one after another, into a batch.
class BatchBuilder {
 public:
  // One complete line without its '\n'. A line that is no event is noted as malformed, with what is wrong.
  void Add(absl::string_view line, int64_t number);
  void AddMalformed(int64_t number, absl::string_view reason);

  // Holds a line that somebody waits for: epoch, finish or error.
  bool urgent() const { return urgent_; }
  // About how large the batch will be on the wire; never less than it is.
  size_t bytes() const { return bytes_; }
  // Hands the batch over (columns, events and malformed lines are set) and starts anew.
  v1::EventBatch Take();

 private:
  bool AddPlainStep(absl::string_view line, int64_t number);
  std::string AddAny(absl::string_view line, int64_t number);
  void AddPoint(absl::string_view key, int64_t line, int64_t step, double time, double value);

  v1::EventBatch batch_;
  std::unordered_map<std::string, int> columns_;  // metric -> index in batch_
  int next_column_ = 0;                           // lines tend to have the same metrics in the same order
  bool urgent_ = false;
  size_t bytes_ = 0;
};

}  // namespace scalelab::worker
