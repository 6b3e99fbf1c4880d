#include "server/cells/parsed_messages.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::server {
namespace {

std::string Named(const std::string& name) { return absl::StrCat(R"({"study":")", name, R"("})"); }

TEST(ParsedMessages, AreParsedOnce) {
  ParsedMessages<v1::StudySpec> messages;
  const auto first = messages.Get(Named("a"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->study(), "a");
  EXPECT_EQ(*messages.Get(Named("a")), *first) << "the same object";
  EXPECT_EQ((*messages.Get(Named("b")))->study(), "b");
}

TEST(ParsedMessages, AreNotKeptIfTheTextIsLong) {
  ParsedMessages<v1::StudySpec> messages;
  const std::string text = Named(std::string(8 << 10, 'x'));
  const auto first = messages.Get(text);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->study().size(), 8 << 10);
  EXPECT_NE(*messages.Get(text), *first);
}

TEST(ParsedMessages, AreDroppedAfterManyOthersAndStayValid) {
  ParsedMessages<v1::StudySpec> messages;
  const auto first = messages.Get(Named("first"));
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 0; i < 128; ++i) EXPECT_EQ((*messages.Get(Named(absl::StrCat(i))))->study(), absl::StrCat(i));
  EXPECT_EQ((*first)->study(), "first");
  const auto again = messages.Get(Named("first"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(*again, *first);
  EXPECT_EQ((*again)->study(), "first");
}

TEST(ParsedMessages, ReportATextThatCannotBeParsed) {
  ParsedMessages<v1::StudySpec> messages;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(absl::IsDataLoss(messages.Get("{").status()));
}

}  // namespace
}  // namespace scalelab::server
