// The contract of every Store: points that retention removes.
#include "db/retention/retention.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Micros kEnd = 1'000'000'000;  // of the studies

class StoreRetention : public StoreContract {
 protected:
  // Commits a study whose runs have ended, each with an attempt of three points.
  void CommitStudy(int64_t study, int runs = 1, Micros finished = kEnd,
                   StudyState state = StudyState::kSucceeded) {
    WriteBatch batch;
    batch.studies = {AStudy(study)};
    batch.studies[0].state = state;
    batch.studies[0].finished = IsFinal(state) ? finished : 0;
    for (int i = 0; i < runs; ++i) {
      const int64_t id = study * 100'000 + i;
      batch.cells.push_back(ACell(id, study));
      batch.runs.push_back(ARun(id, study, id));
      batch.runs.back().state = RunState::kSucceeded;
      batch.attempts.push_back(AnAttempt(id, id));
      batch.attempts.back().state = AttemptState::kSucceeded;
      batch.attempts.back().finished = finished - 1;
      batch.summaries.push_back(ASummary(id, id, 100));
      batch.appends.push_back(AnAppend(id, 0, 0, 30));
      batch.appends.back().columns = {AColumn("loss", 0, {1, 2, 3}), AColumn("time", 0, {4, 5, 6})};
    }
    Commit(batch);
  }
  std::vector<int64_t> Removable(Micros until = kEnd) {
    return ListRemovable(*store_, Removal::kPoints, until).value();
  }
  int MaintainAll() {
    for (int pieces = 1;; ++pieces) {
      const absl::StatusOr<bool> more = store_->Maintain();
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more || pieces == 100'000) return pieces;
    }
  }
  // The number of rows with points, whether or not reads show them.
  int64_t ChunkRows() {
    int64_t rows = 0;
    EXPECT_TRUE(
        store_
            ->ReadRows([&](Database& db) {
              rows = db.QueryInt(
                           "SELECT (SELECT count(*) FROM point_chunk) + (SELECT count(*) FROM point_axis) + "
                           "(SELECT count(*) FROM series) + (SELECT count(*) FROM merge_task)")
                         .value();
              return absl::OkStatus();
            })
            .ok());
    return rows;
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreRetention, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StoreRetention, OnlyFinalStudiesWithPointsAreRemovableOldestFirst) {
  CommitStudy(1, 1, kEnd);
  CommitStudy(2, 1, kEnd - 50);
  CommitStudy(3, 1, kEnd + 1);
  CommitStudy(4, 1, kEnd, StudyState::kRunning);
  CommitStudy(5, 0, kEnd);
  EXPECT_THAT(Removable(), ElementsAre(2, 1));
  EXPECT_THAT(ListRemovable(*store_, Removal::kLogs, kEnd).value(), ElementsAre(2, 1, 5));
  EXPECT_TRUE(absl::IsFailedPrecondition(BeginRemoval(*store_, Removal::kPoints, 4, kEnd)));
  EXPECT_TRUE(absl::IsFailedPrecondition(BeginRemoval(*store_, Removal::kPoints, 9, kEnd)));
}

TEST_P(StoreRetention, RemovedPointsAreInvisibleAtOnceAndDeletedInPieces) {
  CommitStudy(1, 700);
  CommitStudy(2);
  MaintainAll();
  EXPECT_EQ(MeasurePoints(*store_, 1)->points, 700 * 6);
  EXPECT_GT(MeasurePoints(*store_, 1)->bytes, 700);
  ASSERT_TRUE(BeginRemoval(*store_, Removal::kPoints, 1, kEnd + 10).ok());
  EXPECT_THAT(Points({100'000, "", {}}), IsEmpty());
  EXPECT_EQ(GetRemoved(*store_, 1)->points, kEnd + 10);
  EXPECT_THAT(Removable(), ElementsAre(2));
  ASSERT_TRUE(store_->Maintain().value());
  Reopen();  // in the middle
  EXPECT_THAT(ListUnfinished(*store_, Removal::kPoints).value(), ElementsAre(1));
  EXPECT_GT(MaintainAll(), 2);
  EXPECT_THAT(ListUnfinished(*store_, Removal::kPoints).value(), IsEmpty());
  EXPECT_EQ(MeasurePoints(*store_, 1)->points, 0);
  EXPECT_EQ(ChunkRows(), 1 + 2 + 2) << "only those of study 2 are left";
  EXPECT_THAT(Points({200'000, "", {}}), SizeIs(2));
  // Runs and results remain.
  EXPECT_EQ(store_->GetSummary(100'000)->throughput, 100);
  EXPECT_THAT(*store_->ListCurveRows(1).value(), SizeIs(700));
  EXPECT_THAT(store_->ListStreams(100'000).value(), SizeIs(1));
}

TEST_P(StoreRetention, AStudyThatIsRetriedIsLeftAloneAndKeepsItsNewPoints) {
  CommitStudy(1, 700);
  MaintainAll();
  ASSERT_TRUE(BeginRemoval(*store_, Removal::kPoints, 1, kEnd + 10).ok());
  ASSERT_TRUE(store_->Maintain().value());
  const int64_t left = ChunkRows();
  WriteBatch retry;
  retry.studies = {AStudy(1)};
  retry.studies[0].state = StudyState::kRunning;
  retry.attempts = {AnAttempt(900'000, 100'000, 2)};
  retry.appends = {AnAppend(900'000, 0, 0, 30)};
  retry.appends[0].columns = {AColumn("loss", 0, {1, 2, 3})};
  Commit(retry);
  MaintainAll();
  EXPECT_GE(ChunkRows(), left) << "points of a study that is not final were deleted";
  EXPECT_THAT(Points({900'000, "", {}}), SizeIs(1));
  retry = WriteBatch();
  retry.studies = {AStudy(1)};
  retry.studies[0].state = StudyState::kSucceeded;
  retry.studies[0].finished = kEnd + 100;
  retry.attempts = {AnAttempt(900'000, 100'000, 2)};
  retry.attempts[0].state = AttemptState::kSucceeded;
  retry.attempts[0].finished = kEnd + 90;
  Commit(retry);
  MaintainAll();
  EXPECT_THAT(Points({900'000, "", {}}), SizeIs(1)) << "the attempt ended after the removal";
  EXPECT_THAT(Points({100'000, "", {}}), IsEmpty());
  EXPECT_EQ(MeasurePoints(*store_, 1)->points, 3);
  EXPECT_THAT(Removable(kEnd + 100), ElementsAre(1));
}

TEST_P(StoreRetention, TheAttemptsWithFilesToRemoveAreListedInPages) {
  CommitStudy(1, 5);
  const auto ids = [&](Micros until, int64_t after) {
    std::vector<int64_t> found;
    const std::vector<EndedAttempt> attempts = ListEndedAttempts(*store_, 1, until, after, 2).value();
    for (const EndedAttempt& a : attempts) found.push_back(a.id);
    return found;
  };
  EXPECT_THAT(ids(kEnd, 0), ElementsAre(100'000, 100'001));
  EXPECT_THAT(ids(kEnd, 100'003), ElementsAre(100'004));
  EXPECT_THAT(ids(kEnd - 2, 0), IsEmpty());
  EXPECT_TRUE(RunEndedBy(*store_, 1, 100'000, kEnd).value());
  EXPECT_FALSE(RunEndedBy(*store_, 1, 100'000, kEnd - 2).value());
  ASSERT_TRUE(BeginRemoval(*store_, Removal::kDirectories, 1, kEnd).ok());
  EXPECT_THAT(ListUnfinished(*store_, Removal::kDirectories).value(), ElementsAre(1));
  ASSERT_TRUE(EndRemoval(*store_, Removal::kDirectories, 1).ok());
  EXPECT_THAT(ListRemovable(*store_, Removal::kDirectories, kEnd).value(), IsEmpty());
  EXPECT_THAT(ListRemovable(*store_, Removal::kLogs, kEnd).value(), IsEmpty())
      << "the directories had the logs";
}

TEST_P(StoreRetention, ADeletedStudyLeavesNoMark) {
  CommitStudy(1, 3);
  ASSERT_TRUE(BeginRemoval(*store_, Removal::kPoints, 1, kEnd).ok());
  ASSERT_TRUE(BeginRemoval(*store_, Removal::kLogs, 1, kEnd).ok());
  WriteBatch batch;
  batch.deleted_studies = {1};
  Commit(batch);
  MaintainAll();
  EXPECT_EQ(GetRemoved(*store_, 1)->points, 0);
  EXPECT_THAT(ListUnfinished(*store_, Removal::kLogs).value(), IsEmpty());
  EXPECT_EQ(ChunkRows(), 0);
}

TEST_P(StoreRetention, AStudyIsDeletedWhenAllItsRowsAreGone) {
  CommitStudy(1);
  CommitStudy(2, 700);
  CommitStudy(4, 1, kEnd, StudyState::kRunning);
  const std::vector<int64_t> ids = {0, 1, 2, 3, 4, 5};
  EXPECT_THAT(ListDeletedStudies(*store_, ids).value(), ElementsAre(3)) << "larger ids may be used later";
  WriteBatch batch;
  batch.deleted_studies = {2};
  Commit(batch);
  ASSERT_TRUE(store_->Maintain().value());
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(2).status()));
  EXPECT_THAT(ListDeletedStudies(*store_, ids).value(), ElementsAre(3)) << "some of its rows are left";
  MaintainAll();
  EXPECT_THAT(ListDeletedStudies(*store_, ids).value(), ElementsAre(2, 3));
  batch.deleted_studies = {4};
  Commit(batch);
  MaintainAll();
  Reopen();
  EXPECT_THAT(ListDeletedStudies(*store_, ids).value(), ElementsAre(2, 3, 4));
  EXPECT_THAT(ListDeletedStudies(*store_, {}).value(), IsEmpty());
}

TEST_P(StoreRetention, TheLastIdOfAStudyIsRaisedAndNeverLowered) {
  EXPECT_EQ(GetLastStudyId(*store_).value(), 0);
  CommitStudy(1);
  EXPECT_EQ(GetLastStudyId(*store_).value(), 1);
  for (const int64_t id : {7, 3}) {
    ASSERT_TRUE(RaiseLastStudyId(*store_, id).ok());
    EXPECT_EQ(GetLastStudyId(*store_).value(), 7);
  }
  CommitStudy(8);
  Reopen();
  EXPECT_EQ(store_->Load()->last_study_id, 8);
}

TEST_P(StoreRetention, TheSizeOfTheDatabaseIsThatOfItsFile) {
  CommitStudy(1, 200);
  const DatabaseSize size = GetDatabaseSize(*store_).value();
  EXPECT_GT(size.bytes, 100'000);
  EXPECT_GE(size.free_bytes, 0);
  EXPECT_LT(size.free_bytes, size.bytes);
}

}  // namespace
}  // namespace scalelab::db
