// Finds programs and adapters of scalelab relative to one of its programs: in a build folder, below an
// installation directory, or in the directories of packages.
//   bin/scalelab, bin/scalelabd, bin/scalelab-worker
//   bin/scalelab-rank, bin/scalelab-trainer        in packages: lib/scalelab
//   share/scalelab/adapters
#pragma once

#include <filesystem>
#include <string>

namespace scalelab {

// Returns the path of the program `name` that belongs to `program`, which is a path with a directory. The
// result is in the same directory or, if it exists only there, in ../lib/scalelab.
std::string CompanionProgram(const std::filesystem::path& program, const std::string& name);

// Returns the directory of the adapters that belong to `program`, which is a path with a directory.
std::string AdaptersDirectory(const std::filesystem::path& program);

}  // namespace scalelab
