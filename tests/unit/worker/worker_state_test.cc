#include "worker/worker_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace scalelab::worker {
namespace {

using ::testing::IsEmpty;

// Builds a desired state: "a" should run, "a!" should be stopped.
v1::SynchronizeResponse Desired(const std::vector<std::string>& attempts) {
  v1::SynchronizeResponse response;
  for (const std::string& name : attempts) {
    auto& attempt = *response.add_attempts();
    attempt.set_stop(name.back() == '!');
    attempt.set_token(attempt.stop() ? name.substr(0, name.size() - 1) : name);
  }
  return response;
}

// Formats actions as "begin a, stop b".
std::string Text(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    static const char* const kNames[] = {"begin ", "stop ", "forget ", "abandon "};
    text += (text.empty() ? "" : ", ") + (kNames[static_cast<int>(action.kind)] + action.token);
  }
  return text;
}

TEST(Decide, BeginsWhatIsNewInTheOrderOfTheResponse) {
  const auto desired = Desired({"b", "a"});
  const auto actions = Decide({}, desired, false);
  EXPECT_EQ(Text(actions), "begin b, begin a");
  EXPECT_EQ(actions[0].desired, &desired.attempts(0));
}

TEST(Decide, DoesNothingWhenAllIsAsItShouldBe) {
  EXPECT_THAT(Decide({{"a"}, {"b", true}}, Desired({"a", "b"}), false), IsEmpty());
}

TEST(Decide, BeginsAnAttemptThatIsToBeStoppedSoThatItsEndIsReported) {
  EXPECT_EQ(Text(Decide({}, Desired({"a!"}), false)), "begin a");
}

TEST(Decide, StopsOnceAndOnlyWhatLives) {
  EXPECT_EQ(Text(Decide({{"a"}}, Desired({"a!"}), false)), "stop a");
  EXPECT_EQ(Text(Decide({{"a", false, true}}, Desired({"a!"}), false)), "");
  EXPECT_EQ(Text(Decide({{"a", true}}, Desired({"a!"}), false)), "");
}

TEST(Decide, TellsWhetherAnAttemptIsStoppedBecauseItsRanksHaveFinished) {
  auto desired = Desired({"a!"});
  EXPECT_FALSE(Decide({{"a"}}, desired, false)[0].finished);
  desired.mutable_attempts(0)->set_finished(true);
  EXPECT_TRUE(Decide({{"a"}}, desired, false)[0].finished);
}

TEST(Decide, StopsWithTheGraceThatWasAskedForOrFiveSeconds) {
  auto desired = Desired({"a!"});
  EXPECT_EQ(Decide({{"a"}}, desired, false)[0].grace, absl::Seconds(5));
  desired.mutable_attempts(0)->set_grace_seconds(0.25);
  EXPECT_EQ(Decide({{"a"}}, desired, false)[0].grace, absl::Milliseconds(250));
}

TEST(Decide, ForgetsWhatHasEndedAndAbandonsWhatLivesUnwanted) {
  EXPECT_EQ(Text(Decide({{"a", true}, {"b"}}, Desired({"c"}), false)), "begin c, forget a, abandon b");
}

TEST(Decide, BeginsNothingWhileLeavingButStillForgets) {
  EXPECT_EQ(Text(Decide({{"a", true}}, Desired({"c"}), true)), "forget a");
}

TEST(Decide, TakesATokenThatIsListedTwiceOnce) {
  EXPECT_EQ(Text(Decide({}, Desired({"a", "a"}), false)), "begin a");
}

}  // namespace
}  // namespace scalelab::worker
