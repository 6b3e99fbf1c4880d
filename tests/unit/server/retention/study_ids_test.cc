#include "server/retention/study_ids.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "db/retention/retention.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;

class StudyIds : public ::testing::Test {
 protected:
  StudyIds() : store_(*db::OpenSqliteStore({directory_.path() + "/scalelab.db"})) {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(1), db::AStudy(2)};
    EXPECT_TRUE(store_->Commit(batch).ok());
    for (const char* name : {"1", "2", "allocations", "077"}) MakeDirectory(name);
  }
  void MakeDirectory(const std::string& name) { fs::create_directories(runs_ + "/" + name); }
  // Returns the id after which new studies are numbered.
  int64_t LastId() {
    const absl::Status status = SkipIdsOfDirectories(runs_, *store_);
    EXPECT_TRUE(status.ok()) << status;
    return store_->Load()->last_study_id;
  }

  db::TemporaryDirectory directory_;
  const std::string runs_ = directory_.path() + "/runs";
  std::unique_ptr<db::Store> store_;
};

TEST_F(StudyIds, DirectoriesOfStoredStudiesChangeNothing) { EXPECT_EQ(LastId(), 2); }

TEST_F(StudyIds, NewStudiesGetLargerIdsThanDirectoriesOfLostStudies) {
  for (const char* name : {"3", "12", "9"}) MakeDirectory(name);
  EXPECT_EQ(LastId(), 12);
  fs::remove_all(runs_);
  EXPECT_EQ(LastId(), 12) << "the id is stored";
  db::WriteBatch batch;
  batch.studies = {db::AStudy(13)};
  ASSERT_TRUE(store_->Commit(batch).ok());
  EXPECT_EQ(LastId(), 13);
}

TEST_F(StudyIds, ADirectoryWhoseNumberIsTooLargeIsIgnored) {
  MakeDirectory(absl::StrCat(INT64_MAX));
  MakeDirectory("5");
  EXPECT_EQ(LastId(), 5);
}

TEST_F(StudyIds, DirectoriesOfOtherUsersAreIgnored) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory to another user";
  MakeDirectory("5");
  ASSERT_EQ(chown((runs_ + "/5").c_str(), 65534, 65534), 0);
  EXPECT_EQ(LastId(), 2);
}

}  // namespace
}  // namespace scalelab::server
