// Tests that databases of every older version, with rows in them, migrate to the newest version and
// keep their contents.
#include "db/migrations.h"

#include "db/sqlite/sqlite.h"
#include "db/sqlite_store.h"
#include "db/study_files/study_files.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::HasSubstr;

class Migration : public ::testing::Test {
 protected:
  std::unique_ptr<Database> Raw() {
    auto db = Database::Open(path_, Database::Mode::kReadWrite, 1000);
    EXPECT_TRUE(db.ok()) << db.status();
    return std::move(*db);
  }
  // Makes a database as a program with schema `version` would have left it.
  void MakeVersion(int version) {
    auto db = Raw();
    for (int step = 0; step < version; ++step) ASSERT_TRUE(db->Execute(Migrations()[step]).ok());
    ASSERT_TRUE(db->Execute("PRAGMA user_version=" + std::to_string(version)).ok());
    if (version == 0) return;
    ASSERT_TRUE(db->Execute("PRAGMA application_id=" + std::to_string(kApplicationId)).ok());
    ASSERT_TRUE(
        db->Execute("INSERT INTO study (id, name, owner, request_id, spec, state, priority, runs, created, "
                    "started, "
                    "finished, cancel_requested) VALUES (1, 'old', 'ada', '', '{}', 1, 0, 0, 5, 0, 0, 0)")
            .ok());
    ASSERT_TRUE(db->Execute("INSERT INTO counter VALUES ('study', 4)").ok());
  }
  std::string Schema() {
    return *Raw()->QueryText(
        "SELECT group_concat(sql, char(10)) FROM (SELECT sql FROM sqlite_schema ORDER BY name)");
  }
  absl::StatusOr<std::unique_ptr<Store>> OpenStore() {
    SqliteOptions options;
    options.path = path_;
    return OpenSqliteStore(options);
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.path() + "/scalelab.db";
};

TEST_F(Migration, EveryOlderVersionBecomesTheNewestAndKeepsItsRows) {
  std::string newest;
  for (int version = 0; version <= NewestSchema(); ++version) {
    SCOPED_TRACE(version);
    for (const char* suffix : {"", ".id"}) std::filesystem::remove(path_ + suffix);
    MakeVersion(version);
    {
      auto store = OpenStore();
      ASSERT_TRUE(store.ok()) << store.status();
      if (version > 0) {
        EXPECT_EQ((*store)->GetStudy(1)->name, "old");
        EXPECT_EQ((*store)->Load()->last_study_id, 4);
      }
      WriteBatch batch;
      batch.studies = {AStudy(9)};
      EXPECT_TRUE((*store)->Commit(batch).ok());
    }
    EXPECT_EQ(*Raw()->QueryInt("PRAGMA user_version"), NewestSchema());
    EXPECT_EQ(*Raw()->QueryInt("PRAGMA application_id"), kApplicationId);
    EXPECT_EQ(*Raw()->QueryText("PRAGMA integrity_check"), "ok");
    if (newest.empty()) newest = Schema();
    EXPECT_EQ(Schema(), newest);
  }
}

// FNV-1a, 64 bits: unlike std::hash, it is the same on every machine.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

TEST(Migrations, AStepThatWasReleasedIsNeverChanged) {
  const std::vector<uint64_t> released = {0xa65a02eec2aff9d8, 0x25de8a262b602911, 0xa54b08bc214a66ff,
                                          0x90b9b460a7c01e1a, 0x75d7a65f8c936c30, 0x3f59f3514fff6298,
                                          0xfc49aa3ece6477a3, 0x4bbfcc8953053c4d, 0x18e5f3243f86920c,
                                          0x42c264a79fa0f045, 0x26ab145d008da284, 0x36934f6a80a43d13};
  ASSERT_EQ(Migrations().size(), released.size()) << "a new step: add its hash here";
  for (size_t step = 0; step < released.size(); ++step) {
    EXPECT_EQ(Hash(Migrations()[step]), released[step])
        << "step " << step << " of db/migrations.cc was changed, but databases that have taken it exist and "
        << "will not take it again: undo that, and put the change into a new step at the end";
  }
}

TEST_F(Migration, CellsOfSchemaFourKeepTheirParameters) {
  MakeVersion(4);
  const std::string key = R"({"ranks":2})", spec = R"({"ranks":2,"learning_rate":0.30000000000000004})";
  ASSERT_TRUE(
      Raw()
          ->Execute("INSERT INTO cell VALUES (3, 1, 0, 'native/ddp', 'resnet20', 'fp32', 'auto', 2, 64, '" +
                    key + "', '" + spec +
                    "', 0); "
                    "INSERT INTO run (id, study_id, cell_id, repeat, position, state, cause, attempts, "
                    "message, started, finished) VALUES (5, 1, 3, 0, 0, 1, 0, 0, '', 0, 0)")
          .ok());
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store.ok()) << store.status();
    for (const std::vector<CellRow>& cells :
         {(*store)->ListCells(1).value(), (*store)->GetCells({3}).value(), (*store)->Load()->cells}) {
      ASSERT_EQ(cells.size(), 1u);
      EXPECT_EQ(cells[0].key, key);
      EXPECT_EQ(cells[0].spec, spec);
    }
    EXPECT_TRUE((*store)->ListCellValues(1)->empty());
  }
  EXPECT_EQ(*Raw()->QueryText("SELECT key FROM runs WHERE id = 5"), key);
  EXPECT_EQ(*Raw()->QueryText("SELECT spec FROM cells WHERE id = 3"), spec);
}

TEST_F(Migration, AllocationsOfSchemaFiveBecomeUsage) {
  MakeVersion(5);
  const auto allocation = [](int id, int state, int64_t started, int64_t ended) {
    return absl::StrCat("INSERT INTO allocation VALUES (", id, ", 'token-", id, "', 1, 0, ", state,
                        ", '', 2, 4, 1, 1, '', 0, ", started, ", ", ended, ");");
  };
  const int64_t week = 7 * 24 * kHour, second = 1'000'000;
  ASSERT_TRUE(Raw()
                  ->Execute("UPDATE study SET spec = '{\"resources\":{\"partition\":\"gpu\"}}';" +
                            allocation(1, 5, week, week + 10 * second) +
                            allocation(2, 5, 3 * week, 3 * week + 100 * second) +
                            allocation(3, 5, 0, 5 * week) + allocation(4, 3, 3 * week, 0))
                  .ok());
  const auto store = OpenStore();
  ASSERT_TRUE(store.ok()) << store.status();
  const Snapshot loaded = (*store)->Load().value();
  ASSERT_EQ(loaded.service.usage.size(), 1u);
  const UsageRow& ada = loaded.service.usage[0];
  EXPECT_EQ(ada.owner, "ada");
  EXPECT_EQ(ada.at, 5 * week);
  EXPECT_DOUBLE_EQ(ada.node_seconds, 2 * 110);
  EXPECT_DOUBLE_EQ(ada.gpu_seconds, 8 * 110);
  EXPECT_DOUBLE_EQ(ada.decayed_node_seconds, 2 * (10 / 8.0 + 100 / 2.0))
      << "three whole weeks and one are over";
  ASSERT_EQ(loaded.allocations.size(), 1u);
  EXPECT_EQ(loaded.allocations[0].owner, "ada");
  EXPECT_EQ(loaded.allocations[0].partition, "gpu");
  EXPECT_EQ(loaded.allocations[0].charged_until, 0);
  EXPECT_EQ((*store)->GetAllocation(2)->held, 100 * second);
}

TEST_F(Migration, PointsOfSchemaEightAreRead) {
  MakeVersion(8);
  ASSERT_TRUE(
      Raw()
          ->Execute(
              "PRAGMA foreign_keys=OFF; INSERT INTO metric_key VALUES (1, 'loss'), (2, 'share'); "
              "INSERT INTO series VALUES (1, 1, 1, 0), (2, 1, 2, 0); "
              "INSERT INTO point_axis (id, uses, count, line_base, line_stride, line_shift, line, "
              "step_base, step_stride, step_shift, step, time_base, time_stride, time_shift, time) VALUES "
              "(4294967297, 2, 3, 5, 1, 0, x'', 10, 10, 0, x'', 0x4000000000000000, 0, 50, "
              "x'000000010003'); "
              "INSERT INTO point_chunk (id, count, axis, kind, base, shift, value, line, step, time) "
              "VALUES (4294967301, 3, 4294967297, 1, 0x4000000000000000, 50, x'000001000300', x'', x'', "
              "x''), (8589934597, 3, 4294967297, 5, -5, 0, x'000110', x'', x'', x'')")
          .ok());
  const auto store = OpenStore();
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<Series> all;
  ASSERT_TRUE(
      (*store)->ReadPoints({1, "", {}}, [&](Series series) { all.push_back(std::move(series)); }).ok());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0].value, ::testing::ElementsAre(2, 2.5, 3.5));
  EXPECT_THAT(all[0].step, ::testing::ElementsAre(10, 20, 30));
  EXPECT_THAT(all[1].value, ::testing::ElementsAre(-0.005, -0.004, 0.011));
  EXPECT_EQ(*Raw()->QueryText("SELECT group_concat(value) FROM points"), "2.0,2.5,3.5,-0.005,-0.004,0.011");
}

TEST_F(Migration, AttemptsOfSchemaNineHaveTheResultsOfTheirRuns) {
  MakeVersion(9);
  ASSERT_TRUE(
      Raw()
          ->Execute(
              "INSERT INTO run (id, study_id, cell_id, repeat, position, state, cause, attempts, message, "
              "started, finished) VALUES (5, 1, 3, 0, 0, 3, 0, 2, '', 0, 0); "
              "INSERT INTO attempt (id, run_id, number, token, allocation_id, state, cause, message, "
              "nodes, directory, parameter_hash, assigned, started, finished) VALUES "
              "(7, 5, 1, 'a', 0, 5, 15, '', '', '', '', 0, 0, 0), "
              "(8, 5, 2, 'b', 0, 4, 0, '', '', '', '', 0, 0, 0); "
              "INSERT INTO run_summary (run_id, attempt_id, throughput, fingerprint, steps) VALUES "
              "(5, 8, 812.5, '', 10)")
          .ok());
  {
    const auto store = OpenStore();
    ASSERT_TRUE(store.ok()) << store.status();
    const std::vector<AttemptRow> attempts = (*store)->ListAttempts(5).value();
    ASSERT_EQ(attempts.size(), 2u);
    EXPECT_EQ(attempts[0].throughput, std::nullopt);
    EXPECT_EQ(attempts[1].throughput, std::nullopt);
  }
  EXPECT_EQ(*Raw()->QueryText("SELECT group_concat(id || ' ' || ifnull(throughput, 'none')) FROM attempts"),
            "7 none,8 812.5");
}

TEST_F(Migration, StudiesOfSchemaTenHaveNoStudyFile) {
  MakeVersion(10);
  const auto store = OpenStore();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(GetStudyFile(**store, 1).value(), "");
  WriteBatch batch;
  batch.studies = {AStudy(9)};
  batch.study_files = {{9, "study: new\n"}};
  ASSERT_TRUE((*store)->Commit(batch).ok());
  EXPECT_EQ(GetStudyFile(**store, 9).value(), "study: new\n");
}

TEST_F(Migration, JobsOfSchemaElevenAreNotCancelled) {
  MakeVersion(11);
  ASSERT_TRUE(Raw()
                  ->Execute("INSERT INTO allocation (id, token, study_id, run_id, state, external_id, nodes, "
                            "ranks_per_node, cpus_per_rank, gpus_per_rank, reason, created, started, ended, "
                            "owner, partition, charged_until, held) VALUES "
                            "(5, 'a', 1, 0, 3, '', 1, 1, 1, 0, '', 1, 2, 0, 'ada', '', 0, 0)")
                  .ok());
  const auto store = OpenStore();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->GetAllocation(5)->cancelled, 0);
}

TEST_F(Migration, ANewerVersionIsRefusedAndLeftAlone) {
  MakeVersion(NewestSchema());
  ASSERT_TRUE(Raw()->Execute("PRAGMA user_version=" + std::to_string(NewestSchema() + 5)).ok());
  const absl::Status status = OpenStore().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version " + std::to_string(NewestSchema() + 5)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a newer scalelab is needed"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  EXPECT_EQ(*Raw()->QueryInt("PRAGMA user_version"), NewestSchema() + 5);
}

TEST_F(Migration, ADatabaseOfAnotherProgramIsRefusedAndLeftAlone) {
  ASSERT_TRUE(Raw()->Execute("CREATE TABLE theirs (x)").ok());
  const absl::Status status = OpenStore().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("another program"));
  EXPECT_EQ(*Raw()->QueryInt("SELECT count(*) FROM sqlite_schema"), 1);
  EXPECT_EQ(*Raw()->QueryText("PRAGMA journal_mode"), "delete");
}

TEST_F(Migration, AStepThatFailsLeavesTheOlderVersion) {
  MakeVersion(1);
  ASSERT_TRUE(Raw()->Execute("CREATE TABLE runs (x)").ok());  // conflicts with step 2
  EXPECT_FALSE(OpenStore().ok());
  EXPECT_EQ(*Raw()->QueryInt("PRAGMA user_version"), 1);
  EXPECT_EQ(*Raw()->QueryInt("SELECT count(*) FROM sqlite_schema WHERE type = 'view'"), 0);
  ASSERT_TRUE(Raw()->Execute("DROP TABLE runs").ok());
  EXPECT_TRUE(OpenStore().ok());
}

}  // namespace
}  // namespace scalelab::db
