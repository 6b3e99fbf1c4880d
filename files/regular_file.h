// Opens regular files. A training program may have replaced a file by a FIFO, a device, a directory
// or a symlink.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace scalelab {

// Opens an existing regular file with `flags` and O_CLOEXEC, and returns its descriptor. Does not wait for the other
// end of a FIFO and does not follow a symlink.
//
// Returns NOT_FOUND if the path does not exist, FAILED_PRECONDITION ("is a FIFO, not a regular file")
// if it is not a regular file, and UNAVAILABLE with the text of errno after any other error, which
// may be temporary.
absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags);

// Return at most `limit` bytes from the beginning or the end of the file. Return "" if it is not a regular
// file or cannot be read.
std::string ReadHead(const std::string& path, size_t limit);
std::string ReadTail(const std::string& path, size_t limit);

}  // namespace scalelab
