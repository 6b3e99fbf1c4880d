// The contract of every Store: notifications are stored with the change that they belong to.
#include "db/outbox/outbox.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreOutbox : public StoreContract {
 protected:
  static NoticeRow ANotice(const std::string& key, Micros due = 10) {
    NoticeRow row;
    row.key = key;
    row.study_id = 1;
    row.channel = "mail";
    row.target = "ada@uni.example";
    row.payload = R"({"event":"end"})";
    row.created = row.due = due;
    return row;
  }
  std::vector<std::string> Due(Micros now) {
    std::vector<std::string> keys;
    const std::vector<NoticeRow> due = ListDueNotices(*store_, now, 100).value();
    for (const NoticeRow& row : due) keys.push_back(row.key);
    return keys;
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreOutbox, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StoreOutbox, ANotificationIsDurableWithItsCommit) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.notices = {ANotice("a", 20), ANotice("b", 10)};
  Commit(batch);
  Reopen();
  EXPECT_THAT(Due(9), IsEmpty());
  EXPECT_THAT(Due(20), ElementsAre("b", "a"));
  const NoticeRow row = ListDueNotices(*store_, 10, 1)->at(0);
  EXPECT_EQ(row.target, "ada@uni.example");
  EXPECT_EQ(row.payload, R"({"event":"end"})");
  EXPECT_EQ(row.state, NoticeRow::State::kPending);
}

TEST_P(StoreOutbox, ACommitThatFailsLeavesNoNotification) {
  WriteBatch batch;
  batch.attempts = {AnAttempt(1, 777)};  // run 777 does not exist
  batch.notices = {ANotice("a")};
  EXPECT_FALSE(store_->Commit(batch).ok());
  EXPECT_THAT(Due(100), IsEmpty());
}

TEST_P(StoreOutbox, AnOccasionIsRecordedOnce) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.notices = {ANotice("a"), ANotice("a")};
  Commit(batch);
  NoticeRow sent = ListDueNotices(*store_, 10, 1)->at(0);
  sent.state = NoticeRow::State::kSent;
  ASSERT_TRUE(UpdateNotice(*store_, sent).ok());
  batch.notices = {ANotice("a")};
  Commit(batch);
  EXPECT_THAT(Due(100), IsEmpty()) << "sent already";
}

TEST_P(StoreOutbox, TheMarkShowsWhatIsNewOrHasBecomeDue) {
  EXPECT_EQ(GetDueMark(*store_, 100).value(), DueMark());
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.notices = {ANotice("a", 10), ANotice("b", 20)};
  Commit(batch);
  const DueMark first = GetDueMark(*store_, 10).value();
  EXPECT_EQ(first.last_due, 10);
  EXPECT_EQ(GetDueMark(*store_, 19).value(), first);
  const DueMark second = GetDueMark(*store_, 20).value();
  EXPECT_FALSE(second == first) << "b is due";
  batch.notices = {ANotice("c", 10)};
  Commit(batch);
  EXPECT_FALSE(GetDueMark(*store_, 20).value() == second) << "c is new";
}

TEST_P(StoreOutbox, AnUpdateKeepsTheRest) {
  WriteBatch batch;
  batch.studies = {AStudy(1)};
  batch.notices = {ANotice("a")};
  Commit(batch);
  NoticeRow row = ListDueNotices(*store_, 10, 1)->at(0);
  row.attempts = 3;
  row.error = "no route";
  row.due = 50;
  ASSERT_TRUE(UpdateNotice(*store_, row).ok());
  EXPECT_THAT(Due(49), IsEmpty());
  const std::vector<NoticeRow> listed = ListNotices(*store_, 1).value();
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].attempts, 3);
  EXPECT_EQ(listed[0].error, "no route");
  EXPECT_EQ(listed[0].channel, "mail");
  row.state = NoticeRow::State::kGivenUp;
  ASSERT_TRUE(UpdateNotice(*store_, row).ok());
  EXPECT_EQ(CountNotices(*store_)->pending, 0);
  EXPECT_EQ(CountNotices(*store_)->given_up, 1);
}

}  // namespace
}  // namespace scalelab::db
