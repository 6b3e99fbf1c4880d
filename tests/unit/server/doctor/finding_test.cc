#include "server/doctor/finding.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace scalelab::server::doctor {
namespace {

const Findings kFindings = {Ok("clock", "synchronised"), Warning("data", "little\nspace", "free some"),
                            Error("munge", "no answer", "start munged")};

TEST(Finding, TheTextHasOneLineForEachAndCountsThem) {
  EXPECT_EQ(TextReport(kFindings),
            "ok       clock        synchronised\n"
            "warning  data         little space; free some\n"
            "error    munge        no answer; start munged\n"
            "3 checks: 1 error, 1 warning\n");
}

TEST(Finding, TheJsonHasTheSame) {
  const auto report = nlohmann::json::parse(JsonReport(kFindings));
  EXPECT_EQ(report["errors"], 1);
  EXPECT_EQ(report["warnings"], 1);
  EXPECT_EQ(report["checks"][0],
            (nlohmann::json{{"check", "clock"}, {"level", "ok"}, {"text", "synchronised"}}));
  EXPECT_EQ(report["checks"][2]["advice"], "start munged");
}

TEST(Finding, OnlyAnErrorFails) {
  EXPECT_TRUE(HasError(kFindings));
  EXPECT_FALSE(HasError({kFindings[0], kFindings[1]}));
}

}  // namespace
}  // namespace scalelab::server::doctor
