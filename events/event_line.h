// Converts event lines (docs/users/write-a-training-script.md) into the columns of an EventBatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/strings/string_view.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab {

inline constexpr size_t kMaxLineBytes = 64 << 10;  // without the line feed

// Collects consecutive lines of one rank's event file into a batch. Not thread-safe.
class BatchBuilder {
 public:
  // Adds the complete line `number` (from 0), given without its '\n'. A line that is not a valid event is
  // recorded as malformed, with the reason.
  void Add(absl::string_view line, int64_t number);
  // Records line `number` as malformed.
  void AddMalformed(int64_t number, absl::string_view reason);

  // Returns whether the batch has an event that should be sent at once: epoch, finish or error.
  bool urgent() const { return urgent_; }
  // An upper estimate of the batch's serialized size in bytes.
  size_t bytes() const { return bytes_; }
  // Returns the batch (columns, events and malformed lines are set) and starts an empty one.
  v1::EventBatch Take();

 private:
  bool AddPlainStep(absl::string_view line, int64_t number);
  std::string AddAny(absl::string_view line, int64_t number);
  void AddPoint(absl::string_view key, int64_t line, int64_t step, double time, double value);

  v1::EventBatch batch_;
  std::unordered_map<std::string, int> columns_;  // metric -> index in batch_
  int next_column_ = 0;  // expected column: lines mostly have the same metrics in the same order
  bool urgent_ = false;
  size_t bytes_ = 0;
};

}  // namespace scalelab
