// scalelab-generate TOP: writes the files that are made from the table of run parameters into the repository at TOP, and
// prints the names of those that have changed.
// deploy/generate builds and runs it.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "study/generate/generated_files.h"

namespace {

std::string Read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: scalelab-generate TOP\nTOP is the top of the repository.\n", stderr);
    return 2;
  }
  const auto files = scalelab::GeneratedFiles(Read(SCALELAB_API_DESCRIPTORS));
  if (!files.ok()) {
    std::fprintf(stderr, "scalelab-generate: %s\n", std::string(files.status().message()).c_str());
    return 1;
  }
  for (const scalelab::GeneratedFile& file : *files) {
    const std::filesystem::path path = std::filesystem::path(argv[1]) / file.path;
    // Do not write unchanged files: a newer time would make everything that depends on them build again.
    if (Read(path) == file.text) continue;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream out(path, std::ios::binary);
    if (!(out << file.text) || !out.flush()) {
      std::fprintf(stderr, "scalelab-generate: cannot write %s\n", path.c_str());
      return 1;
    }
    std::printf("%s\n", file.path.c_str());
  }
  return 0;
}
