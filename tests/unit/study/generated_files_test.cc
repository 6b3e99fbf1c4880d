// The generated files agree with the tables of run parameters and engines.
#include "study/generate/generated_files.h"

#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace scalelab {
namespace {

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(GeneratedFiles, AreUpToDate) {
  const auto files = GeneratedFiles(Read(SCALELAB_API_DESCRIPTORS));
  ASSERT_TRUE(files.ok()) << files.status();
  for (const GeneratedFile& file : *files) {
    // Do not use EXPECT_EQ, which would print both files.
    EXPECT_TRUE(Read(std::string(SCALELAB_TOP) + "/" + file.path) == file.text)
        << file.path
        << " does not agree with catalog/run_parameters.def and catalog/engines.cc; run deploy/generate";
  }
}

TEST(GeneratedFiles, NeedDescriptorsOfTheApi) {
  EXPECT_FALSE(GeneratedFiles("not a descriptor set").ok());
  EXPECT_FALSE(GeneratedFiles("").ok());
}

}  // namespace
}  // namespace scalelab
