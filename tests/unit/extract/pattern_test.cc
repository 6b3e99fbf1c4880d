#include "extract/pattern.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

using testing::HasSubstr;

Pattern Compiled(const std::string& regex) {
  absl::StatusOr<Pattern> pattern = Pattern::Compile(regex);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return *std::move(pattern);
}

TEST(Pattern, TheValueIsTheFirstGroupOrTheOneOfThatName) {
  EXPECT_EQ(Compiled("loss=([0-9.]+)").Find("step 3 loss=0.25 lr=0.1")->value, 0.25);
  EXPECT_EQ(Compiled("(step|iter) (?P<value>[0-9]+)").Find("iter 7")->value, 7);
  EXPECT_EQ(Compiled("(?P<step>[0-9]+): ([0-9.e+-]+)").Find("12: 1.5e+3")->value, 1500);
  EXPECT_FALSE(Compiled("loss=([0-9.]+)").Find("accuracy=0.3").has_value());
}

TEST(Pattern, TheStepIsTheGroupOfThatName) {
  const Pattern pattern = Compiled("(?P<step>[0-9]+) bytes .* ([0-9.]+) Mbps");
  EXPECT_TRUE(pattern.has_step());
  const auto match = pattern.Find("  5:   16 bytes  3000 times -->  7.25 Mbps in 16 usec");
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->step, 16);
  EXPECT_EQ(match->value, 7.25);
  EXPECT_FALSE(Compiled("x=(.*)").has_step());
}

TEST(Pattern, AGroupThatIsNoNumberIsNoMatch) {
  EXPECT_FALSE(Compiled("loss=(.*)").Find("loss=n/a").has_value());
  EXPECT_FALSE(Compiled("(?P<step>.*) (?P<value>.*)").Find("1.5 2").has_value());
  EXPECT_FALSE(Compiled("a|(b)").Find("a").has_value()) << "the group has no part in this match";
}

TEST(Pattern, RefusesExpressionsWithoutAValueAndThoseThatAreNotValid) {
  EXPECT_THAT(std::string(Pattern::Compile("loss").status().message()), HasSubstr("no group for the value"));
  EXPECT_THAT(std::string(Pattern::Compile("(?P<step>x)").status().message()),
              HasSubstr("no group for the value"));
  EXPECT_THAT(std::string(Pattern::Compile("(unclosed").status().message()), HasSubstr("missing )"));
  EXPECT_FALSE(Pattern::Compile("(a)(?=b)").ok()) << "RE2 has no look-ahead";
}

}  // namespace
}  // namespace scalelab
