#include "server/notify/notices.h"

#include <array>
#include <set>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/unit/server/core/world.h"

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::StudySpec SpecWith(std::vector<v1::Notify::Event> on, int repeats = 1) {
  v1::StudySpec spec = World::Spec({1}, repeats);
  v1::Notify& notify = *spec.mutable_notify();
  for (const v1::Notify::Event event : on) notify.add_on(event);
  notify.set_mail("ada@uni.example");
  spec.mutable_retry()->set_max(0);
  return spec;
}

// A study whose runs begin one after another.
struct Notified : World {
  explicit Notified(const v1::StudySpec& spec) {
    id = Submit(spec);
    job = AskedFor();
    Job(job, JobStatus::State::kRunning);
    desired = Sync(job);
  }
  void Begin() {
    token = desired.attempts(0).token();
    Sync(job, {Running(token)});
  }
  void Fail() {
    Begin();
    desired = Sync(job, {Ended(token, 1, v1::Attempt::TRAINER_ERROR)});
  }
  void Succeed() {
    Begin();
    desired = Finish(job, desired);
  }
  int64_t id;
  std::string job, token;
  v1::SynchronizeResponse desired;
};

TEST(Notices, TheEndOfAStudyIsRecordedWithItsCommit) {
  Notified world(SpecWith({v1::Notify::END}));
  EXPECT_THAT(world.fx.batch.notices, IsEmpty());
  world.Succeed();
  ASSERT_THAT(world.fx.batch.notices, SizeIs(1));
  const db::NoticeRow& notice = world.fx.batch.notices[0];
  EXPECT_EQ(notice.channel, "mail");
  EXPECT_EQ(notice.target, "ada@uni.example");
  EXPECT_EQ(notice.study_id, world.id);
  EXPECT_EQ(notice.due, world.now);
  const auto payload = nlohmann::json::parse(notice.payload);
  EXPECT_EQ(payload["event"], "end");
  EXPECT_EQ(payload["state"], "SUCCEEDED");
  EXPECT_EQ(payload["display_name"], "test");
  EXPECT_EQ(payload["runs"]["succeeded"], 1);
  EXPECT_EQ(payload["id"], notice.key);
  EXPECT_EQ(world.fx.batch.studies.back().state, db::StudyState::kSucceeded);
}

TEST(Notices, TheFirstFailureIsRecordedOnceAndHasTheReason) {
  Notified world(SpecWith({v1::Notify::FIRST_FAILURE}, 2));
  world.Fail();
  ASSERT_THAT(world.fx.batch.notices, SizeIs(1));
  const auto payload = nlohmann::json::parse(world.fx.batch.notices[0].payload);
  EXPECT_EQ(payload["event"], "first_failure");
  EXPECT_EQ(payload["cause"], "trainer_error");
  EXPECT_THAT(payload["message"].get<std::string>(), HasSubstr("last words"));
}

TEST(Notices, WithoutOccasionsBothAreRecorded) {
  Notified world(SpecWith({}));
  world.Fail();
  std::vector<std::string> events;
  for (const db::NoticeRow& row : world.fx.batch.notices)
    events.push_back(nlohmann::json::parse(row.payload)["event"]);
  EXPECT_THAT(events, ElementsAre("first_failure", "end"));
}

TEST(Notices, OnlyWhatWasAskedForIsRecorded) {
  Notified failure(SpecWith({v1::Notify::END}));
  failure.Fail();
  ASSERT_THAT(failure.fx.batch.notices, SizeIs(1));
  Notified success(SpecWith({v1::Notify::FIRST_FAILURE}));
  success.Succeed();
  EXPECT_THAT(success.fx.batch.notices, IsEmpty());
  OneRun nobody(1);
  nobody.Finish(nobody.job, nobody.desired);
  EXPECT_THAT(nobody.fx.batch.notices, IsEmpty());
}

TEST(Notices, EachChannelAndEachEndHasItsOwnKey) {
  v1::StudySpec spec = SpecWith({});
  spec.mutable_notify()->set_webhook("https://chat.example/x");
  spec.mutable_notify()->set_command("chat");
  db::StudyRow row;
  const std::array<int64_t, 7> counts{};
  const NoticedStudy study{row, spec, counts};
  row.id = 7;
  row.state = db::StudyState::kFailed;
  db::WriteBatch batch;
  row.finished = 100;
  AddEndNotices(study, batch);
  row.finished = 200;  // retried
  AddEndNotices(study, batch);
  db::RunRow run;
  AddFailureNotices(study, run, 90, batch);
  std::set<std::string> keys;
  for (const db::NoticeRow& notice : batch.notices) keys.insert(notice.key);
  EXPECT_THAT(keys, SizeIs(9));
  AddFailureNotices(study, run, 190, batch);  // another run, after the retry
  for (const db::NoticeRow& notice : batch.notices) keys.insert(notice.key);
  EXPECT_THAT(keys, SizeIs(9)) << "the first failure is one occasion";
}

TEST(Notices, AMessageThatIsNotUtf8IsReplaced) {
  const db::StudyRow row;
  const v1::StudySpec spec = SpecWith({});
  const std::array<int64_t, 7> counts{};
  db::RunRow run;
  run.message = "bad \xff byte";
  db::WriteBatch batch;
  AddFailureNotices({row, spec, counts}, run, 1, batch);
  EXPECT_EQ(nlohmann::json::parse(batch.notices.at(0).payload)["message"], "bad \xef\xbf\xbd byte");
}

}  // namespace
}  // namespace scalelab::server
