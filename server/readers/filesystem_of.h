// Finds out which files become unreachable together.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace scalelab::server {

// Returns the file server of the filesystem of `path` ("nfs.lab.org"), or the number of its device ("8:1") if it is on no
// file server; "" if that is unknown. `path` is absolute, and need not exist. Reads the mount table and does not touch
// the filesystem, which may not answer. Therefore symlinks in `path` are not followed. May be called from any thread.
std::string FilesystemOf(const std::string& path);

// Like FilesystemOf, with the contents of /proc/self/mountinfo.
std::string FilesystemOf(const std::string& path, absl::string_view mounts);

}  // namespace scalelab::server
