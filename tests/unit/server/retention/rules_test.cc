#include "server/retention/rules.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;

absl::Status Read(const std::string& yaml, RetentionRules* rules) {
  return ReadRetention(
      YAML::Load(yaml), [](const YAML::Mark& mark) { return absl::StrCat("line ", mark.line + 1); }, rules);
}
std::string ErrorOf(const std::string& yaml) {
  RetentionRules rules;
  return std::string(Read(yaml, &rules).message());
}

TEST(RetentionRules, AgesAndSizesAreRead) {
  RetentionRules rules;
  ASSERT_TRUE(
      Read("points: {older_than: 365d}\nlogs: {older_than: 12h}\nattempt_directories: {older_than: 90m}\n"
           "database: {max_size: 1.5GiB}\n",
           &rules)
          .ok());
  EXPECT_EQ(rules.points, absl::Hours(24 * 365));
  EXPECT_EQ(rules.logs, absl::Hours(12));
  EXPECT_EQ(rules.directories, absl::Minutes(90));
  EXPECT_EQ(rules.database_bytes, int64_t{3} << 29);
  EXPECT_EQ(rules.logs_bytes, 0);
  EXPECT_EQ(rules.directories_bytes, 0);
  EXPECT_FALSE(rules.empty());
  EXPECT_EQ(AgeText(rules.points), "365d");
  EXPECT_EQ(AgeText(rules.logs), "12h");
  EXPECT_EQ(AgeText(rules.directories), "90m");
}

TEST(RetentionRules, FilesHaveAnAgeOrASizeOrBoth) {
  RetentionRules rules;
  ASSERT_TRUE(
      Read("logs: {max_size: 512MiB}\nattempt_directories: {max_size: 2TiB, older_than: 180d}\n", &rules)
          .ok());
  EXPECT_EQ(rules.logs, absl::InfiniteDuration());
  EXPECT_EQ(rules.logs_bytes, int64_t{512} << 20);
  EXPECT_EQ(rules.directories, absl::Hours(24 * 180));
  EXPECT_EQ(rules.directories_bytes, int64_t{2} << 40);
  for (const char* only : {"logs: {max_size: 1MiB}", "attempt_directories: {max_size: 1MiB}"}) {
    RetentionRules one;
    ASSERT_TRUE(Read(only, &one).ok());
    EXPECT_FALSE(one.empty()) << only;
  }
}

TEST(RetentionRules, WithoutRulesNothingIsRemoved) {
  RetentionRules rules;
  EXPECT_TRUE(rules.empty());
  ASSERT_TRUE(Read("{}", &rules).ok());
  EXPECT_TRUE(rules.empty());
}

TEST(RetentionRules, AnErrorNamesThePlaceAndWhatToWrite) {
  EXPECT_THAT(ErrorOf("points: {older_than: 365}"),
              HasSubstr("line 1: retention: '365' is not an age; write days"));
  EXPECT_THAT(ErrorOf("points: {older_than: -1d}"), HasSubstr("'-1d' is not an age"));
  EXPECT_THAT(ErrorOf("points: {older_than: 0d}"), HasSubstr("'0d' is not an age"));
  EXPECT_THAT(ErrorOf("points: {older_than: 1e999d}"), HasSubstr("is not an age"));
  for (const char* unit : {"d", "h", "m"}) {
    // Without a limit, such an age would be infinite, and the rule would never remove anything.
    const std::string age = absl::StrCat("99999999999999999999999", unit);
    EXPECT_THAT(ErrorOf(absl::StrCat("points: {older_than: ", age, "}")),
                HasSubstr(absl::StrCat("'", age, "' is not an age")));
  }
  EXPECT_THAT(ErrorOf("\npoint: {older_than: 1d}"),
              HasSubstr("line 2: retention: unknown key 'point'; did you mean points?"));
  EXPECT_THAT(ErrorOf("logs: 90d"),
              HasSubstr("logs needs {older_than: ...} or {max_size: ...} or both, for example logs: "
                        "{older_than: 90d}"));
  EXPECT_THAT(ErrorOf("logs: {}"), HasSubstr("logs needs {older_than"));
  EXPECT_THAT(ErrorOf("points: {max_size: 1GiB}"),
              HasSubstr("points needs {older_than: ...}, for example points: {older_than: 365d}"));
  EXPECT_THAT(ErrorOf("database: {max_size: 1GiB, older_than: 1d}"),
              HasSubstr("database needs {max_size: ...}, for example database: {max_size: 50GiB}"));
  EXPECT_THAT(ErrorOf("logs: {max_size: 1GiB, max_size: 1GiB}"), HasSubstr("duplicate key \"max_size\""));
  EXPECT_THAT(ErrorOf("logs: {max_size: 1GB}"), HasSubstr("'1GB' is not a size; write MiB, GiB or TiB"));
  EXPECT_THAT(ErrorOf("database: {max_size: 50GB}"),
              HasSubstr("'50GB' is not a size; write MiB, GiB or TiB"));
  EXPECT_THAT(ErrorOf("database: {max_size: 99999999TiB}"), HasSubstr("is not a size"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("expected points, logs"));
  EXPECT_THAT(ErrorOf("{points: {older_than: 1d}, points: {older_than: 1d}}"), HasSubstr("duplicate key"));
}

}  // namespace
}  // namespace scalelab::server
