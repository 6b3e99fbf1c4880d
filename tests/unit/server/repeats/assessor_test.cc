#include "server/repeats/assessor.h"

#include <future>

#include "absl/strings/str_cat.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;

// A study of 1 and 2 ranks whose speedup varies from block to block.
class AssessorTest : public ::testing::Test {
 protected:
  AssessorTest() {
    store_ = db::OpenSqliteStore({directory_.path() + "/scalelab.db", false}).value();
    db::WriteBatch batch;
    batch.studies = {db::AStudy(1)};
    batch.studies[0].spec = R"({"study":"s","adaptive_repeats":{"min":3,"max":5,"half_width":0.02}})";
    for (const int ranks : {1, 2}) {
      db::CellRow cell = db::ACell(ranks, 1, ranks);
      cell.key = absl::StrCat("{\"ranks\":", ranks, "}");
      cell.spec = absl::StrCat(R"({"engine":"custom","ranks":)", ranks, "}");
      batch.cells.push_back(cell);
    }
    Commit(batch);
  }
  void Commit(const db::WriteBatch& batch) {
    const absl::Status status = store_->Commit(batch);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Adds a block with this speedup.
  void AddBlock(double speedup) {
    db::WriteBatch batch;
    for (const int ranks : {1, 2}) {
      const int id = 2 * block_ + ranks;
      db::RunRow run = db::ARun(id, 1, ranks, block_);
      run.state = db::RunState::kSucceeded;
      run.attempts = 1;
      batch.runs.push_back(run);
      batch.attempts.push_back(db::AnAttempt(id, id));
      batch.summaries.push_back(db::ASummary(id, id, ranks == 1 ? 100 : 100 * speedup));
    }
    Commit(batch);
    ++block_;
  }
  Assessment Assess(int blocks) { return AssessStudy(*store_, {1, blocks}).value(); }

  db::TemporaryDirectory directory_;
  std::unique_ptr<db::Store> store_;
  int block_ = 0;
};

TEST_F(AssessorTest, NarrowIntervalsAreEnough) {
  for (const double speedup : {1.90, 1.92, 1.91}) AddBlock(speedup);
  const Assessment assessment = Assess(3);
  EXPECT_TRUE(assessment.enough);
  EXPECT_THAT(assessment.reason, HasSubstr("after 3 blocks the widest interval is +-1.6%"));
}

TEST_F(AssessorTest, WideIntervalsAreNot) {
  for (const double speedup : {1.85, 1.92, 1.91}) AddBlock(speedup);
  EXPECT_FALSE(Assess(3).enough);
}

TEST_F(AssessorTest, OnlyCompleteBlocksCount) {
  for (const double speedup : {1.90, 1.92, 1.91, 1.20}) AddBlock(speedup);
  EXPECT_TRUE(Assess(3).enough);
  EXPECT_FALSE(Assess(4).enough);
}

TEST_F(AssessorTest, AStudyWithoutResultsIsNotPrecise) { EXPECT_FALSE(Assess(3).enough); }

TEST_F(AssessorTest, TheAnswerComesFromAThread) {
  for (const double speedup : {1.90, 1.92, 1.91}) AddBlock(speedup);
  Assessor assessor(*store_);
  std::promise<absl::StatusOr<Assessment>> answer;
  assessor.Assess({1, 3}, [&](absl::StatusOr<Assessment> got) { answer.set_value(std::move(got)); });
  const auto got = answer.get_future().get();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->enough);
  std::promise<absl::StatusOr<Assessment>> missing;
  assessor.Assess({7, 3}, [&](absl::StatusOr<Assessment> got) { missing.set_value(std::move(got)); });
  EXPECT_TRUE(absl::IsNotFound(missing.get_future().get().status()));
}

}  // namespace
}  // namespace scalelab::server
