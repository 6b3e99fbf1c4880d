// Compares output with files in tests/golden/client, and pictures with those that docs/users shows.
// SCALELAB_UPDATE_GOLDEN=1 rewrites the files; review the difference.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace scalelab::client {

inline void ExpectFile(const std::string& path, const std::string& text) {
  if (const char* update = std::getenv("SCALELAB_UPDATE_GOLDEN"); update != nullptr && *update != '\0') {
    std::ofstream(path, std::ios::binary) << text;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << "no golden file " << path << ": run with SCALELAB_UPDATE_GOLDEN=1 and look at it";
  const std::string expected((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, expected) << "differs from " << path << "; if meant, run with SCALELAB_UPDATE_GOLDEN=1";
}

inline void ExpectGolden(const std::string& name, const std::string& text) {
  ExpectFile(std::string(SCALELAB_GOLDEN_DIR) + "/client/" + name, text);
}

inline void ExpectDocumented(const std::string& name, const std::string& text) {
  ExpectFile(std::string(SCALELAB_GOLDEN_DIR) + "/../../docs/users/" + name, text);
}

}  // namespace scalelab::client
