#include "server/retention/retention.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kDay = absl::Hours(24);

class RetentionTest : public ::testing::Test {
 protected:
  RetentionTest() {
    auto store = db::OpenSqliteStore({directory_.path() + "/scalelab.db"});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    fs::create_directories(runs());
  }
  std::string runs() const { return directory_.path() + "/runs"; }
  // Commits a study of `count` runs with points and files that ended `days` ago.
  void CommitStudy(int64_t study, int days, int count = 1, bool final_study = true, int points = 3) {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(study)};
    const db::Micros finished = absl::ToUnixMicros(now_ - days * kDay);
    batch.studies[0].state = final_study ? db::StudyState::kSucceeded : db::StudyState::kRunning;
    batch.studies[0].finished = final_study ? finished : 0;
    for (int i = 0; i < count; ++i) {
      const int64_t id = study * 1000 + i;
      batch.runs.push_back(db::ARun(id, study, id));
      batch.attempts.push_back(db::AnAttempt(id, id));
      db::AttemptRow& attempt = batch.attempts.back();
      attempt.state = db::AttemptState::kSucceeded;
      attempt.finished = finished;
      attempt.directory = DirectoryOf(study, i);
      batch.appends.push_back(db::AnAppend(id, 0, 0, 10L * points));
      batch.appends.back().columns = {db::AColumn("loss", 0, std::vector<double>(points, 0.1 * i))};
      for (double& value : batch.appends.back().columns[0].value)
        value = static_cast<double>(random_ = random_ * 48271 % 2147483647);
      fs::create_directories(attempt.directory);
      std::ofstream(attempt.directory + "/rank-0.out") << "output";
      std::ofstream(attempt.directory + "/model") << "weights";
    }
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  std::string DirectoryOf(int64_t study, int i = 0) const {
    return absl::StrCat(runs(), "/", study, "/", study * 1000 + i, "/token-", study * 1000 + i);
  }
  v1::PruneResponse Prune(const RetentionRules& rules, bool dry_run = false) {
    Retention retention(Options(rules), *store_);
    auto response = retention.Prune(dry_run, [] { return false; });
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::PruneResponse());
  }
  RetentionOptions Options(const RetentionRules& rules) const {
    return {rules, runs(), [this] { return now_; }, absl::InfiniteDuration(), absl::InfiniteDuration()};
  }
  bool HasPoints(int64_t study) {
    bool found = false;
    EXPECT_TRUE(store_->ReadPoints({study * 1000, "", {}}, [&](const db::Series&) { found = true; }).ok());
    return found;
  }

  db::TemporaryDirectory directory_;
  std::unique_ptr<db::Store> store_;
  int64_t random_ = 1;
  const absl::Time now_ = absl::FromUnixSeconds(1'900'000'000);
};

TEST_F(RetentionTest, EachRuleRemovesWhatIsOlderAndNothingElse) {
  CommitStudy(1, 400);
  CommitStudy(2, 100);
  CommitStudy(3, 10);
  CommitStudy(4, 400, 1, /*final_study=*/false);
  RetentionRules rules;
  rules.points = 365 * kDay;
  rules.logs = 90 * kDay;
  rules.directories = 180 * kDay;
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true);
  for (int64_t study : {1, 2, 3, 4}) {
    EXPECT_TRUE(HasPoints(study));
    EXPECT_TRUE(fs::exists(DirectoryOf(study) + "/rank-0.out"));
  }
  const v1::PruneResponse done = Prune(rules);
  for (const v1::PruneResponse& response : {planned, done}) {
    ASSERT_EQ(response.removed_size(), 3);
    EXPECT_EQ(response.removed(0).rule(), "attempt directories older than 180d");
    EXPECT_EQ(response.removed(0).studies(), 1);
    EXPECT_EQ(response.removed(0).directories(), 1);
    EXPECT_EQ(response.removed(0).bytes(), 13);
    EXPECT_EQ(response.removed(1).rule(), "logs older than 90d");
    EXPECT_EQ(response.removed(1).studies(), 1);
    EXPECT_EQ(response.removed(1).bytes(), 6);
    EXPECT_EQ(response.removed(2).rule(), "points older than 365d");
    EXPECT_EQ(response.removed(2).studies(), 1);
    EXPECT_EQ(response.removed(2).points(), 3);
  }
  EXPECT_FALSE(HasPoints(1));
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
  EXPECT_TRUE(HasPoints(2));
  EXPECT_FALSE(fs::exists(DirectoryOf(2) + "/rank-0.out"));
  EXPECT_TRUE(fs::exists(DirectoryOf(2) + "/model"));
  for (int64_t study : {3, 4}) {
    EXPECT_TRUE(HasPoints(study));
    EXPECT_TRUE(fs::exists(DirectoryOf(study) + "/rank-0.out"));
  }
  EXPECT_EQ(db::GetRemoved(*store_, 1)->points, absl::ToUnixMicros(now_));
  EXPECT_EQ(db::GetRemoved(*store_, 2)->logs, absl::ToUnixMicros(now_));
  const v1::PruneResponse again = Prune(rules);
  for (const auto& removed : again.removed()) EXPECT_EQ(removed.studies(), 0) << removed.rule();
}

TEST_F(RetentionTest, ADatabaseThatIsTooLargeLosesThePointsOfTheOldestStudies) {
  for (int64_t study = 1; study <= 4; ++study)
    CommitStudy(study, 100 - static_cast<int>(study), 20, true, 20'000);
  CommitStudy(5, 500, 1, /*final_study=*/false, 20'000);
  const db::DatabaseSize before = db::GetDatabaseSize(*store_).value();
  RetentionRules rules;
  rules.database_bytes = (before.bytes - before.free_bytes) * 6 / 10;
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true);
  ASSERT_EQ(planned.removed_size(), 1);
  EXPECT_EQ(planned.removed(0).studies(), 2);
  const v1::PruneResponse done = Prune(rules);
  EXPECT_EQ(done.removed(0).studies(), 2);
  EXPECT_EQ(done.removed(0).points(), 2 * 20 * 20'000);
  EXPECT_EQ(done.database_bytes_before(), before.bytes);
  EXPECT_FALSE(HasPoints(1));
  EXPECT_FALSE(HasPoints(2));
  for (int64_t study : {3, 4, 5}) EXPECT_TRUE(HasPoints(study)) << study;
  const db::DatabaseSize after = db::GetDatabaseSize(*store_).value();
  EXPECT_LE(after.bytes - after.free_bytes, rules.database_bytes + (int64_t{1} << 20));
  EXPECT_EQ(Prune(rules, true).removed(0).studies(), 0);
}

TEST_F(RetentionTest, ARemovalThatWasInterruptedIsCompleted) {
  CommitStudy(1, 200, 10);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  {
    Retention retention(Options(rules), *store_);
    int asked = 0;
    ASSERT_TRUE(retention.Prune(false, [&] { return ++asked > 1; }).ok());
  }
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), ElementsAre(1));
  EXPECT_TRUE(fs::exists(DirectoryOf(1, 9)));
  EXPECT_EQ(Prune(rules).removed(0).studies(), 1);
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

TEST_F(RetentionTest, AnAttemptThatCannotBeRemovedDoesNotKeepTheOthers) {
  CommitStudy(1, 200, 3);
  const std::string stuck = DirectoryOf(1, 1);
  std::string deep = stuck;
  for (int i = 0; i < 80; ++i) fs::create_directory(deep += "/d");
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Prune(rules);
  EXPECT_FALSE(fs::exists(DirectoryOf(1, 0)));
  EXPECT_TRUE(fs::exists(stuck));
  EXPECT_FALSE(fs::exists(DirectoryOf(1, 2)));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), SizeIs(1));
  fs::remove_all(stuck + "/d");
  Prune(rules);
  EXPECT_FALSE(fs::exists(stuck));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

TEST_F(RetentionTest, TheThreadAppliesTheRules) {
  CommitStudy(1, 400);
  RetentionRules rules;
  rules.points = 365 * kDay;
  RetentionOptions options = Options(rules);
  options.first = absl::Milliseconds(1);
  Retention retention(options, *store_);
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (HasPoints(1) && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(HasPoints(1));
  EXPECT_TRUE(retention.Stop(absl::Seconds(30)));
}

TEST_F(RetentionTest, NewRulesApplyWithoutARestart) {
  CommitStudy(1, 400);
  RetentionOptions options = Options({});
  options.first = options.period = absl::Milliseconds(1);
  Retention retention(options, *store_);
  const auto unchanged = retention.Prune(/*dry_run=*/false, [] { return false; });
  ASSERT_TRUE(absl::IsUnavailable(unchanged.status()) || unchanged->removed_size() == 0);
  EXPECT_TRUE(HasPoints(1));
  RetentionRules rules;
  rules.points = 365 * kDay;
  retention.SetRules(rules);
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (HasPoints(1) && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(HasPoints(1));
}

TEST_F(RetentionTest, ARestoredAttemptHasNoFilesToRemove) {
  CommitStudy(1, 400);
  db::WriteBatch batch;
  batch.attempts = store_->ListAttempts(1000).value();
  batch.attempts[0].directory = "";
  ASSERT_TRUE(store_->Commit(batch).ok());
  RetentionRules rules;
  rules.directories = 180 * kDay;
  EXPECT_EQ(Prune(rules).removed(0).directories(), 0);
  EXPECT_TRUE(fs::exists(DirectoryOf(1)));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

// Holds Maintain until it is released.
class HeldStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<bool> Maintain() override {
    held.Notify();
    released.WaitForNotification();
    return false;
  }
  absl::Notification held, released;
};

TEST_F(RetentionTest, ASecondCallIsRefusedWhileOneIsAtWork) {
  CommitStudy(1, 400);
  HeldStore store(std::move(store_));
  RetentionRules rules;
  rules.points = 365 * kDay;
  Retention retention(Options(rules), store);
  std::thread first([&] { EXPECT_TRUE(retention.Prune(false, [] { return false; }).ok()); });
  store.held.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(retention.Prune(false, [] { return false; }).status()));
  EXPECT_TRUE(absl::IsUnavailable(retention.Prune(true, [] { return false; }).status()));
  store.released.Notify();
  first.join();
}

}  // namespace
}  // namespace scalelab::server
