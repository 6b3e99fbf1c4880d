// Finds the parts of scalelab relative to one of its programs: in a build folder, below one directory, or as packages
// install them.
//   bin/scalelab, bin/scalelabd, bin/scalelab-worker
//   bin/scalelab-rank, bin/scalelab-trainer        as packages install them: in lib/scalelab
//   share/scalelab/adapters
#pragma once

#include <filesystem>
#include <string>

namespace scalelab {

// Returns the path of the program `name` that belongs to `program`, a path with its directory: in the same directory
// or, if it is only there, in ../lib/scalelab.
std::string CompanionProgram(const std::filesystem::path& program, const std::string& name);

// Returns the directory of the adapters that belong to `program`, a path with its directory.
std::string AdaptersDirectory(const std::filesystem::path& program);

}  // namespace scalelab
