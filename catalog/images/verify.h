// Whether the files of a data set are sound, each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

struct BadFile {
  std::string path;
  std::string problem;  // "the file is empty"
};

struct Verification {
  int64_t files = 0;         // looked at
  int64_t images = 0;        // in them, the bad ones included
  std::vector<BadFile> bad;  // in the order of the data set
};

// "cifar10": sizes, labels, and of files as large as the official ones whether they are those (MD5).
// "imagefolder": decodes every image, on as many threads as there are cores.
// `progress` is told now and then how many of how many files are done, by one thread at a time. An error
// where the data set cannot be looked at as a whole; INVALID_ARGUMENT for a name that has nothing to verify.
absl::StatusOr<Verification> VerifyDataset(absl::string_view name, const std::string& dir,
                                           const std::function<void(int64_t done, int64_t all)>& progress);

}  // namespace scalelab
