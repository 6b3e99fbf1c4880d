// Limits that change with SIGHUP, drain mode over a kill, usage, and the order of three users' studies, with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::ElementsAre;
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

constexpr char kLong[] = "study: long\nfixed: {model: resnet8, dataset: synthetic, epochs: 1000, ranks: 1}\n";

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

// Tests how three users share a service that executes one run at a time and keeps one job pending.
class FairSharing : public testing::Test {
 protected:
  // Accounts of every Debian system.
  static constexpr char kAnn[] = "games", kBob[] = "irc", kCyd[] = "news";

  struct SharedService : Service {
    SharedService() : Service({"--local-slots", "1", "--poll-interval", "1", "--socket-mode", "0666"}) {
      chmod(dir().c_str(), 0755);
      const std::string limits = "limits: {partition_pending_allocations: 1}\nfair_share: {half_life: 1h}\n";
      AddFlags({"--listen", shared(), "--listen", socket(), "--config", File("scalelabd.yaml", limits)});
    }
    std::string shared() const { return absl::StrCat("unix:", dir(), "/shared.sock"); }
  };
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as several users";
    ASSERT_EQ(service_.Start(), "");
  }
  // Submits a study of one run that notes its name, takes some seconds and finishes.
  std::string Submit(const std::string& user, const std::string& name, const std::string& seconds) {
    const std::string file = service_.File(
        "study.yaml",
        absl::StrCat("study: ", name,
                     "\nfixed:\n  engine: custom\n  ranks: 1\n  max_steps: 1\n  command: [sh, -c, \"echo ",
                     name, " >>", served_, "; sleep ", seconds,
                     "; echo '{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\"}' >>$SCALELAB_EVENTS\"]\n"));
    const Output output = RunProgram(
        As(user, {ProgramForAll("scalelab"), "--server", service_.shared(), "study", "submit", file}),
        {{"HOME", "/nonexistent"}, {"NO_COLOR", "1"}}, 60);
    EXPECT_EQ(output.code, 0) << output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  }
  // Returns the names of the studies whose runs have begun, in this order.
  std::vector<std::string> Served() { return absl::StrSplit(ReadFile(served_), '\n', absl::SkipEmpty()); }
  // Returns the names of the studies in the queue, in its order.
  std::vector<std::string> Queue() {
    std::vector<std::string> names;
    const nlohmann::json entries = service_.Json({"queue"})["entries"];
    for (const auto& entry : entries) names.push_back(entry["display_name"]);
    return names;
  }
  std::map<std::string, double> NodeSeconds() {
    std::map<std::string, double> seconds;
    const nlohmann::json usages = service_.Json({"admin", "usage"})["usages"];
    for (const auto& usage : usages) seconds[usage["user"]] = usage.value("node_seconds", 0.0);
    return seconds;
  }

  SharedService service_;
  const std::string served_ = service_.dir() + "/served";
};

// Each run takes its number of seconds, and less than two seconds to begin and to end. The test takes about a
// minute, in which the half-life of an hour has no effect.
TEST_F(FairSharing, ThreeUsersAreServedInTheOrderComputedByHandOverAKill) {
  // The earlier use of the users: ann 10 s, bob 5 s, cyd nearly nothing, plus the time that jobs take to
  // begin and end.
  for (const auto& study : {Submit(kAnn, "a0", "10"), Submit(kBob, "b0", "5"), Submit(kCyd, "c0", "0")})
    ASSERT_EQ(service_.WaitFor(study, 60), 0);
  auto used = NodeSeconds();
  EXPECT_GE(used[kAnn], 10);
  EXPECT_GE(used[kAnn], used[kBob] + 1);
  EXPECT_GE(used[kBob], used[kCyd] + 1);

  // All are submitted before any is served.
  ASSERT_EQ(service_.Run({"admin", "drain"}).code, 0);
  std::vector<std::string> studies;
  studies.push_back(Submit(kCyd, "c1", "18"));
  for (const char* name : {"a1", "a2"}) studies.push_back(Submit(kAnn, name, "0"));
  for (const char* name : {"c2", "c3"}) studies.push_back(Submit(kCyd, name, "0"));
  for (const char* name : {"b1", "b2"}) studies.push_back(Submit(kBob, name, "0"));
  // The queue is ordered by the use until now: cyd, bob, ann. The older study of a user comes first.
  EXPECT_THAT(Queue(), ElementsAre("c1", "c2", "c3", "b1", "b2", "a1", "a2"));
  ASSERT_EQ(service_.Run({"admin", "undrain"}).code, 0);

  // Kill the process during c1. When c1 began, cyd had used the least, so the job of c2 was
  // submitted and waits.
  ASSERT_TRUE(Eventually([&] { return Served().back() == "c1"; }));
  service_.Kill();
  ASSERT_EQ(service_.Start(), "");
  EXPECT_EQ(Served().back(), "c1");

  // After c1, cyd has used at least 18 s, bob about 5 s and ann about 10 s. c2 runs next, because its job is
  // already submitted. Then come bob's two studies, then ann's. c3 is last, although b1 and b2 are younger.
  for (const std::string& study : studies) ASSERT_EQ(service_.WaitFor(study, 90), 0) << study;
  EXPECT_THAT(Served(), ElementsAre("a0", "b0", "c0", "c1", "c2", "b1", "b2", "a1", "a2", "c3"));
  used = NodeSeconds();
  EXPECT_GE(used[kCyd], 18) << "what was held while no coordinator ran is charged";
}

}  // namespace
}  // namespace scalelab::e2e
