#include "server/prediction/predict.h"

#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string Why(std::vector<int> measured, int ranks, int ranks_per_node = 0, bool strong = true) {
  return WhyNotPredict({strong, std::move(measured), ranks_per_node}, ranks);
}

TEST(WhyNotPredict, ThreeWorldSizesAreNeeded) {
  EXPECT_THAT(Why({1, 2}, 4), HasSubstr("only 2 world sizes have results"));
  EXPECT_THAT(Why({1, 2, 4}, 8), IsEmpty());
}

TEST(WhyNotPredict, AWorldSizeThatIsNotLargerNeedsNoExtrapolation) {
  EXPECT_THAT(Why({1, 2, 8}, 8), HasSubstr("8 ranks are measured"));
}

TEST(WhyNotPredict, TheLargestMultipleDependsOnTheScaling) {
  EXPECT_THAT(Why({1, 2, 4}, 16), IsEmpty());
  EXPECT_THAT(Why({1, 2, 4}, 17), AllOf(HasSubstr("more than 4 times"), HasSubstr("strong")));
  EXPECT_THAT(Why({1, 2, 4}, 32, 0, false), IsEmpty());
  EXPECT_THAT(Why({1, 2, 4}, 33, 0, false), AllOf(HasSubstr("more than 8 times"), HasSubstr("weak")));
}

TEST(WhyNotPredict, ANetworkThatWasNotMeasuredIsNotPredicted) {
  EXPECT_THAT(Why({1, 2, 4}, 8, 4), HasSubstr("8 ranks need 2 nodes"));
  EXPECT_THAT(Why({1, 2, 4, 8}, 16, 4), IsEmpty()) << "8 ranks were on two nodes";
  EXPECT_THAT(Why({1, 2, 4}, 8, 8), IsEmpty()) << "one node";
}

// A study of one series per engine.
class AStudy {
 public:
  explicit AStudy(int64_t id, const std::string& spec = "{}") {
    data_.study.id = id;
    data_.study.name = "study";
    data_.study.owner = "ada";
    (void)google::protobuf::util::JsonStringToMessage(spec, &data_.spec);
  }
  // Adds a cell. Without throughputs it has one run that has not begun.
  AStudy& Cell(int ranks, const std::vector<double>& throughputs = {}, const std::string& more = "",
               const std::string& engine = "native/ddp") {
    db::CellRow row;
    row.id = data_.study.id * 100 + static_cast<int64_t>(data_.cells.size());
    row.study_id = data_.study.id;
    row.position = static_cast<int>(data_.cells.size());
    row.ranks = ranks;
    data_.cells.push_back(row);
    scalelab::Cell cell;
    const std::string axes = R"("engine":")" + engine + R"(","ranks":)" + std::to_string(ranks);
    (void)google::protobuf::util::JsonStringToMessage("{" + axes + "}", &cell.key);
    (void)google::protobuf::util::JsonStringToMessage("{" + axes + R"(,"global_batch":64)" + more + "}",
                                                      &cell.spec);
    data_.parameters.Add(cell);
    int repeat = 0;
    for (const double throughput : throughputs) {
      db::CurveRow run;
      run.cell_id = row.id;
      run.repeat = repeat++;
      run.state = db::RunState::kSucceeded;
      run.throughput = throughput;
      run.fingerprint = "a100";
      data_.rows.push_back(run);
    }
    if (throughputs.empty()) {
      db::CurveRow run;
      run.cell_id = row.id;
      run.attempts = 0;
      data_.rows.push_back(run);
    }
    return *this;
  }
  StudyData& data() { return data_; }

 private:
  StudyData data_;
};

AStudy Measured(int64_t id, const std::string& spec = "{}") {
  AStudy study(id, spec);
  study.Cell(1, {100}).Cell(2, {190}).Cell(4, {340});
  return study;
}

std::vector<int> RanksOf(const std::vector<CellPrediction>& predictions) {
  std::vector<int> ranks;
  for (const CellPrediction& p : predictions) ranks.push_back(p.row.ranks);
  return ranks;
}

TEST(PredictCells, TheLargerCellsOfTheStudyThatHaveNotBegun) {
  AStudy study = Measured(1);
  study.Cell(8).Cell(16);
  const auto predictions = PredictCells(study.data(), study.data(), {}, false);
  ASSERT_THAT(RanksOf(predictions), ElementsAre(8, 16));
  for (const CellPrediction& p : predictions) {
    EXPECT_EQ(p.refused, "");
    EXPECT_EQ(p.row.largest, 4);
    EXPECT_EQ(p.row.fingerprint, "a100");
    EXPECT_EQ(p.row.owner, "ada");
    EXPECT_THAT(p.row.models, SizeIs(5));
    EXPECT_LT(p.row.low, p.row.predicted);
    EXPECT_GT(p.row.high, p.row.predicted);
  }
  EXPECT_EQ(predictions[0].row.cell_id, 103);
}

TEST(PredictCells, ACellThatHasBegunIsRefused) {
  AStudy study = Measured(1);
  study.Cell(8);
  study.data().rows.back().state = db::RunState::kRunning;
  study.data().rows.back().attempts = 1;
  const auto predictions = PredictCells(study.data(), study.data(), {}, false);
  ASSERT_THAT(predictions, SizeIs(1));
  EXPECT_THAT(predictions[0].refused, HasSubstr("have begun"));
}

TEST(PredictCells, CellsOfAnotherStudyWithTheSameParameters) {
  AStudy source = Measured(1), target(2);
  target.Cell(8).Cell(8, {}, R"(,"precision":"amp-bf16")").Cell(16, {}, R"(,"epochs":7,"seed":3)");
  const auto predictions = PredictCells(source.data(), target.data(), {}, false);
  ASSERT_THAT(RanksOf(predictions), ElementsAre(8, 16)) << "another precision is not predicted";
  EXPECT_EQ(predictions[0].row.study_id, 2);
  EXPECT_EQ(predictions[0].row.source_id, 1);
  EXPECT_EQ(predictions[0].row.cell_id, 200);
}

TEST(PredictCells, AnotherPartitionIsAnotherMachine) {
  AStudy source = Measured(1), target(2, R"({"resources":{"partition":"gpu"}})");
  target.Cell(8);
  const auto predictions = PredictCells(source.data(), target.data(), {}, false);
  ASSERT_THAT(predictions, SizeIs(1));
  EXPECT_THAT(predictions[0].refused, HasSubstr("resources.partition"));
}

TEST(PredictCells, EachSeriesIsPredictedFromItsOwnResults) {
  AStudy study = Measured(1);
  const std::string other = "native/horovod";
  study.Cell(1, {100}, "", other).Cell(2, {150}, "", other).Cell(4, {200}, "", other);
  study.Cell(8).Cell(8, {}, "", other);
  const auto predictions = PredictCells(study.data(), study.data(), {8}, false);
  ASSERT_THAT(RanksOf(predictions), ElementsAre(8, 8));
  EXPECT_GT(predictions[0].row.predicted, 1.5 * predictions[1].row.predicted);
}

TEST(PredictCells, AWorldSizeWithoutACellIsOnlyPredictedOnRequest) {
  AStudy study = Measured(1);
  const auto stored = PredictCells(study.data(), study.data(), {8}, false);
  ASSERT_THAT(stored, SizeIs(1));
  EXPECT_THAT(stored[0].refused, HasSubstr("no such cell with 8 ranks"));
  const auto shown = PredictCells(study.data(), study.data(), {8}, true);
  ASSERT_THAT(shown, SizeIs(1));
  EXPECT_EQ(shown[0].refused, "");
  EXPECT_EQ(shown[0].row.cell_id, 0);
}

TEST(PredictCells, RecordedBucketsReplaceTheMeanStepInTheReplay) {
  AStudy study = Measured(1);
  study.Cell(8);
  StudyData& data = study.data();
  for (size_t i = 0; i < 3; ++i) {
    const int ranks = data.cells[i].ranks;
    data.rows[i].attempt_id = ranks;
    db::RunTimes& times = data.times.emplace_back();
    times.attempt_id = ranks;
    const double exposed = ranks == 1 ? 0 : 0.01 * (ranks - 1), step = 0.64 / ranks + exposed;
    times.ranks.assign(static_cast<size_t>(ranks), {step, exposed, 0});
    if (ranks > 1) times.comm_total = exposed;
  }
  const auto replayed = [&] { return PredictCells(data, data, {}, false).at(0).row.models.at("replay"); };
  const double by_step = replayed();
  // The all-reduce takes 20 ms for each further rank, half of them hidden. Eight ranks can hide 15 of 140 ms: backward takes 50 ms,
  // and the bucket is ready after 70% of it.
  for (const int ranks : {1, 2, 4}) {
    const double ready = 0.4 / ranks - 0.01 * (ranks - 1);
    data.recorded[ranks] = {0.4 / ranks, {{1e6, ready, 0.02 * (ranks - 1)}}};
  }
  EXPECT_NEAR(by_step, 64 / (0.08 + 0.07), 0.1) << "without buckets the hidden half stays hidden";
  EXPECT_NEAR(replayed(), 64 / (0.08 + 0.125), 0.1);
  // With the measured network, an all-reduce of 8 ranks takes 14 x 5 = 70 ms, of which 15 ms are hidden. The
  // additional wait that was measured with 4 ranks remains a wait.
  const RingCost network{0.005, 0};
  const db::PredictionRow row = PredictCells(data, data, {}, false, network).at(0).row;
  EXPECT_GT(row.models.at("replay"), replayed());
  EXPECT_EQ(NetworkText(row), "network as measured: 5000 us a message");
  EXPECT_EQ(NetworkText(PredictCells(data, data, {}, false).at(0).row), "");
}

TEST(PredictCells, TheNoiseOfTheResultsWidensTheInterval) {
  AStudy quiet = Measured(1), noisy(2);
  noisy.Cell(1, {100, 98, 102}).Cell(2, {190, 180, 200}).Cell(4, {340, 360, 320});
  quiet.Cell(8);
  noisy.Cell(8);
  const auto width = [](AStudy& study) {
    const auto predictions = PredictCells(study.data(), study.data(), {}, false);
    return predictions.at(0).row.high / predictions.at(0).row.low;
  };
  EXPECT_GT(width(noisy), 1.05 * width(quiet));
}

}  // namespace
}  // namespace scalelab::server
