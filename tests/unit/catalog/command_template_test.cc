#include "catalog/command_template.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string Expanded(absl::string_view word) {
  return ExpandTemplates(word, [](absl::string_view name) { return absl::StrCat("<", name, ">"); });
}

TEST(CommandTemplate, NamesInBracesAreReplaced) {
  EXPECT_EQ(Expanded("--lr={learning_rate}"), "--lr=<learning_rate>");
  EXPECT_EQ(Expanded("{params.dropout},{env.A_1}{seed}"), "<params.dropout>,<env.A_1><seed>");
  EXPECT_THAT(TemplateNames("a {seed} b {params.x}"), ElementsAre("seed", "params.x"));
}

TEST(CommandTemplate, OtherBracesArePlainText) {
  for (const char* word : {"{}", "{", "}", "{ seed }", "{seed", "awk '{print $1}'", "{\"a\": 1}", "${seed}",
                           "{RANK}", "{1}", "{a-b}", "", "a{b,c}"}) {
    EXPECT_EQ(Expanded(word), word);
    EXPECT_THAT(TemplateNames(word), IsEmpty()) << word;
  }
}

TEST(CommandTemplate, DoubledBracesStandForTheTextItself) {
  EXPECT_EQ(Expanded("{{seed}}"), "{seed}");
  EXPECT_EQ(Expanded("{{{seed}}}"), "{{seed}}") << "the doubled pair is the inner one";
  EXPECT_EQ(Expanded("{{seed}"), "{<seed>");
  EXPECT_EQ(Expanded("{{}}"), "{{}}");
}

}  // namespace
}  // namespace scalelab
