#include "server/retention/retention.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/contract/store_fixture.h"
#include "tests/unit/server/core/forwarding_store.h"
#include "tests/unit/server/retention/retention_fixture.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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
    ASSERT_EQ(response.removed_size(), 4);
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
    EXPECT_EQ(response.removed(3).rule(), "directories of deleted studies older than 180d");
    EXPECT_EQ(response.removed(3).studies(), 0);
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

TEST_F(RetentionTest, DirectoriesThatAreTooLargeAreRemovedFromTheStudyThatEndedFirst) {
  CommitStudy(1, 10);
  CommitStudy(2, 40);
  CommitStudy(3, 30);
  CommitStudy(4, 20);
  CommitStudy(5, 50, 1, /*final_study=*/false);
  CommitStudy(6, 60);
  db::WriteBatch hold;  // as a study that is retried and held
  hold.studies = {db::AStudy(6)};
  hold.studies[0].held = true;
  ASSERT_TRUE(store_->Commit(hold).ok());
  RetentionRules rules;
  rules.directories_bytes = 30;  // the four final studies have 13 bytes each
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true);
  for (int64_t study = 1; study <= 6; ++study) EXPECT_TRUE(fs::exists(DirectoryOf(study) + "/model"));
  const v1::PruneResponse done = Prune(rules);
  for (const v1::PruneResponse& response : {planned, done}) {
    ASSERT_EQ(response.removed_size(), 1);
    EXPECT_EQ(response.removed(0).rule(), "attempt directories larger than 0 MiB in total");
    EXPECT_EQ(response.removed(0).studies(), 2);
    EXPECT_EQ(response.removed(0).directories(), 2);
    EXPECT_EQ(response.removed(0).bytes(), 26);
  }
  for (int64_t study : {2, 3}) {
    EXPECT_FALSE(fs::exists(runs() + absl::StrCat("/", study))) << study;
    EXPECT_EQ(db::GetRemoved(*store_, study)->directories, absl::ToUnixMicros(now_));
    EXPECT_TRUE(HasPoints(study));
  }
  for (int64_t study : {1, 4, 5, 6}) EXPECT_TRUE(fs::exists(DirectoryOf(study) + "/model")) << study;
  EXPECT_EQ(Prune(rules).removed(0).studies(), 0) << "the sum is within the limit";
}

TEST_F(RetentionTest, LogsThatAreTooLargeAreRemovedAndOtherFilesDoNotCount) {
  for (int64_t study = 1; study <= 3; ++study) CommitStudy(study, 10 - static_cast<int>(study));
  RetentionRules rules;
  rules.logs_bytes = 18;  // 6 bytes for each study
  EXPECT_EQ(Prune(rules).removed(0).studies(), 0);
  rules.logs_bytes = 17;
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true), done = Prune(rules);
  for (const v1::PruneResponse& response : {planned, done}) {
    EXPECT_EQ(response.removed(0).rule(), "logs larger than 0 MiB in total");
    EXPECT_EQ(response.removed(0).studies(), 1);
    EXPECT_EQ(response.removed(0).bytes(), 6);
  }
  EXPECT_FALSE(fs::exists(DirectoryOf(1) + "/rank-0.out"));
  EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model"));
  EXPECT_TRUE(fs::exists(DirectoryOf(2) + "/rank-0.out"));
  EXPECT_EQ(db::GetRemoved(*store_, 1)->logs, absl::ToUnixMicros(now_));
}

TEST_F(RetentionTest, WhatOtherRulesRemoveDoesNotCountAgainstASize) {
  CommitStudy(1, 400);
  CommitStudy(2, 100);
  CommitStudy(3, 10);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  rules.directories_bytes = 13;
  rules.logs_bytes = 6;
  for (const bool dry_run : {true, false}) {
    const v1::PruneResponse response = Prune(rules, dry_run);
    ASSERT_EQ(response.removed_size(), 4);
    EXPECT_EQ(response.removed(0).studies(), 1) << "study 1 by its age";
    EXPECT_EQ(response.removed(1).rule(), "attempt directories larger than 0 MiB in total");
    EXPECT_EQ(response.removed(1).studies(), 1) << "study 2 by the size";
    EXPECT_EQ(response.removed(2).studies(), 0) << "the logs of study 3 are all that is left";
  }
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
  EXPECT_FALSE(fs::exists(DirectoryOf(2)));
  EXPECT_TRUE(fs::exists(DirectoryOf(3) + "/rank-0.out"));
}

TEST_F(RetentionTest, LinksAndSharedCheckpointsAreNotCountedTwice) {
  CommitStudy(1, 10);
  CommitStudy(2, 5);
  std::ofstream(directory_.path() + "/large") << std::string(1000, 'x');
  fs::create_symlink(directory_.path() + "/large", DirectoryOf(1) + "/link");
  fs::create_directory_symlink(directory_.path(), DirectoryOf(1) + "/all");
  // A second attempt of the same run, which has the same checkpoints.
  db::WriteBatch batch;
  batch.attempts = {db::AnAttempt(1500, 1000, 2)};
  batch.attempts[0].state = db::AttemptState::kSucceeded;
  batch.attempts[0].finished = absl::ToUnixMicros(now_ - 10 * kDay);
  batch.attempts[0].directory = absl::StrCat(runs(), "/1/1000/token-1500");
  ASSERT_TRUE(store_->Commit(batch).ok());
  fs::create_directories(batch.attempts[0].directory);
  fs::create_directories(runs() + "/1/1000/checkpoints");
  std::ofstream(runs() + "/1/1000/checkpoints/weights") << std::string(40, 'x');
  RetentionRules rules;
  rules.directories_bytes = 13 + 40 + 13;
  EXPECT_EQ(Prune(rules).removed(0).studies(), 0);
  rules.directories_bytes -= 1;
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true), done = Prune(rules);
  for (const v1::PruneResponse& response : {planned, done}) {
    EXPECT_EQ(response.removed(0).studies(), 1);
    EXPECT_EQ(response.removed(0).bytes(), 13 + 40);
  }
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_TRUE(fs::exists(directory_.path() + "/large"));
}

TEST_F(RetentionTest, NothingIsRemovedBeforeAllFilesAreMeasured) {
  for (int64_t study = 1; study <= 3; ++study) CommitStudy(study, 10);
  RetentionRules rules;
  rules.directories_bytes = 1;
  Retention retention(Options(rules), *store_);
  // Each call measures only a part of the files.
  int calls = 0;
  bool measured = false;
  while (!measured && calls < 20) {
    ++calls;
    int asked = 0;  // seven times for a study of two files
    const auto response = retention.Prune(/*dry_run=*/false, [&] { return ++asked > 8; });
    ASSERT_TRUE(response.ok()) << response.status();
    measured =
        response->removed(0).rule() != "attempt directories larger than 0 MiB in total (not measured yet)";
    if (measured) break;
    EXPECT_EQ(response->removed(0).studies(), 0);
    for (int64_t study : {1, 2, 3}) EXPECT_TRUE(fs::exists(DirectoryOf(study) + "/model")) << study;
  }
  EXPECT_TRUE(measured) << "a call did not use the sizes that others measured";
  EXPECT_GT(calls, 1);
  ASSERT_TRUE(retention.Prune(/*dry_run=*/false, [] { return false; }).ok());
  for (int64_t study : {1, 2, 3}) EXPECT_FALSE(fs::exists(DirectoryOf(study))) << study;
}

TEST_F(RetentionTest, FilesThatWereRemovedByHandDoNotCount) {
  CommitStudy(1, 10);
  CommitStudy(2, 9);
  RetentionRules rules;
  rules.directories_bytes = 30;
  RetentionOptions options = Options(rules);
  absl::Time now = now_;
  options.now = [&now] { return now; };
  Retention retention(options, *store_);
  const auto prune = [&] { return retention.Prune(/*dry_run=*/false, [] { return false; }); };
  EXPECT_EQ(prune()->removed(0).studies(), 0);
  fs::remove_all(DirectoryOf(2));
  CommitStudy(3, 8);
  now += absl::Hours(1);
  EXPECT_EQ(prune()->removed(0).studies(), 0) << "the size of study 2 was not measured again";
  EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model"));
  CommitStudy(4, 7);
  now += absl::Hours(1);
  EXPECT_EQ(prune()->removed(0).studies(), 1);
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
}

TEST_F(RetentionTest, TheDirectoriesOfDeletedStudiesAreRemoved) {
  for (int64_t study = 1; study <= 4; ++study) CommitStudy(study, 10, 2);
  DeleteStudies({2, 3});
  MaintainAll();
  RetentionRules rules;
  rules.directories = 180 * kDay;
  fs::create_directories(runs() + "/5/5000/token");  // no study had this id yet
  for (const char* other : {"/002", "/allocations/token", "/2x"}) fs::create_directories(runs() + other);
  const v1::PruneResponse planned = Prune(rules, /*dry_run=*/true);
  EXPECT_TRUE(fs::exists(DirectoryOf(2, 1) + "/model"));
  const v1::PruneResponse done = Prune(rules);
  for (const v1::PruneResponse& response : {planned, done}) {
    ASSERT_EQ(response.removed_size(), 2);
    EXPECT_EQ(response.removed(0).studies(), 0);
    EXPECT_EQ(response.removed(1).rule(), "directories of deleted studies older than 180d: 2, 3");
    EXPECT_EQ(response.removed(1).studies(), 2);
    EXPECT_EQ(response.removed(1).directories(), 4);
    EXPECT_EQ(response.removed(1).bytes(), 4 * 13);
  }
  for (const char* gone : {"/2", "/3"}) EXPECT_FALSE(fs::exists(runs() + gone)) << gone;
  for (const char* kept : {"/1/1000/token-1000/model", "/4/4001/token-4001/model", "/5/5000/token", "/002",
                           "/allocations/token", "/2x"})
    EXPECT_TRUE(fs::exists(runs() + kept)) << kept;
  EXPECT_EQ(Prune(rules).removed(1).rule(), "directories of deleted studies older than 180d");
}

TEST_F(RetentionTest, TheDirectoryOfADeletedStudyHasTheAgeOfItsFiles) {
  CommitStudy(1, 5000);
  DeleteStudies({1});
  MaintainAll();
  RetentionOptions options = Options({});
  options.now = [] { return absl::Now() + 100 * kDay; };
  Retention retention(options, *store_);
  const auto prune = [&](absl::Duration age) {
    RetentionRules rules;
    rules.directories = age;
    retention.SetRules(rules);
    return retention.Prune(/*dry_run=*/false, [] { return false; });
  };
  EXPECT_EQ(prune(101 * kDay)->removed(1).studies(), 0);
  EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model"));
  EXPECT_EQ(prune(99 * kDay)->removed(1).studies(), 1);
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
}

TEST_F(RetentionTest, WithoutARuleForDirectoriesThoseOfDeletedStudiesStay) {
  CommitStudy(1, 400);
  DeleteStudies({1});
  MaintainAll();
  RetentionRules rules;
  rules.logs = rules.points = kDay;
  rules.directories_bytes = 1;
  const v1::PruneResponse response = Prune(rules);
  for (const auto& removed : response.removed()) EXPECT_EQ(removed.studies(), 0) << removed.rule();
  EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model"));
}

// Fails one call of ReadRows.
class UnreadableStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ReadRows(const std::function<absl::Status(db::Database&)>& read) override {
    if (--reads_left == 0) return absl::UnavailableError("the database is locked");
    return ForwardingStore::ReadRows(read);
  }
  int reads_left = 0;  // until the one that fails
};

TEST_F(RetentionTest, NothingIsRemovedIfTheStoreCannotSayWhichStudiesAreDeleted) {
  for (int64_t study : {1, 2}) CommitStudy(study, 10);
  DeleteStudies({1});
  MaintainAll();
  UnreadableStore store(std::move(store_));
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), store);
  // They read the size of the database, the studies that are old enough, unfinished removals and the deleted studies.
  for (const int read : {1, 2, 3, 4}) {
    store.reads_left = read;
    const auto response = retention.Prune(/*dry_run=*/false, [] { return false; });
    EXPECT_TRUE(absl::IsUnavailable(response.status())) << read << ": " << response.status();
    EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model")) << read;
  }
  EXPECT_EQ(retention.Prune(/*dry_run=*/false, [] { return false; })->removed(1).studies(), 1);
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
  EXPECT_TRUE(fs::exists(DirectoryOf(2) + "/model"));
}

TEST_F(RetentionTest, ARemovalThatWasInterruptedIsCompleted) {
  CommitStudy(1, 200, 10);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  InterruptRemoval(rules);
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), ElementsAre(1));
  EXPECT_TRUE(fs::exists(DirectoryOf(1, 9)));
  EXPECT_EQ(Prune(rules).removed(0).studies(), 1);
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

TEST_F(RetentionTest, ARemovalThatWasInterruptedWaitsForTheFilesystemOfTheRuns) {
  CommitStudy(1, 200, 10);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  InterruptRemoval(rules);
  // The filesystem is not mounted, so the directory of the runs is empty.
  const std::string elsewhere = directory_.path() + "/elsewhere";
  fs::rename(runs(), elsewhere);
  fs::create_directory(runs());
  EXPECT_EQ(Prune(rules).removed(0).studies(), 0);
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), ElementsAre(1));
  fs::remove(runs());
  fs::rename(elsewhere, runs());
  EXPECT_EQ(Prune(rules).removed(0).studies(), 1);
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

// Fails one call of WriteRows.
class UnwritableStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status WriteRows(const std::function<absl::Status(db::Database&)>& write) override {
    if (--writes_left == 0) return absl::UnavailableError("the database is locked");
    return ForwardingStore::WriteRows(write);
  }
  int writes_left = 0;  // until the one that fails
};

TEST_F(RetentionTest, ARemovalThatWasInterruptedAfterTheLastFileIsCompleted) {
  CommitStudy(1, 200, 2);
  UnwritableStore store(std::move(store_));
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), store);
  const auto prune = [&] { return retention.Prune(/*dry_run=*/false, [] { return false; }); };
  // The writes: that the removal begins, and that it has ended.
  store.writes_left = 2;
  EXPECT_TRUE(absl::IsUnavailable(prune().status()));
  for (const int run : {0, 1}) EXPECT_FALSE(fs::exists(DirectoryOf(1, run))) << run;
  ASSERT_THAT(db::ListUnfinished(store, db::Removal::kDirectories).value(), ElementsAre(1));
  EXPECT_TRUE(prune().ok());
  EXPECT_THAT(db::ListUnfinished(store, db::Removal::kDirectories).value(), IsEmpty());
  EXPECT_FALSE(fs::exists(runs() + "/1"));
}

TEST_F(RetentionTest, ARemovalOfLogsEndsWhenTheirDirectoriesAreRemoved) {
  CommitStudy(1, 200, 10);
  RetentionRules rules;
  rules.logs = 90 * kDay;
  InterruptRemoval(rules);
  ASSERT_THAT(db::ListUnfinished(*store_, db::Removal::kLogs).value(), ElementsAre(1));
  rules.directories = 180 * kDay;
  Prune(rules);
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kLogs).value(), IsEmpty());
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

TEST_F(RetentionTest, TheCheckpointsOfARetriedRunHaveTheAgeOfItsLastAttempt) {
  CommitStudy(1, 200);
  // A directory that is too deep interrupts the removal.
  std::string deep = DirectoryOf(1);
  for (int i = 0; i < 80; ++i) fs::create_directory(deep += "/d");
  RetentionRules rules;
  rules.directories = 180 * kDay;
  RetentionOptions options = Options(rules);
  absl::Time now = now_;
  options.now = [&now] { return now; };
  Retention retention(options, *store_);
  const auto prune = [&] { EXPECT_TRUE(retention.Prune(/*dry_run=*/false, [] { return false; }).ok()); };
  prune();
  ASSERT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), SizeIs(1));
  // The study is retried and ends an hour later.
  now += absl::Hours(1);
  db::WriteBatch batch;
  batch.studies = {db::AStudy(1)};
  batch.studies[0].state = db::StudyState::kFailed;
  batch.attempts = {db::AnAttempt(1500, 1000, 2)};
  batch.attempts[0].state = db::AttemptState::kFailed;
  batch.studies[0].finished = batch.attempts[0].finished = absl::ToUnixMicros(now);
  batch.attempts[0].directory = runs() + "/1/1000/token-1500";
  ASSERT_TRUE(store_->Commit(batch).ok());
  fs::create_directories(batch.attempts[0].directory);
  fs::create_directories(runs() + "/1/1000/checkpoints/step-8");
  fs::remove_all(DirectoryOf(1) + "/d");
  prune();
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
  EXPECT_TRUE(fs::exists(runs() + "/1/1000/checkpoints/step-8"));
  EXPECT_TRUE(fs::exists(batch.attempts[0].directory));
  now += 181 * kDay;
  prune();
  EXPECT_FALSE(fs::exists(runs() + "/1"));
}

// Retries the study when the files of its attempts have been listed.
class RetryingStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::Status ReadRows(const std::function<absl::Status(db::Database&)>& read) override {
    const absl::Status status = ForwardingStore::ReadRows(read);
    if (--reads_left == 0) {
      db::WriteBatch batch;
      batch.studies = {db::AStudy(1)};
      batch.studies[0].state = db::StudyState::kRunning;
      EXPECT_TRUE(Commit(batch).ok());
    }
    return status;
  }
  int reads_left = 0;  // until the study is retried
};

TEST_F(RetentionTest, ARunThatIsRetriedDuringARemovalKeepsItsCheckpoints) {
  CommitStudy(1, 200);
  fs::create_directories(runs() + "/1/1000/checkpoints/step-8");
  RetryingStore store(std::move(store_));
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), store);
  // The reads: the size of the database, the studies that are old enough, unfinished removals, the attempts, whether the
  // run has ended, and the attempts again.
  store.reads_left = 6;
  ASSERT_TRUE(retention.Prune(/*dry_run=*/false, [] { return false; }).ok());
  EXPECT_FALSE(fs::exists(DirectoryOf(1)));
  EXPECT_TRUE(fs::exists(runs() + "/1/1000/checkpoints/step-8"));
}

TEST_F(RetentionTest, ARunThatIsRetriedWhileItsCheckpointsAreRemovedKeepsTheRest) {
  CommitStudy(1, 200);
  const std::string checkpoints = runs() + "/1/1000/checkpoints";
  fs::create_directories(checkpoints);
  for (const char* name : {"a", "b", "c"}) std::ofstream(absl::StrCat(checkpoints, "/", name)) << "state";
  RetryingStore store(std::move(store_));
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), store);
  // The reads: the six of the test above, whether the run has ended, and the same before the first file.
  store.reads_left = 8;
  ASSERT_TRUE(retention.Prune(/*dry_run=*/false, [] { return false; }).ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()), 2);
}

TEST_F(RetentionTest, ARemovalThatIsInterruptedWhileItLooksForFilesRemovesAndRecordsNothing) {
  CommitStudy(1, 200);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), *store_);
  int asked = 0;
  // Three calls precede the one for the first file.
  ASSERT_TRUE(retention.Prune(/*dry_run=*/false, [&] { return ++asked > 3; }).ok());
  EXPECT_TRUE(fs::exists(DirectoryOf(1) + "/model"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

TEST_F(RetentionTest, WhatIsMissingOrLeftAloneIsNotRecordedAsRemoved) {
  CommitStudy(1, 200);
  CommitStudy(2, 200);
  // The directory of another user's attempt.
  db::WriteBatch batch;
  batch.attempts = store_->ListAttempts(2000).value();
  batch.attempts[0].directory = runs() + "/ann/2/2000/token-2000";
  ASSERT_TRUE(store_->Commit(batch).ok());
  fs::create_directories(batch.attempts[0].directory);
  // The filesystem with the runs is not mounted.
  fs::rename(runs() + "/1", directory_.path() + "/1");
  RetentionRules directories, logs;
  directories.directories = logs.logs = 180 * kDay;
  for (const RetentionRules& rules : {directories, logs}) {
    for (const bool dry_run : {true, false})
      EXPECT_EQ(Prune(rules, dry_run).removed(0).studies(), 0) << dry_run;
    for (const int64_t study : {1, 2}) {
      EXPECT_EQ(db::GetRemoved(*store_, study)->directories, 0) << study;
      EXPECT_EQ(db::GetRemoved(*store_, study)->logs, 0) << study;
    }
  }
  fs::rename(directory_.path() + "/1", runs() + "/1");
  EXPECT_EQ(Prune(directories).removed(0).studies(), 1);
  EXPECT_FALSE(fs::exists(runs() + "/1"));
  EXPECT_EQ(db::GetRemoved(*store_, 1)->directories, absl::ToUnixMicros(now_));
  EXPECT_EQ(db::GetRemoved(*store_, 2)->directories, 0);
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

TEST_F(RetentionTest, ACallWithoutEnoughMemoryDoesNotBlockTheNextCall) {
  CommitStudy(1, 400);
  RetentionRules rules;
  rules.directories = 180 * kDay;
  Retention retention(Options(rules), *store_);
  const auto fail = []() -> bool { throw std::bad_alloc(); };
  EXPECT_THROW((void)retention.Prune(false, fail), std::bad_alloc);
  const auto pruned = retention.Prune(false, [] { return false; });
  ASSERT_TRUE(pruned.ok()) << pruned.status();
  EXPECT_EQ(pruned->removed(0).directories(), 1);
}

}  // namespace
}  // namespace scalelab::server
