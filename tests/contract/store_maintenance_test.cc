// The contract of every Store: Maintain does its work, and reads return the same results before and after it.
#include <cmath>

#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StoreMaintenance : public StoreContract {
 protected:
  // Calls Maintain until nothing is left, and returns the number of calls.
  int MaintainAll() {
    for (int pieces = 1;; ++pieces) {
      const absl::StatusOr<bool> more = store_->Maintain();
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more || pieces == 100'000) return pieces;
    }
  }
  void Delete(int64_t study) {
    WriteBatch batch;
    batch.deleted_studies = {study};
    Commit(batch);
  }
  // Commits a study with many runs, cells and attempts with points.
  void CommitLargeStudy(int64_t study, int runs) {
    WriteBatch batch;
    batch.studies = {AStudy(study, "large")};
    batch.studies[0].request_id = "once";
    batch.allocations = {AnAllocation(study, study)};
    batch.allocations[0].state = AllocationState::kEnded;
    for (int i = 0; i < runs; ++i) {
      const int64_t id = study * 100'000 + i;
      batch.cells.push_back(ACell(id, study));
      batch.runs.push_back(ARun(id, study, id));
      batch.attempts.push_back(AnAttempt(id, id));
      batch.provenance.push_back({id, "{}"});
      batch.epochs.push_back({id, 0, 0, 1.0, {}});
      batch.summaries.push_back(ASummary(id, id, 100));
      batch.appends.push_back(AnAppend(id, 0, 0, 30));
      batch.appends.back().columns = {AColumn("loss", 0, {1, 2, 3}),
                                      AColumn("only/" + std::to_string(study), 0, {1})};
    }
    Commit(batch);
  }
  void ExpectInvisible(int64_t study, int runs) {
    const int64_t last = study * 100'000 + runs - 1;
    EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(study).status()));
    EXPECT_TRUE(absl::IsNotFound(store_->FindStudy("large", {}).status()));
    EXPECT_TRUE(absl::IsNotFound(store_->FindRequest("ada", "once").status()));
    EXPECT_TRUE(absl::IsNotFound(store_->GetCells({last}).status()));
    EXPECT_TRUE(absl::IsNotFound(store_->GetRun(last).status()));
    EXPECT_TRUE(absl::IsNotFound(store_->GetAllocation(study).status()));
    EXPECT_TRUE(absl::IsNotFound(store_->GetSummary(last).status()));
    EXPECT_THAT(store_->ListStudies(0, 10, {}).value(), SizeIs(1));
    EXPECT_THAT(store_->CountRuns({study}).value(), ElementsAre(ElementsAre(0, 0, 0, 0, 0, 0, 0)));
    EXPECT_THAT(store_->ListCells(study).value(), IsEmpty());
    RunFilter filter;
    filter.study_id = study;
    EXPECT_THAT(store_->ListRuns(filter).value(), IsEmpty());
    filter.state = RunState::kQueued;
    EXPECT_THAT(store_->ListRuns(filter).value(), IsEmpty());
    EXPECT_THAT(store_->ListAttempts(last).value(), IsEmpty());
    EXPECT_THAT(store_->ListStreams(last).value(), IsEmpty());
    EXPECT_THAT(store_->ListSummaries(study * 100'000, last).value(), IsEmpty());
    EXPECT_THAT(*store_->ListCurveRows(study).value(), IsEmpty());
    EXPECT_THAT(Points({last, "", {}}), IsEmpty());
    const Snapshot snapshot = store_->Load().value();
    EXPECT_THAT(snapshot.studies, SizeIs(1));
    EXPECT_THAT(snapshot.runs, SizeIs(1));
    EXPECT_THAT(snapshot.allocations, IsEmpty());
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreMaintenance, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StoreMaintenance, ALargeStudyIsInvisibleAtOnceAndDeletedInPieces) {
  CommitStudyWithAttempt(1);
  CommitLargeStudy(2, 1500);
  Delete(2);
  ExpectInvisible(2, 1500);
  Reopen();
  ExpectInvisible(2, 1500);
  // A study with the same request may be submitted while the rest of the old one is being deleted.
  WriteBatch batch;
  batch.studies = {AStudy(3, "other")};
  batch.studies[0].request_id = "once";
  Commit(batch);
  Delete(3);
  ASSERT_TRUE(store_->Maintain().value()) << "the rows of 1,500 runs are too many for one piece";
  ExpectInvisible(2, 1500);
  EXPECT_GT(MaintainAll(), 3);
  ExpectInvisible(2, 1500);
  EXPECT_TRUE(store_->GetRun(1).ok());
  Reopen();
  EXPECT_FALSE(store_->Maintain().value());
}

TEST_P(StoreMaintenance, AnAllocationThatEndsAfterItsStudyWasDeletedIsDeleted) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  batch.allocations = {AnAllocation(1, 1), AnAllocation(2, 2)};
  Commit(batch);
  Delete(1);
  MaintainAll();
  ASSERT_THAT(store_->Load().value().allocations, SizeIs(2)) << "its job must be ended, also after a restart";
  WriteBatch ended;
  ended.allocations = batch.allocations;
  for (AllocationRow& row : ended.allocations) row.state = AllocationState::kEnded;
  Commit(ended);
  EXPECT_TRUE(absl::IsNotFound(store_->GetAllocation(1).status()));
  EXPECT_TRUE(store_->GetAllocation(2).ok());
}

TEST_P(StoreMaintenance, TheCountsOfRunsFollowEveryChange) {
  WriteBatch batch;
  batch.studies = {AStudy(1), AStudy(2)};
  for (int64_t id = 1; id <= 10; ++id) batch.runs.push_back(ARun(id, 1 + id % 2, 1, static_cast<int>(id)));
  Commit(batch);
  EXPECT_THAT(store_->CountRuns({1, 2, 3}).value(),
              ElementsAre(ElementsAre(0, 5, 0, 0, 0, 0, 0), ElementsAre(0, 5, 0, 0, 0, 0, 0),
                          ElementsAre(0, 0, 0, 0, 0, 0, 0)));
  WriteBatch next;
  next.runs = {batch.runs[1], batch.runs[1], batch.runs[3]};  // contains one run twice
  next.runs[0].state = RunState::kRunning;
  next.runs[1].state = RunState::kSucceeded;
  next.runs[2].state = RunState::kFailed;
  Commit(next);
  EXPECT_THAT(store_->CountRuns({1}).value(), ElementsAre(ElementsAre(0, 3, 0, 1, 1, 0, 0)));
  next.attempts = {AnAttempt(1, 777)};  // run 777 does not exist
  next.runs[2].state = RunState::kCancelled;
  EXPECT_FALSE(store_->Commit(next).ok());
  EXPECT_THAT(store_->CountRuns({1}).value(), ElementsAre(ElementsAre(0, 3, 0, 1, 1, 0, 0)));
  Reopen();
  EXPECT_THAT(store_->CountRuns({1}).value(), ElementsAre(ElementsAre(0, 3, 0, 1, 1, 0, 0)));
}

TEST_P(StoreMaintenance, ACellIsFoundById) {
  CommitStudyWithAttempt(4);
  EXPECT_EQ(store_->GetCells({4})->front().study_id, 4);
  EXPECT_EQ(store_->GetCells({4})->front().model, "resnet20");
  EXPECT_TRUE(absl::IsNotFound(store_->GetCells({5}).status()));
}

TEST_P(StoreMaintenance, TheManySmallPartsOfAnAttemptReadTheSameAfterTheyAreMerged) {
  CommitStudyWithAttempt(1);
  CommitStudyWithAttempt(2);
  std::map<std::pair<std::string, int>, Series> expected;
  WriteBatch batch;
  const auto append = [&](int64_t attempt, int part) {
    for (int rank = 0; rank < 2; ++rank) {
      StreamAppend& a = batch.appends.emplace_back(AnAppend(attempt, rank, part * 20, part * 20 + 20));
      const double x = 0.001 * part + rank;
      a.columns = {AColumn("loss", part * 2, {std::sin(x), std::cos(x)}),
                   AColumn("step/total_s", part * 2, {0.03125 + x, 1e-9 * part})};
      if (part % 7 == 0) a.columns.push_back(AColumn("eval/accuracy", part * 2 + 1, {x}));
      if (attempt != 1) continue;
      for (const PointColumn& c : a.columns) {
        Series& s = expected[{c.key, rank}];
        s.line.insert(s.line.end(), c.line.begin(), c.line.end());
        s.step.insert(s.step.end(), c.step.begin(), c.step.end());
        s.time.insert(s.time.end(), c.time.begin(), c.time.end());
        s.value.insert(s.value.end(), c.value.begin(), c.value.end());
      }
    }
    if (batch.appends.size() < 40) return;
    Commit(batch);
    batch.Clear();
  };
  const auto check = [&](const char* when) {
    const std::vector<Series> all = Points({1, "", {}});
    ASSERT_THAT(all, SizeIs(expected.size())) << when;
    for (const Series& s : all) {
      const Series& e = expected[{s.key, s.rank}];
      ASSERT_EQ(s.line, e.line) << when << s.key;
      ASSERT_EQ(s.step, e.step) << when << s.key;
      ASSERT_EQ(s.time, e.time) << when << s.key;
      ASSERT_EQ(s.value, e.value) << when << s.key;
    }
  };
  int part = 0;
  for (; part < 1100; ++part) {
    append(1, part);
    if (part % 50 == 0) append(2, part / 50);
  }
  Commit(std::exchange(batch, {}));
  check("before");
  EXPECT_GT(MaintainAll(), 1) << "a running attempt with more than a thousand parts is merged";
  check("while it runs");
  for (; part < 1200; ++part) append(1, part);
  Commit(std::exchange(batch, {}));
  check("and continues");
  batch.attempts = {AnAttempt(1, 1)};
  batch.attempts[0].state = AttemptState::kSucceeded;
  Commit(std::exchange(batch, {}));
  Reopen();
  ASSERT_TRUE(store_->Maintain().value());
  check("in the middle");
  Reopen();
  MaintainAll();
  check("merged");
  EXPECT_EQ(Points({1, "loss", 0, 3}).at(0).value.size(), 3u);
  append(1, part);  // a late part
  Commit(std::exchange(batch, {}));
  check("late");
  EXPECT_THAT(Points({2, "", {}}), SizeIs(6));
  Delete(1);
  MaintainAll();
  EXPECT_THAT(Points({1, "", {}}), IsEmpty());
  EXPECT_THAT(Points({2, "", {}}), SizeIs(6));
}

}  // namespace
}  // namespace scalelab::db
