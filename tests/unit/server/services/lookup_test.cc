#include "server/services/lookup.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "db/sqlite_store.h"
#include "tests/unit/server/core/forwarding_store.h"

namespace scalelab::server {
namespace {

// A store whose rows of runs and studies cannot be read.
class DamagedStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  absl::StatusOr<db::RunRow> GetRun(int64_t) override { return absl::DataLossError("damaged"); }
  absl::StatusOr<db::StudyRow> GetStudy(int64_t) override { return absl::DataLossError("damaged"); }
  absl::StatusOr<db::StudyRow> FindStudy(const std::string&, const db::Viewer&) override {
    return absl::DataLossError("damaged");
  }
};

TEST(Lookup, AReadErrorIsReturnedAndNotTakenForAMissingRow) {
  std::string pattern = "/tmp/scalelab-lookup-XXXXXX";
  const std::string directory = mkdtemp(pattern.data());
  {
    DamagedStore store(*db::OpenSqliteStore({directory + "/test.db"}));
    Identity caller;
    caller.role = Role::kAdmin;
    caller.scope = Scope::kAdmin;
    ClientCall call(caller, "GetRun", false);
    for (const char* name : {"studies/1/runs/2", "runs/2", "2"})
      EXPECT_TRUE(absl::IsDataLoss(FindRun(store, call, name).status())) << name;
    for (const char* name : {"studies/1", "1", "name"})
      EXPECT_TRUE(absl::IsDataLoss(FindStudy(store, call, name).status())) << name;
  }
  std::filesystem::remove_all(directory);
}

TEST(Lookup, ACellOfADeletedStudyIsNotADamagedDatabase) {
  std::string pattern = "/tmp/scalelab-lookup-XXXXXX";
  const std::string directory = mkdtemp(pattern.data());
  {
    const std::unique_ptr<db::Store> store = *db::OpenSqliteStore({directory + "/test.db"});
    const absl::Status deleted = FindCells(*store, 7, {1}).status();
    EXPECT_TRUE(absl::IsNotFound(deleted)) << deleted;
    db::WriteBatch batch;
    db::StudyRow& study = batch.studies.emplace_back();
    study.id = 7;
    study.name = "test";
    study.spec = "{}";
    ASSERT_TRUE(store->Commit(batch).ok());
    EXPECT_TRUE(absl::IsDataLoss(FindCells(*store, 7, {1}).status()));
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace scalelab::server
