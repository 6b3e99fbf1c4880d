// The commit of the sources that this program was built from.
#pragma once

namespace scalelab::worker {

// Returns the full hash, or "unknown" if CMake was run outside a git repository.
const char* GitCommit();

}  // namespace scalelab::worker
