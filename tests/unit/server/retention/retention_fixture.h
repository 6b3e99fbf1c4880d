// A store with studies that ended in the past, and the files of their attempts.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/retention/retention.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::server {

inline constexpr absl::Duration kDay = absl::Hours(24);

class RetentionTest : public ::testing::Test {
 protected:
  RetentionTest() {
    auto store = db::OpenSqliteStore({directory_.path() + "/scalelab.db"});
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    std::filesystem::create_directories(runs());
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
      std::filesystem::create_directories(attempt.directory);
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
  // Ends in the middle of the first removal, as at a shutdown.
  void InterruptRemoval(const RetentionRules& rules) {
    Retention retention(Options(rules), *store_);
    int asked = 0;
    // Four calls precede a removal of logs, and five a removal of directories: one for each file that is
    // found is among them.
    ASSERT_TRUE(retention.Prune(false, [&] { return ++asked > 5; }).ok());
  }
  RetentionOptions Options(const RetentionRules& rules) const {
    return {rules, runs(), [this] { return now_; }, absl::InfiniteDuration(), absl::InfiniteDuration()};
  }
  void DeleteStudies(const std::vector<int64_t>& ids) {
    db::WriteBatch batch;
    batch.deleted_studies = ids;
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  void MaintainAll() {
    absl::StatusOr<bool> more = true;
    while (more.ok() && *more) more = store_->Maintain();
    EXPECT_TRUE(more.ok()) << more.status();
  }
  bool HasPoints(int64_t study) {
    bool found = false;
    EXPECT_TRUE(store_->ReadPoints({study * 1000, "", {}}, [&](const db::Series&) { found = true; }).ok());
    return found;
  }

  db::TemporaryDirectory directory_;
  std::unique_ptr<db::Store> store_;
  int64_t random_ = 1;
  const absl::Time now_ = absl::FromUnixSeconds(4'000'000'000);  // long after the tests write their files
};

}  // namespace scalelab::server
