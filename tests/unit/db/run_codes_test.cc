#include "db/provenance/run_codes.h"

#include "tests/contract/archive_fixture.h"

namespace scalelab::db {
namespace {

// The runs of the study that succeeded are 70, 72 and 74, in the attempts 70, 73 and 76.
TEST(RunCodes, AreThoseOfTheAttemptsWithTheResults) {
  const TemporaryDirectory directory = TemporaryDirectory::InMemory();
  auto store = OpenSqliteStore({directory.path() + "/scalelab.db"});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit(AFinalStudy(7, 6, 70)).ok());
  const auto before = ListRunCodes(**store, 7);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_TRUE(before->empty());
  WriteBatch batch;
  batch.provenance = {{70, R"([{"cpus":8,"code":{"git_commit":"abcd"}},{"cpus":8}])"},
                      {71, R"([{"cpus":8,"code":{"git_commit":"of a run that failed"}}])"},
                      {73, "no JSON"},
                      {76, R"([{"code":{"git_commit":"ef01"}}])"}};
  ASSERT_TRUE((*store)->Commit(batch).ok());
  const auto codes = ListRunCodes(**store, 7);
  ASSERT_TRUE(codes.ok()) << codes.status();
  ASSERT_EQ(codes->size(), 2u);
  EXPECT_EQ((*codes)[0].run_id, 70);
  EXPECT_EQ((*codes)[0].json, R"({"git_commit":"abcd"})");
  EXPECT_EQ((*codes)[1].run_id, 74);
  EXPECT_EQ((*codes)[1].json, R"({"git_commit":"ef01"})");
  EXPECT_TRUE(ListRunCodes(**store, 8)->empty()) << "another study";
}

}  // namespace
}  // namespace scalelab::db
