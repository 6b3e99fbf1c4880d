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
  EXPECT_TRUE(before->runs.empty());
  WriteBatch batch;
  batch.provenance = {{70, R"([{"cpus":8,"code":{"git_commit":"abcd"}},{"cpus":8}])"},
                      {71, R"([{"cpus":8,"code":{"git_commit":"of a run that failed"}}])"},
                      {73, "no JSON"},
                      {76, R"([{"code":{"git_commit":"ef01"}}])"}};
  ASSERT_TRUE((*store)->Commit(batch).ok());
  const auto codes = ListRunCodes(**store, 7);
  ASSERT_TRUE(codes.ok()) << codes.status();
  ASSERT_EQ(codes->runs.size(), 2u);
  EXPECT_EQ(codes->runs[0].run_id, 70);
  EXPECT_EQ(codes->texts.at(codes->runs[0].text), R"({"git_commit":"abcd"})");
  EXPECT_EQ(codes->runs[1].run_id, 74);
  EXPECT_EQ(codes->texts.at(codes->runs[1].text), R"({"git_commit":"ef01"})");
  EXPECT_TRUE(ListRunCodes(**store, 8)->runs.empty()) << "another study";
  batch.provenance = {{73, R"([{"cpus":4,"code":{"git_commit":"abcd"}}])"}};
  ASSERT_TRUE((*store)->Commit(batch).ok());
  const auto shared = ListRunCodes(**store, 7);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->texts.size(), 2u) << "runs with the same code share its text";
  ASSERT_EQ(shared->runs.size(), 3u);
  EXPECT_EQ(shared->runs[1].run_id, 72);
  EXPECT_EQ(shared->runs[1].text, shared->runs[0].text);
}

}  // namespace
}  // namespace scalelab::db
