#include "server/notify/sender.h"

#include <atomic>
#include <map>
#include <optional>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "db/outbox/outbox.h"
#include "tests/contract/store_fixture.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using State = db::NoticeRow::State;

class SenderTest : public ::testing::Test {
 protected:
  SenderTest() { Open(); }
  void Open() {
    store_.reset();
    auto store = db::OpenSqliteStore({directory_.path() + "/scalelab.db"});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  void Commit(int64_t study, std::vector<std::string> targets, const std::string& channel = "webhook") {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(study)};
    for (const std::string& target : targets) {
      db::NoticeRow& row = batch.notices.emplace_back();
      row.key = absl::StrCat("studies/", study, "/", target);
      row.study_id = study;
      row.channel = channel;
      row.target = target;
      row.payload = "{}";
      row.created = row.due = absl::ToUnixMicros(now());
    }
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  absl::Time now() {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    now_ += by;
  }
  SenderOptions Options() {
    SenderOptions options;
    options.now = [this] { return now(); };
    options.period = absl::Milliseconds(2);
    options.deliver = [this](const db::NoticeRow& notice) {
      absl::MutexLock lock(&mutex_);
      ++deliveries_[notice.target];
      const auto answer = answers_.find(notice.target);
      return answer == answers_.end() ? absl::OkStatus() : answer->second;
    };
    return options;
  }
  int Deliveries(const std::string& target) {
    absl::MutexLock lock(&mutex_);
    return deliveries_[target];
  }
  void Answer(const std::string& target, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    answers_[target] = std::move(status);
  }
  db::NoticeRow Only(int64_t study) {
    const auto notices = db::ListNotices(*store_, study).value();
    EXPECT_THAT(notices, SizeIs(1));
    return notices.empty() ? db::NoticeRow() : notices[0];
  }
  template <class Condition>
  static bool Eventually(const Condition& condition) {
    for (const absl::Time limit = absl::Now() + absl::Seconds(30); absl::Now() < limit;) {
      if (condition()) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return condition();
  }

  db::TemporaryDirectory directory_;
  std::unique_ptr<db::Store> store_;
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'900'000'000);
  std::map<std::string, int> deliveries_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> answers_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SenderTest, EachNotificationIsSentOnce) {
  Commit(1, {"http://a/1", "http://a/2", "http://b/1"});
  Commit(1, {"http://a/1"});  // the same key
  {
    Sender sender(Options(), *store_);
    EXPECT_TRUE(Eventually([&] { return db::CountNotices(*store_)->pending == 0; }));
  }
  for (const char* target : {"http://a/1", "http://a/2", "http://b/1"})
    EXPECT_EQ(Deliveries(target), 1) << target;
  const std::vector<db::NoticeRow> sent = db::ListNotices(*store_, 1).value();
  for (const db::NoticeRow& row : sent) EXPECT_EQ(row.state, State::kSent);
}

TEST_F(SenderTest, AFailureIsTriedAgainLaterAndLater) {
  Answer("http://a/1", absl::UnavailableError("no route"));
  Commit(1, {"http://a/1"});
  Sender sender(Options(), *store_);
  ASSERT_TRUE(Eventually([&] { return Only(1).attempts == 1; }));
  const double first = absl::ToDoubleSeconds(absl::FromUnixMicros(Only(1).due) - now());
  EXPECT_GE(first, 24);
  EXPECT_LE(first, 36);
  Advance(absl::Seconds(37));
  ASSERT_TRUE(Eventually([&] { return Only(1).attempts == 2; }));
  const double second = absl::ToDoubleSeconds(absl::FromUnixMicros(Only(1).due) - now());
  EXPECT_GE(second, 48);
  EXPECT_LE(second, 72);
  EXPECT_EQ(Only(1).error, "no route");
  Answer("http://a/1", absl::OkStatus());
  Advance(absl::Seconds(73));
  ASSERT_TRUE(Eventually([&] { return Only(1).state == State::kSent; }));
}

TEST_F(SenderTest, AfterADayANotificationIsGivenUp) {
  Answer("http://a/1", absl::UnavailableError("no route"));
  Commit(1, {"http://a/1"});
  Sender sender(Options(), *store_);
  ASSERT_TRUE(Eventually([&] { return Only(1).attempts == 1; }));
  Advance(absl::Hours(25));
  ASSERT_TRUE(Eventually([&] { return Only(1).state == State::kGivenUp; }));
  EXPECT_EQ(db::CountNotices(*store_)->given_up, 1);
}

TEST_F(SenderTest, WhatCannotSucceedIsGivenUpAtOnce) {
  Answer("http://a/1", absl::FailedPreconditionError("the server refuses with status 404"));
  Commit(1, {"http://a/1"});
  Sender sender(Options(), *store_);
  ASSERT_TRUE(Eventually([&] { return Only(1).state == State::kGivenUp; }));
  EXPECT_EQ(Deliveries("http://a/1"), 1);
}

TEST_F(SenderTest, AReceiverThatDoesNotAnswerDelaysOnlyItsOwn) {
  absl::Notification release;
  SenderOptions options = Options();
  options.deliver = [&, deliver = options.deliver](const db::NoticeRow& notice) {
    if (notice.target.find("//slow/") != std::string::npos) release.WaitForNotification();
    return deliver(notice);
  };
  std::vector<std::string> targets;
  for (int i = 0; i < 1000; ++i) targets.push_back(absl::StrCat("http://slow/", i));
  Commit(1, targets);
  Advance(absl::Seconds(1));
  Commit(2, {"http://fast/1"});
  Sender sender(options, *store_);
  EXPECT_TRUE(Eventually([&] { return Deliveries("http://fast/1") == 1; }));
  EXPECT_FALSE(sender.Stop(absl::ZeroDuration()));
  release.Notify();
  // The detached threads use the sender until they have ended.
  EXPECT_TRUE(Eventually([&] { return sender.Stop(absl::ZeroDuration()); }));
}

class CountingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ReadRows(const std::function<absl::Status(db::Database&)>& read) override {
    ++reads;
    return ForwardingStore::ReadRows(read);
  }
  std::atomic<int> reads = 0;
};

TEST_F(SenderTest, NotificationsForABusyReceiverAreNotReadInEachPeriod) {
  std::vector<std::string> targets;
  for (int i = 0; i < 1000; ++i) targets.push_back(absl::StrCat("http://slow/", i));
  Commit(1, targets);
  auto counting = std::make_unique<CountingStore>(std::move(store_));
  std::atomic<int>& reads = counting->reads;
  store_ = std::move(counting);
  absl::Notification release;
  std::atomic<int> searches = 0;
  SenderOptions options = Options();
  options.now = [&] {
    ++searches;  // each search calls this function once, before it reads
    return now();
  };
  options.deliver = [&, deliver = options.deliver](const db::NoticeRow& notice) {
    if (notice.target.find("//slow/") != std::string::npos) release.WaitForNotification();
    return deliver(notice);
  };
  Sender sender(options, *store_);
  EXPECT_TRUE(Eventually([&] { return searches >= 100; }));
  // Three queries read all notifications. Later searches only find out that there is no other one.
  const int read = reads;
  EXPECT_LE(read, searches + 3);
  Commit(2, {"http://fast/1"});
  EXPECT_TRUE(Eventually([&] { return Deliveries("http://fast/1") == 1; }));
  release.Notify();
  EXPECT_TRUE(Eventually([&] { return Deliveries("http://slow/1") == 1; }));
}

TEST_F(SenderTest, ADeliveryWhoseRecordWasLostIsRepeatedWithTheSameKey) {
  Commit(1, {"http://a/1"});
  std::vector<std::string> keys;
  // Simulates a crash between the delivery and its record.
  for (int i = 0; i < 2; ++i) {
    const std::vector<db::NoticeRow> due = db::ListDueNotices(*store_, absl::ToUnixMicros(now()), 10).value();
    for (const db::NoticeRow& row : due) keys.push_back(row.key);
    Open();
  }
  EXPECT_THAT(keys, ElementsAre("studies/1/http://a/1", "studies/1/http://a/1"));
}

TEST_F(SenderTest, ANotificationOfADeletedStudyIsSentAndThenDeleted) {
  Commit(1, {"http://a/1"});
  db::WriteBatch batch;
  batch.deleted_studies = {1};
  ASSERT_TRUE(store_->Commit(batch).ok());
  for (absl::StatusOr<bool> more = true; more.ok() && *more;) more = store_->Maintain();
  Sender sender(Options(), *store_);
  EXPECT_TRUE(
      Eventually([&] { return Deliveries("http://a/1") == 1 && db::ListNotices(*store_, 1)->empty(); }));
}

class UnwritableStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status WriteRows(const std::function<absl::Status(db::Database&)>& write) override {
    return full ? absl::ResourceExhaustedError("the disk is full") : ForwardingStore::WriteRows(write);
  }
  std::atomic<bool> full = true;
};

TEST_F(SenderTest, ADeliveryThatCannotBeRecordedIsNotRepeated) {
  Commit(1, {"http://a/1"});
  auto unwritable = std::make_unique<UnwritableStore>(std::move(store_));
  std::atomic<bool>& full = unwritable->full;
  store_ = std::move(unwritable);
  Sender sender(Options(), *store_);
  ASSERT_TRUE(Eventually([&] { return Deliveries("http://a/1") > 0; }));
  absl::SleepFor(absl::Milliseconds(200));  // 100 periods
  full = false;
  ASSERT_TRUE(Eventually([&] { return Only(1).state == State::kSent; }));
  EXPECT_EQ(Deliveries("http://a/1"), 1);
}

TEST_F(SenderTest, AWallClockThatIsSetBackDelaysNoNotification) {
  std::optional<WallClockShift> ahead(std::in_place, 3600);
  Sender sender(Options(), *store_);
  absl::SleepFor(absl::Milliseconds(100));  // its threads wait now
  ahead.reset();                            // the clock is set back by an hour
  Commit(1, {"http://a/1"});
  EXPECT_TRUE(Eventually([&] { return Deliveries("http://a/1") == 1; }));
}

}  // namespace
}  // namespace scalelab::server
