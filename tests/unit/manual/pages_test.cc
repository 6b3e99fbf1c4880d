// Tests that the hand-written parts of the man pages are complete.
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config.h"

namespace scalelab::manual {
namespace {

using testing::HasSubstr;

TEST(Pages, EveryKeyOfTheFileIsDescribed) {
  std::ifstream file(SCALELAB_MANUAL_DIR "/scalelabd.yaml.5.in");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), HasSubstr("\n@KEYS@\n")) << "the table of keys that are flags too";
  for (const std::string& key : server::SectionKeys())
    EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("\n.B ", key, ": "))) << "describe it in that file";
}

}  // namespace
}  // namespace scalelab::manual
