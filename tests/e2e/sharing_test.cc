// Limits that change with SIGHUP, drain mode over a kill, and usage, with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ConfiguredService : public Service {
 public:
  ConfiguredService() : Service({"--local-slots", "1"}) {
    Configure("limits: {pending_allocations: 1}\n");
    AddFlags({"--config", config()});
  }
  std::string config() const { return dir() + "/scalelabd.yaml"; }
  void Configure(const std::string& yaml) const { WriteFile(config(), yaml); }
};

constexpr char kLong[] =
    "study: long\nfixed: {model: resnet20, dataset: synthetic, epochs: 1000, ranks: 1}\n";

class Sharing : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(service_.Start(), ""); }
  static bool Eventually(const std::function<bool()>& holds) {
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end;) {
      if (holds()) return true;
      absl::SleepFor(absl::Milliseconds(100));
    }
    return false;
  }
  size_t Allocations() { return service_.Json({"cluster"})["allocations"].size(); }
  std::string Why(const std::string& study) { return service_.Run({"study", "explain", study}).out; }
  void Reload(const std::string& yaml, const std::string& log) {
    service_.Configure(yaml);
    service_.daemon()->Signal(SIGHUP);
    EXPECT_TRUE(Eventually([&] { return service_.log().find(log) != std::string::npos; })) << service_.log();
  }
  ConfiguredService service_;
};

TEST_F(Sharing, AReloadChangesLimitsAndAMistakeChangesNothing) {
  service_.WaitUntilTraining(service_.Submit(kLong));
  service_.Submit(kLong);
  const std::string last = service_.Submit(kLong);
  EXPECT_THAT(Why(last), HasSubstr("the limit pending_allocations of"));
  EXPECT_EQ(Allocations(), 2u);
  Reload("limits: {pending_allocations: many}\n",
         absl::StrCat("nothing is changed: ", service_.config(),
                      ":1:31: limits.pending_allocations: 'many' is not"));
  EXPECT_EQ(Allocations(), 2u);
  Reload("limits: {pending_allocations: 2}\nreflection: true\n",
         "reflection has changed in the configuration and needs a restart");
  EXPECT_TRUE(Eventually([&] { return Allocations() == 3u; })) << Why(last);
}

TEST_F(Sharing, AReloadChangesRolesAndRetention) {
  const std::string study = service_.Submit(kLong);
  ASSERT_EQ(service_.Run({"study", "cancel", study}).code, 0);
  EXPECT_THAT(service_.Run({"admin", "prune", "--dry-run"}).out, HasSubstr("no retention rules"));
  Reload(
      "limits: {pending_allocations: 1}\nviewers: [nobody]\nusers: [daemon]\nretention: {points: "
      "{older_than: 30d}}\n",
      "roles, limits, fair share, timeouts and the log level apply now");
  EXPECT_THAT(service_.log(), testing::Not(HasSubstr("needs a restart")));
  EXPECT_TRUE(Eventually([&] {
    return service_.Run({"admin", "prune", "--dry-run"}).out.find("points older than 30d") !=
           std::string::npos;
  }));
}

TEST_F(Sharing, DrainModeSurvivesAKillAndUsageIsCharged) {
  const std::string running = service_.Submit(kLong);
  service_.WaitUntilTraining(running);
  EXPECT_EQ(service_.Run({"admin", "drain", "--reason", "new switch"}).code, 0);
  const std::string waiting = service_.Submit(kLong);
  service_.Kill();
  ASSERT_EQ(service_.Start(), "");
  EXPECT_THAT(Why(waiting), HasSubstr("the service is being drained: new switch"));
  EXPECT_EQ(service_.Json({"cluster"})["running_attempts"], "1") << "the run goes on";
  EXPECT_THAT(service_.Run({"cluster"}).out, HasSubstr("no run begins since"));
  EXPECT_THAT(service_.Run({"queue"}).out, AllOf(HasSubstr(waiting), HasSubstr("drained")));
  const auto used = [&] {
    const auto usages = service_.Json({"admin", "usage"})["usages"];
    return usages.empty() ? 0 : usages[0].value("node_seconds", 0.0);
  };
  EXPECT_TRUE(Eventually([&] { return used() >= 1; }));
  service_.Run({"study", "cancel", running});
  EXPECT_TRUE(Eventually([&] { return Allocations() == 0; }));
  EXPECT_EQ(service_.Run({"admin", "undrain"}).code, 0);
  service_.WaitUntilTraining(waiting);
}

}  // namespace
}  // namespace scalelab::e2e
