// Finds and checks the files of data sets by name. The client, the coordinator and the trainer use these
// definitions. This library does not use protobuf, because the trainer links it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// A file of fixed-size records.
struct RecordFile {
  std::string path;
  int64_t records = 0;
};

struct RecordFiles {
  std::vector<RecordFile> train;
  std::vector<RecordFile> test;
};

// CIFAR-10 in its official binary layout (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin to
// data_batch_5.bin (at least the first; no gaps in the numbering) and test_batch.bin. A record has one label
// byte (0 to 9) and 3 x 32 x 32 bytes, red plane first, row by row.
inline constexpr int64_t kCifar10RecordBytes = 1 + 3 * 32 * 32;
// Returns the files in `dir`. Returns NOT_FOUND or INVALID_ARGUMENT if a file is missing, is not readable, or
// does not consist of whole records. The message contains the directory or file, the error and advice.
absl::StatusOr<RecordFiles> FindCifar10(const std::string& dir);

// Token files: train.bin and val.bin, little-endian numbers of 16 bits.
struct TokenFiles {
  RecordFile train, val;  // a record is a token
};
// Returns the files in `dir`. Errors are those of FindCifar10.
absl::StatusOr<TokenFiles> FindTokens(const std::string& dir);

// Returns whether samples of data set `name` are tokens, not images.
bool HasTokens(absl::string_view name);

// Checks whether data set `name` can be read from `dir` on this machine. Always OK for synthetic data.
absl::Status CheckDataset(absl::string_view name, const std::string& dir);

}  // namespace scalelab
