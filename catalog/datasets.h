// Data sets by name and the files they are made of: an interface between users, coordinator and trainer just
// as the messages are. No protobuf here; the trainer links it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// One file of fixed-size records.
struct RecordFile {
  std::string path;
  int64_t records = 0;
};

struct RecordFiles {
  std::vector<RecordFile> train;
  std::vector<RecordFile> test;
};

// CIFAR-10 in its official binary layout (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin to
// data_batch_5.bin (at least the first; numbering without gaps) and test_batch.bin; a record is one label
// byte (0 to 9) and 3 x 32 x 32 bytes, red plane first, row by row.
inline constexpr int64_t kCifar10RecordBytes = 1 + 3 * 32 * 32;
// NOT_FOUND or INVALID_ARGUMENT: one sentence that names the directory or file, what is wrong with it
// (missing, not readable, N bytes too many or too few for whole records) and what to do.
absl::StatusOr<RecordFiles> FindCifar10(const std::string& dir);

// Whether data set `name` can be read from `dir` on this machine; OK for "synthetic", whatever `dir` is.
absl::Status CheckDataset(absl::string_view name, const std::string& dir);

}  // namespace scalelab
