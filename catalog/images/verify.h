// Verifies all files of a data set.
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
  int64_t files = 0;         // number of files read
  int64_t images = 0;        // number of images, including the bad ones
  std::vector<BadFile> bad;  // in the order of the data set
};

// Verifies the data set `name` in directory `dir`. For "cifar10", checks sizes and labels, and the MD5 of
// files that have the size of the official ones. For "imagefolder", decodes every image, on as many threads
// as there are cores.
//
// Calls `progress` periodically with the number of files that are verified and the number of all files, from
// one thread at a time. Returns an error if the data set as a whole cannot be read. Returns INVALID_ARGUMENT
// for any other name.
absl::StatusOr<Verification> VerifyDataset(absl::string_view name, const std::string& dir,
                                           const std::function<void(int64_t done, int64_t all)>& progress);

}  // namespace scalelab
