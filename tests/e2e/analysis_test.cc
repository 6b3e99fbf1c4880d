// Tests predictions, comparisons and advice with a real service. The programs report steps of known durations, so
// the right answers are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/e2e/process.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Arguments: params.slow and seed. The scaling is perfect: a step of one rank takes 0.64 s, and 25% longer if
// params.slow is 1. The three repeats of a cell differ by 0.5%, in an order that depends on the cell, and each cell
// has all three values, so the means of the cells have no noise.
constexpr char kScript[] = R"sh(set -eu
seconds=$(awk -v p="$WORLD_SIZE" -v slow="$1" -v seed="$2" -v factor="${FACTOR:-1}" 'BEGIN {
  printf "%.9f", 0.64 / p * (1 + 0.25 * slow) * factor * (1 + 0.005 * ((seed + p + slow) % 3 - 1)) }')
tell() { printf '{"time":%s,%s}\n' "$(date +%s.%N)" "$1" >>"$SCALELAB_EVENTS"; }
sizes="\"world_size\":$WORLD_SIZE,\"rank\":$RANK"
tell "\"event\":\"start\",\"framework\":\"shell\",\"version\":\"1\",$sizes,\"total_steps\":2"
for step in 0 1; do
  tell "\"event\":\"step\",\"epoch\":0,\"step\":$step,\"metrics\":{\"step/total_s\":$seconds}"
done
metrics=$(awk -v s="$seconds" 'BEGIN {
  printf "\"run/throughput\":%.6f,\"run/epoch_seconds\":%.9f", 64 / s, 10 * s }')
tell "\"event\":\"finish\",\"metrics\":{$metrics},\"parameter_hash\":\"ab\""
)sh";

std::string StudyOf(const std::string& name, const std::string& ranks, const std::string& more = "") {
  return absl::StrCat("study: ", name, R"(
fixed:
  engine: custom
  model: line
  dataset: points
  command: [sh, ./steps.sh, "{params.slow}", "{seed}"]
  max_steps: 2
)",
                      more, "matrix:\n  params: {slow: [0, 1]}\n  ranks: ", ranks, R"(
scaling: {mode: strong, global_batch: 64}
order: listed
repeats: 3
)");
}

TEST(Analysis, PredictionsComparisonsAndAdviceAreRightAndPredictionsGetTheirScores) {
  Service service({"--local-slots", "8"});
  ASSERT_EQ(service.Start(), "");
  service.File("steps.sh", kScript);
  const std::string small = service.Submit(StudyOf("small", "[1, 2, 4]"));
  ASSERT_EQ(service.WaitFor(small, 100), 0) << service.Run({"run", "list", small, "-o", "wide"}).out;
  const std::string slower = service.Submit(StudyOf("slower", "[1]", "  env: {FACTOR: \"1.1\"}\n"));
  ASSERT_EQ(service.WaitFor(slower, 60), 0) << service.Run({"run", "list", slower, "-o", "wide"}).out;

  // Predict 8 ranks before they run.
  ASSERT_EQ(service.Run({"admin", "drain"}).code, 0);
  const std::string large = service.Submit(StudyOf("large", "[8]"));
  const auto made = service.Json({"predict", small, "--for", large})["predictions"];
  ASSERT_EQ(made.size(), 2u) << made;
  for (const auto& prediction : made) {
    const double right = prediction["key"]["params.slow"] == 0 ? 800 : 640;
    EXPECT_EQ(prediction["state"], "PENDING") << prediction;
    EXPECT_EQ(prediction["study"], large);
    EXPECT_EQ(prediction["ranks"], 8);
    EXPECT_EQ(prediction["largest_measured"], 4);
    EXPECT_NEAR(prediction["predicted"]["mean"].get<double>(), right, 0.02 * right);
  }
  ASSERT_EQ(service.Run({"admin", "undrain"}).code, 0);
  ASSERT_EQ(service.WaitFor(large, 60), 0) << service.Run({"run", "list", large, "-o", "wide"}).out;
  nlohmann::json ledger;
  const auto scored = [&] {
    ledger = service.Json({"predictions", large});
    return ledger.value("summary", nlohmann::json::object()).value("scored", 0) == 2;
  };
  ASSERT_TRUE(Eventually(scored, 60)) << ledger;
  EXPECT_EQ(ledger["summary"]["predictions"], 2);
  EXPECT_EQ(ledger["summary"]["covered"], 2);
  ASSERT_EQ(ledger["predictions"].size(), 2u);
  for (const auto& prediction : ledger["predictions"]) {
    const double right = prediction["key"]["params.slow"] == 0 ? 800 : 640;
    EXPECT_EQ(prediction["state"], "SCORED") << prediction;
    EXPECT_NEAR(prediction["measured"]["mean"].get<double>(), right, 0.001 * right);
    EXPECT_NEAR(prediction["error"].get<double>(), 0, 0.02);
    EXPECT_EQ(prediction["covered"], true);
  }

  // Within the study, value 0 has 25% more throughput at each number of ranks.
  const auto compared = service.Json({"curve", small, "--compare", "params.slow"});
  ASSERT_EQ(compared["groups"].size(), 3u) << compared;
  for (const auto& group : compared["groups"]) {
    ASSERT_EQ(group["pairs"].size(), 1u);
    const auto& pair = group["pairs"][0];
    EXPECT_EQ(pair["first"], "0");
    EXPECT_EQ(pair["second"], "1");
    EXPECT_EQ(pair["n"], 3);
    EXPECT_NEAR(pair["effect"]["mean"].get<double>(), 0.25, 0.03);
    EXPECT_EQ(pair["verdict"], "FASTER");
  }
  EXPECT_EQ(compared["groups"][2]["ranks"], 4);

  // The steps of the other study take 10% longer. It has only runs on one rank.
  const auto studies = service.Json({"study", "compare", slower, small});
  ASSERT_EQ(studies["groups"].size(), 2u) << studies;
  for (const auto& group : studies["groups"]) {
    EXPECT_EQ(group["ranks"], 1);
    const auto& pair = group["pairs"][0];
    EXPECT_EQ(pair["first"], "slower");
    EXPECT_EQ(pair["first_repeats"], 3);
    EXPECT_NEAR(pair["effect"]["mean"].get<double>(), 1 / 1.1 - 1, 0.001);
    EXPECT_EQ(pair["verdict"], "SLOWER");
  }
  EXPECT_EQ(studies["measured"].size(), 4u) << "two series of each study";

  // 100 epochs of 6.4 s on one rank. Each doubling doubles the speed, so four ranks are worth their price.
  const auto advised = service.Json({"advise", small, "--epochs", "100", "--price", "2"});
  ASSERT_EQ(advised["advice"].size(), 2u) << advised;
  for (const auto& advice : advised["advice"]) {
    const double hours = 640.0 / 3600 * (advice["key"]["params.slow"] == 0 ? 1 : 1.25);
    EXPECT_EQ(advice["recommended"], 4);
    EXPECT_EQ(advice["fastest"], 4);
    ASSERT_EQ(advice["sizes"].size(), 3u);
    EXPECT_NEAR(advice["sizes"][0]["hours"]["mean"].get<double>(), hours, 0.001 * hours);
    EXPECT_NEAR(advice["sizes"][2]["hours"]["mean"].get<double>(), hours / 4, 0.001 * hours);
    EXPECT_NEAR(advice["sizes"][2]["cost"]["mean"].get<double>(), 2 * hours, 0.002 * hours);
    EXPECT_NEAR(advice["sizes"][2]["gain"]["mean"].get<double>(), 1, 0.05);
    EXPECT_EQ(advice["sizes"][2]["pays"], true);
  }
  for (const auto& answer : {compared, advised}) {
    ASSERT_EQ(answer["measured"].size(), 2u) << answer;
    const auto& series = answer["measured"][0];
    EXPECT_EQ(series["study"], small);
    EXPECT_THAT(series["notes"], Contains(HasSubstr("in the order of the study file")));
    EXPECT_EQ(series["points"][2]["ranks"], 4);
    EXPECT_EQ(series["points"][2]["n"], 3);
    EXPECT_EQ(series["points"][2]["asked"], 3);
  }
}

}  // namespace
}  // namespace scalelab::e2e
