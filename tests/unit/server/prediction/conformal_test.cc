#include "server/prediction/conformal.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using ::testing::HasSubstr;

// A prediction of 100 with an interval of exp(+-0.1), and a measurement of 100 exp(error).
db::PredictionRow Row(double error = 0) {
  db::PredictionRow row;
  row.predicted = 100;
  row.low = 100 * std::exp(-0.1);
  row.high = 100 * std::exp(0.1);
  row.measured = 100 * std::exp(error);
  row.models = {{"log-log", 100}};
  return row;
}

std::vector<db::PredictionRow> Rows(int count, double error) {
  return std::vector<db::PredictionRow>(static_cast<size_t>(count), Row(error));
}

TEST(Conformal, AScoreIsTheErrorInHalfWidthsOfItsSide) {
  EXPECT_NEAR(ConformalScore(Row(0.05)), 0.5, 1e-12);
  EXPECT_NEAR(ConformalScore(Row(-0.2)), 2, 1e-12);
  db::PredictionRow uneven = Row(-0.2);
  uneven.low = 100 * std::exp(-0.4);
  EXPECT_NEAR(ConformalScore(uneven), 0.5, 1e-12);
}

TEST(Conformal, TheQuantileByHand) {
  // 24 scores 0.1, 0.2, ..., 2.4: k = ceil(25 x 0.9) = 23.
  std::vector<double> scores;
  for (int i = 24; i > 0; --i) scores.push_back(0.1 * i);
  EXPECT_NEAR(ConformalFactor(scores), 2.3, 1e-12);
}

TEST(Conformal, FewScoresCorrectNothing) {
  db::PredictionRow row = Row();
  Correct(Rows(19, 0.3), row);
  EXPECT_NEAR(row.high, 100 * std::exp(0.1), 1e-9);
  EXPECT_EQ(CorrectionText(row), "interval not corrected: 19 of 20 scores");
}

TEST(Conformal, TooNarrowIntervalsBecomeWider) {
  db::PredictionRow row = Row();
  Correct(Rows(20, 0.3), row);
  EXPECT_NEAR(row.low, 100 * std::exp(-0.3), 1e-9);
  EXPECT_NEAR(row.high, 100 * std::exp(0.3), 1e-9);
  EXPECT_EQ(CorrectionText(row), "interval x 3.00, from 20 scores");
}

TEST(Conformal, ACorrectedPredictionIsScoredByItsEnvelope) {
  std::vector<db::PredictionRow> scored = Rows(20, 0.3);
  for (db::PredictionRow& row : scored) Correct(Rows(20, 0.3), row);
  db::PredictionRow row = Row();
  Correct(scored, row);
  EXPECT_NEAR(row.high, 100 * std::exp(0.3), 1e-9) << "not 9 times as wide";
}

TEST(Conformal, PredictionsByReplayHaveScoresOfTheirOwn) {
  db::PredictionRow row = Row();
  row.models["replay"] = 100;
  Correct(Rows(50, 0.3), row);
  EXPECT_THAT(CorrectionText(row), HasSubstr("0 of 20"));
}

TEST(Conformal, AnIntervalOfNoWidthThatIsWrongCorrectsNothing) {
  std::vector<db::PredictionRow> scored = Rows(20, 0.3);
  for (db::PredictionRow& row : scored) row.low = row.high = 100;
  db::PredictionRow row = Row();
  Correct(scored, row);
  EXPECT_NEAR(row.high, 100 * std::exp(0.1), 1e-9);
}

// The errors have twice the deviation that the intervals assume, so only 59% of the intervals are right.
TEST(Conformal, NinetyPercentOfTheCorrectedIntervalsAreRight) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> error(0, 0.12);
  int covered = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<db::PredictionRow> scored;
    for (int i = 0; i < 30; ++i) scored.push_back(Row(error(random)));
    db::PredictionRow row = Row(error(random));
    Correct(scored, row);
    covered += row.low <= *row.measured && *row.measured <= row.high;
  }
  EXPECT_NEAR(100.0 * covered / kTrials, 91, 2) << "28 of 31 ranks";
}

}  // namespace
}  // namespace scalelab::server
