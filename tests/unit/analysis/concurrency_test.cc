#include "analysis/concurrency.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

db::CurveRow Row(db::Micros started, db::Micros finished) {
  db::CurveRow row;
  row.state = db::RunState::kSucceeded;
  row.started = started;
  row.finished = finished;
  return row;
}

Concurrency Of(const std::vector<db::AttemptTime>& others, db::Micros started, db::Micros finished) {
  std::vector<db::AttemptTime> attempts = others;
  attempts.push_back({started, finished});
  return FindConcurrency(attempts, {Row(started, finished)})[0];
}

TEST(Concurrency, OfARunAloneIsOne) {
  EXPECT_EQ(Of({}, 100, 200).mean, 1);
  EXPECT_EQ(Of({}, 100, 200).most, 1);
  EXPECT_EQ(Of({{0, 100}, {200, 300}}, 100, 200).most, 1) << "the next run begins when this one ends";
}

TEST(Concurrency, IsTheMeanOverTheTimeOfTheRun) {
  const Concurrency half = Of({{150, 400}}, 100, 200);
  EXPECT_DOUBLE_EQ(half.mean, 1.5);
  EXPECT_EQ(half.most, 2);
  const Concurrency many = Of({{0, 1000}, {110, 120}, {115, 125}}, 100, 200);
  EXPECT_DOUBLE_EQ(many.mean, 1 + 1 + 0.1 + 0.1);
  EXPECT_EQ(many.most, 4);
}

TEST(Concurrency, AnAttemptThatHasNotEndedRunsUntilNow) { EXPECT_DOUBLE_EQ(Of({{50, 0}}, 100, 200).mean, 2); }

TEST(Concurrency, ARowWithoutResultsOrTimeHasNone) {
  db::CurveRow failed = Row(100, 200);
  failed.state = db::RunState::kFailed;
  const auto found = FindConcurrency({{0, 300}, {100, 200}}, {failed, Row(100, 100)});
  EXPECT_EQ(found[0].most, 1);
  EXPECT_EQ(found[1].mean, 1);
}

TEST(Concurrency, IsThatOfACountOverAllAttempts) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    // Attempts at all times, close together, or close together with a few far away.
    const db::Micros range = round % 3 == 0 ? 1'000'000'000 : 50;
    std::vector<db::AttemptTime> attempts;
    std::vector<db::CurveRow> rows;
    for (size_t i = 0, count = 1 + random() % 60; i < count; ++i) {
      db::Micros begin = 1'000'000 + static_cast<db::Micros>(random() % range);
      if (round % 3 == 2 && random() % 10 == 0) begin += 1'000'000'000'000;
      const db::Micros end = begin + 1 + static_cast<db::Micros>(random() % range);
      attempts.push_back({begin, random() % 8 == 0 ? 0 : end});
      rows.push_back(Row(begin, end));
    }
    const std::vector<Concurrency> found = FindConcurrency(attempts, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      double sum = 0;
      for (const db::AttemptTime& attempt : attempts) {
        const db::Micros end =
            attempt.finished == 0 ? rows[i].finished : std::min(attempt.finished, rows[i].finished);
        sum +=
            static_cast<double>(std::max<db::Micros>(0, end - std::max(attempt.assigned, rows[i].started)));
      }
      const double mean = sum / static_cast<double>(rows[i].finished - rows[i].started);
      EXPECT_NEAR(found[i].mean, std::max(1.0, mean), 1e-9 * mean);
    }
  }
}

TEST(Concurrency, IsAFigureOfEachPointAndANoteOfTheSeries) {
  Results results;
  results.Cell(1).Ok({90, 100}).Cell(2).Ok({180, 190}).Other(db::RunState::kFailed);
  const auto alone = results.Curve({}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}).series(0);
  EXPECT_EQ(alone.points(0).concurrent_attempts(), 1);
  EXPECT_EQ(alone.points(0).most_concurrent_attempts(), 1);
  EXPECT_THAT(alone.notes(), IsEmpty());
  const auto shared = results.Curve({}, {{1, 1}, {1.5, 2}, {2.5, 3}, {3, 4}, {9, 9}}).series(0);
  EXPECT_EQ(shared.points(0).concurrent_attempts(), 1.25);
  EXPECT_EQ(shared.points(0).most_concurrent_attempts(), 2);
  EXPECT_EQ(shared.points(1).concurrent_attempts(), 2.75);
  EXPECT_EQ(shared.points(1).most_concurrent_attempts(), 4);
  ASSERT_EQ(shared.notes_size(), 1);
  EXPECT_THAT(shared.notes(0), HasSubstr("up to 4 runs of the service ran at the same time"));
  EXPECT_THAT(shared.notes(0), HasSubstr("on average 2.0"));
}

}  // namespace
}  // namespace scalelab::analysis
