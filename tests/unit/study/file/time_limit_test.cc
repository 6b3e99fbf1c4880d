#include "study/file/time_limit.h"

#include "gtest/gtest.h"

namespace scalelab {
namespace {

TEST(TimeLimit, TakesSecondsUnitsAndSlurmsForms) {
  EXPECT_EQ(ParseTimeLimit("1800"), 1800);
  EXPECT_EQ(ParseTimeLimit("90s"), 90);
  EXPECT_EQ(ParseTimeLimit("30m"), 1800);
  EXPECT_EQ(ParseTimeLimit("1h30m"), 5400);
  EXPECT_EQ(ParseTimeLimit("2d"), 172800);
  EXPECT_EQ(ParseTimeLimit("1d2h3m4s"), 93784);
  EXPECT_EQ(ParseTimeLimit("30:00"), 1800);
  EXPECT_EQ(ParseTimeLimit("00:30:00"), 1800);
  EXPECT_EQ(ParseTimeLimit("26:00:01"), 93601);
  EXPECT_EQ(ParseTimeLimit("1-02"), 93600);
  EXPECT_EQ(ParseTimeLimit("1-02:30"), 95400);
  EXPECT_EQ(ParseTimeLimit("1-02:00:00"), 93600);
}

TEST(TimeLimit, RefusesAnythingElse) {
  for (const char* text : {"",           " ",
                           "soon",       "30x",
                           "m",          "m30",
                           "30m30m",     "1m1h",
                           "1.5h",       "-5",
                           "+5",         " 5",
                           "5 ",         "1:60",
                           "1:00:60",    "1:2:3:4",
                           "1-",         "-1-00",
                           "1-2-3",      ":",
                           "1:",         "1-02:00:00:00",
                           "30m5",       "99999999999999999999",
                           "99999999d",  "9999999999:00:00",
                           "99999999-00"}) {
    EXPECT_EQ(ParseTimeLimit(text), std::nullopt) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace scalelab
