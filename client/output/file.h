// Files that commands write.
#pragma once

#include <fstream>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {

// Replaces the file `path` by what `write` writes. An existing file stays as it is until the new one is complete, which has
// the suffix ".part" before. Devices and pipes, for example /dev/stdout, are written to. Returns the error of `write`, or UNKNOWN with the reason if the file cannot be written.
absl::Status ReplaceFile(const std::string& path, const std::function<absl::Status(std::ofstream&)>& write);
// The same for a text.
absl::Status ReplaceFile(const std::string& path, absl::string_view text);

}  // namespace scalelab::client
