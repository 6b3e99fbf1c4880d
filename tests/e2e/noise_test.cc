// Tests the noise guard with real processes that disturb a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/e2e/service.h"
#include "tests/fakes/busy_neighbours.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

TEST(Noise, ABusyNeighbourMakesAnAttemptNoisyAndItIsRepeatedOnce) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const BusyNeighbours neighbours(2 * std::thread::hardware_concurrency());
  const std::string study = service.Submit(R"(study: noisy
fixed:
  engine: custom
  ranks: 1
  command: [sh, -c, 'sleep 1.2; echo speed 100']
measure:
  extract: [{metric: run/throughput, regex: 'speed ([0-9]+)'}]
  success: exit_status
noise_guard: {calibrate: true, rerun_if: noisy, max_reruns: 1}
)");
  ASSERT_NE(study, "");
  ASSERT_EQ(service.WaitFor(study, 100), 0) << service.Run({"run", "list", study}).out << service.log();
  const auto run = service.Runs(study)[0];
  EXPECT_EQ(run["state"], "SUCCEEDED");
  EXPECT_EQ(run["noisy"], true);
  const auto attempts = service.Attempts(run["name"]);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[0]["state"], "FAILED");
  EXPECT_EQ(attempts[1]["state"], "SUCCEEDED");
  for (const auto& attempt : attempts) {
    EXPECT_EQ(attempt["cause"], "NOISY");
    EXPECT_EQ(attempt["throughput"], 100) << "of the attempt that does not count, too";
    EXPECT_THAT(attempt["message"].get<std::string>(), HasSubstr("other processes used"));
    ASSERT_EQ(attempt["noise"].size(), 1u);
    const auto& noise = attempt["noise"][0];
    EXPECT_GT(noise["before"]["compute_rate"].get<double>(), 0);
    EXPECT_GT(noise["other_load"].get<double>(), 0.25) << "while the attempt slept";
    EXPECT_FALSE(noise["reasons"].empty());
  }
  const auto curve = service.Json({"curve", study});
  EXPECT_EQ(curve["series"][0]["points"][0]["noisy"], 1);
  EXPECT_THAT(curve["series"][0]["points"][0]["notes"].dump(), HasSubstr("disturbed by other load"));
  EXPECT_THAT(service.Run({"run", "show", run["name"]}).out,
              testing::ContainsRegex("attempt 1 .noisy, not counted.: +100.0 samples/s"));
  EXPECT_THAT(service.Run({"run", "show", run["name"], "-o", "wide"}).out, HasSubstr("Other load"));
}

TEST(Noise, WithoutAGuardNothingIsMeasured) {
  Service service({"--local-slots", "1"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(R"(study: plain
fixed: {engine: custom, ranks: 1, command: [sh, -c, 'echo speed 100']}
measure: {extract: [{metric: run/throughput, regex: 'speed ([0-9]+)'}], success: exit_status}
noise_guard: {calibrate: false}
)");
  ASSERT_EQ(service.WaitFor(study, 100), 0) << service.log();
  const auto attempts = service.Attempts(service.Runs(study)[0]["name"]);
  ASSERT_EQ(attempts.size(), 1u);
  EXPECT_TRUE(!attempts[0].contains("noise") || attempts[0]["noise"].empty());
}

}  // namespace
}  // namespace scalelab::e2e
