#include "server/prediction/ledger.h"

#include <cmath>

#include "db/sqlite/sqlite.h"
#include "google/protobuf/util/json_util.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using v1::Prediction;

// Study 1 has results of 1, 2 and 4 ranks, study 2 has a cell of 8 ranks that has not begun.
class Ledger : public ::testing::Test {
 protected:
  Ledger() {
    store_ = db::OpenSqliteStore({directory_.path() + "/scalelab.db", false}).value();
    db::WriteBatch batch;
    batch.studies = {db::AStudy(1, "small"), db::AStudy(2, "large")};
    for (const auto& [id, ranks] : std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {3, 4}})
      AddCell(batch, id, 1, ranks);
    AddCell(batch, 4, 2, 8);
    Commit(batch);
    for (const auto& [run, throughput] : std::vector<std::pair<int, double>>{{1, 100}, {2, 190}, {3, 340}})
      Succeed(run, throughput);
  }
  static void AddCell(db::WriteBatch& batch, int id, int64_t study, int ranks) {
    db::CellRow cell = db::ACell(id, study, ranks);
    cell.key = "{\"ranks\":" + std::to_string(ranks) + "}";
    cell.spec = R"({"engine":"custom","global_batch":64,"ranks":)" + std::to_string(ranks) + "}";
    batch.cells.push_back(cell);
    batch.runs.push_back(db::ARun(id, study, id));
  }
  void Commit(const db::WriteBatch& batch) {
    const absl::Status status = store_->Commit(batch);
    ASSERT_TRUE(status.ok()) << status;
  }
  // Ends the run whose cell, run and attempt have this id.
  void Succeed(int id, double throughput, const std::string& fingerprint = "a100",
               const std::map<std::string, double>& metrics = {}) {
    db::WriteBatch batch;
    db::RunRow run = store_->GetRun(id).value();
    run.state = db::RunState::kSucceeded;
    run.attempts = 1;
    batch.runs = {run};
    db::AttemptRow attempt = db::AnAttempt(id, id);
    attempt.state = db::AttemptState::kSucceeded;
    batch.attempts = {attempt};
    db::RunSummary summary = db::ASummary(id, id, throughput);
    summary.fingerprint = fingerprint;
    summary.metrics = metrics;
    batch.summaries = {summary};
    Commit(batch);
  }
  void SetState(int id, db::RunState state) {
    db::WriteBatch batch;
    db::RunRow run = store_->GetRun(id).value();
    run.state = state;
    run.attempts = 1;
    batch.runs = {run};
    Commit(batch);
  }
  StudyData Read(int64_t id) { return ReadStudyData(*store_, store_->GetStudy(id).value()).value(); }
  std::vector<Prediction> Predict(bool dry_run = false) {
    return MakePredictions(*store_, Read(1), Read(2), {}, dry_run, 1000).value();
  }
  std::vector<Prediction> All(const db::PredictionFilter& filter = {}) {
    std::vector<Prediction> all;
    const std::vector<db::PredictionRow> rows = db::ListPredictions(*store_, filter, 0, 10).value();
    for (const db::PredictionRow& row : rows) all.push_back(ToPrediction(row));
    return all;
  }
  // Adds predictions of 100 [90, 110] whose cells reached 130.
  void AddScored(int count, bool is_private = false) {
    const absl::Status status = store_->WriteRows([&](db::Database& db) {
      for (int i = 0; i < count; ++i) {
        const absl::Status added =
            db::Statement(db,
                          "INSERT INTO prediction (study_id,cell_id,source_id,study_name,owner,private,key,"
                          "fingerprint,models,ranks,largest,predicted,low,high,state,reason,measured,created,"
                          "scored) VALUES (9,?,9,'old','ada',?,'{}','','{}',8,4,100,90,110,2,'',130,1,2)")
                .Run(1000 + i, is_private);
        if (!added.ok()) return added;
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  v1::PredictionSummary Summary() { return Summarise(db::ReadPredictionScores(*store_, {}).value()); }

  db::TemporaryDirectory directory_;
  std::unique_ptr<db::Store> store_;
};

TEST_F(Ledger, APredictionIsDurableBeforeItsCellRunsAndScoresItselfAfterwards) {
  const auto made = Predict();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].name(), "predictions/1");
  EXPECT_EQ(made[0].state(), Prediction::PENDING);
  EXPECT_EQ(made[0].study(), "studies/2");
  EXPECT_EQ(made[0].source_study(), "studies/1");
  EXPECT_THAT(made[0].models(), SizeIs(5));
  EXPECT_EQ(ScorePredictions(*store_, 2000).value(), 0) << "its run has not ended";

  store_ = nullptr;
  store_ = db::OpenSqliteStore({directory_.path() + "/scalelab.db", false}).value();
  const double measured = made[0].predicted().mean() / 1.02;
  Succeed(4, measured);
  EXPECT_EQ(ScorePredictions(*store_, 3000).value(), 1);
  const auto all = All();
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].state(), Prediction::SCORED);
  EXPECT_DOUBLE_EQ(all[0].predicted().mean(), made[0].predicted().mean());
  EXPECT_DOUBLE_EQ(all[0].measured().mean(), measured);
  EXPECT_NEAR(all[0].error(), 0.02, 1e-12);
  EXPECT_TRUE(all[0].covered());
  EXPECT_EQ(ScorePredictions(*store_, 4000).value(), 0) << "a score is given once";

  const v1::PredictionSummary summary = Summary();
  EXPECT_EQ(summary.predictions(), 1);
  EXPECT_EQ(summary.scored(), 1);
  EXPECT_EQ(summary.covered(), 1);
  EXPECT_NEAR(summary.median_error(), 0.02, 1e-6);
}

TEST_F(Ledger, ACellOutsideTheIntervalIsNotCovered) {
  const auto made = Predict();
  Succeed(4, made.at(0).predicted().high() * 1.01);
  ASSERT_EQ(ScorePredictions(*store_, 3000).value(), 1);
  EXPECT_FALSE(All().at(0).covered());
  EXPECT_EQ(Summary().covered(), 0);
}

TEST_F(Ledger, TheTransactionThatStoresChecksThatTheCellHasNotBegun) {
  const StudyData source = Read(1), target = Read(2);
  SetState(4, db::RunState::kRunning);  // after the results were read
  const auto made = MakePredictions(*store_, source, target, {}, false, 1000).value();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].state(), Prediction::REFUSED);
  EXPECT_THAT(made[0].reason(), HasSubstr("have begun"));
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(Ledger, TheFirstPredictionOfACellFromAStudyStays) {
  const auto first = Predict();
  const auto second = MakePredictions(*store_, Read(1), Read(2), {}, false, 2000).value();
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_EQ(second[0].name(), first.at(0).name());
  EXPECT_EQ(second[0].create_time().nanos(), first.at(0).create_time().nanos());
  EXPECT_THAT(All(), SizeIs(1));
}

TEST_F(Ledger, ADryRunStoresNothing) {
  const auto shown = Predict(/*dry_run=*/true);
  ASSERT_THAT(shown, SizeIs(1));
  EXPECT_EQ(shown[0].name(), "");
  EXPECT_GT(shown[0].predicted().mean(), 0);
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(Ledger, ACellWithoutResultsHasNoScore) {
  Predict();
  SetState(4, db::RunState::kFailed);
  ASSERT_EQ(ScorePredictions(*store_, 3000).value(), 1);
  const auto all = All();
  EXPECT_EQ(all.at(0).state(), Prediction::UNRESOLVED);
  EXPECT_THAT(all.at(0).reason(), HasSubstr("without a throughput"));
  EXPECT_EQ(Summary().scored(), 0);
}

TEST_F(Ledger, ResultsOfOtherHardwareAreNotCompared) {
  Predict();
  Succeed(4, 500, "h100");
  ASSERT_EQ(ScorePredictions(*store_, 3000).value(), 1);
  EXPECT_EQ(All().at(0).state(), Prediction::UNRESOLVED);
  EXPECT_THAT(All().at(0).reason(), HasSubstr("other hardware"));
}

TEST_F(Ledger, ScoresStayWhenTheStudiesAreDeleted) {
  const auto made = Predict();
  Succeed(4, made.at(0).predicted().mean());
  ASSERT_EQ(ScorePredictions(*store_, 3000).value(), 1);
  db::WriteBatch batch;
  batch.deleted_studies = {1, 2};
  Commit(batch);
  EXPECT_EQ(Summary().scored(), 1);
  EXPECT_EQ(All().at(0).display_name(), "large");
}

TEST_F(Ledger, APredictionForAPrivateStudyIsSeenByItsOwnerOnly) {
  db::WriteBatch batch;
  db::StudyRow row = store_->GetStudy(1).value();
  row.is_private = true;
  batch.studies = {row};
  Commit(batch);
  Predict();
  const auto names = [&](const db::Viewer& viewer) {
    std::vector<std::string> seen;
    for (const Prediction& p : All({0, viewer})) seen.push_back(p.name());
    return seen;
  };
  EXPECT_THAT(names({false, "ada"}), ElementsAre("predictions/1"));
  EXPECT_THAT(names({false, "bob"}), IsEmpty());
  EXPECT_THAT(names({true, "bob"}), ElementsAre("predictions/1"));
}

TEST_F(Ledger, TheScoresOfTheLabCorrectIntervals) {
  const Prediction before = Predict(/*dry_run=*/true).at(0);
  EXPECT_EQ(before.reason(), "interval not corrected: 0 of 20 scores");
  AddScored(20);
  const Prediction after = Predict().at(0);
  const double factor = std::log(1.3) / std::log(1.1);
  EXPECT_EQ(after.reason(), "interval x 2.75, from 20 scores");
  EXPECT_DOUBLE_EQ(after.predicted().mean(), before.predicted().mean());
  EXPECT_NEAR(std::log(after.predicted().high() / after.predicted().mean()),
              factor * std::log(before.predicted().high() / before.predicted().mean()), 1e-9);
  EXPECT_THAT(after.models(), SizeIs(5)) << "notes are no models";

  store_ = nullptr;
  store_ = db::OpenSqliteStore({directory_.path() + "/scalelab.db", false}).value();
  EXPECT_EQ(All().at(0).reason(), after.reason()) << "what the interval was made of stays known";
}

TEST_F(Ledger, ScoresOfPrivatePredictionsAreNotUsed) {
  AddScored(30, /*is_private=*/true);
  EXPECT_THAT(Predict().at(0).reason(), HasSubstr("0 of 20 scores"));
}

TEST_F(Ledger, RecordedBucketsAreReadFromTheMetricsOfRuns) {
  const std::map<std::string, double> metrics = {{"bucket/backward_s", 0.5},  {"bucket/0/bytes", 1e6},
                                                 {"bucket/0/ready_s", 0.1},   {"bucket/0/reduce_s", 0.02},
                                                 {"bucket/1/bytes", 4e6},     {"bucket/1/ready_s", 0.5},
                                                 {"bucket/99999/bytes", 4e6}, {"run/data_s", 0.1}};
  Succeed(4, 500, "a100", metrics);
  const StudyData data = Read(2);
  ASSERT_THAT(data.recorded, SizeIs(1));
  const RecordedStep& step = data.recorded.at(4);
  EXPECT_EQ(step.backward, 0.5);
  ASSERT_THAT(step.buckets, SizeIs(2));
  EXPECT_EQ(step.buckets[0].reduce, 0.02);
  EXPECT_EQ(step.buckets[1].bytes, 4e6);
  EXPECT_EQ(step.buckets[1].reduce, 0) << "not known";
}

TEST_F(Ledger, ImpossibleBucketsAreNotRead) {
  Succeed(4, 500, "a100", {{"bucket/backward_s", 0.5}, {"bucket/1/bytes", 1e6}, {"bucket/1/ready_s", 0.1}});
  EXPECT_THAT(Read(2).recorded, IsEmpty()) << "bucket 0 has no bytes";
}

TEST_F(Ledger, TheScorerScoresWithoutARequest) {
  const auto made = Predict();
  Scorer scorer(*store_, absl::Milliseconds(5));
  Succeed(4, made.at(0).predicted().mean());
  const absl::Time limit = absl::Now() + absl::Seconds(20);
  while (Summary().scored() == 0 && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(Summary().scored(), 1);
  EXPECT_TRUE(scorer.Stop(absl::Seconds(10)));
}

}  // namespace
}  // namespace scalelab::server
