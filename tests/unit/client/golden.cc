#include "tests/unit/client/golden.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace scalelab::client {

void ExpectFile(const std::string& path, const std::string& text) {
  if (const char* update = std::getenv("SCALELAB_UPDATE_GOLDEN"); update != nullptr && *update != '\0') {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << "no golden file " << path << ": run with SCALELAB_UPDATE_GOLDEN=1 and look at it";
  const std::string expected((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, expected) << "differs from " << path << "; if meant, run with SCALELAB_UPDATE_GOLDEN=1";
}

void ExpectGolden(const std::string& name, const std::string& text) {
  ExpectFile(SCALELAB_SOURCE_DIR "/tests/golden/client/" + name, text);
}

void ExpectDocumented(const std::string& name, const std::string& text) {
  ExpectFile(SCALELAB_SOURCE_DIR "/docs/users/" + name, text);
}

}  // namespace scalelab::client
