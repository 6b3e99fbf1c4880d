// scalelab-generate TOP: writes the files that are made from the table of run parameters into the repository at TOP.
// deploy/generate builds and runs it.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "study/generate/generated_files.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: scalelab-generate TOP\nTOP is the top of the repository.\n", stderr);
    return 2;
  }
  std::ifstream in(SCALELAB_API_DESCRIPTORS, std::ios::binary);
  std::ostringstream descriptors;
  descriptors << in.rdbuf();
  const auto files = scalelab::GeneratedFiles(descriptors.str());
  if (!files.ok()) {
    std::fprintf(stderr, "scalelab-generate: %s\n", std::string(files.status().message()).c_str());
    return 1;
  }
  for (const scalelab::GeneratedFile& file : *files) {
    const std::filesystem::path path = std::filesystem::path(argv[1]) / file.path;
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
