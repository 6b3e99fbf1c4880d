// Files that commands write.
#pragma once

#include <fstream>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {

// Replaces the content of the file `path` by what `write` writes. Writes to a file with the suffix ".part",
// which replaces an existing file when it is complete. Writes directly to devices and pipes, for example
// /dev/stdout. Returns the error of `write`, or UNKNOWN with the reason if the file cannot be written.
absl::Status ReplaceFile(const std::string& path, const std::function<absl::Status(std::ofstream&)>& write);
// Calls ReplaceFile with a function that writes `text`.
absl::Status ReplaceFile(const std::string& path, absl::string_view text);

}  // namespace scalelab::client
