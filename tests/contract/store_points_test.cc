// The contract of every Store: streams and points.
#include <cmath>
#include <map>

#include "db/continued_points.h"
#include "db/sqlite/sqlite.h"
#include "tests/contract/store_fixture.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StorePoints : public StoreContract {
 protected:
  void SetUp() override {
    StoreContract::SetUp();
    CommitStudyWithAttempt(1);
    CommitStudyWithAttempt(2);
  }
  absl::Status Append(StreamAppend append) {
    WriteBatch batch;
    batch.appends = {std::move(append)};
    return store_->Commit(batch);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, StorePoints, ::testing::ValuesIn(Implementations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StorePoints, AnAppendMovesTheStreamAndAddsItsPoints) {
  StreamAppend append = AnAppend(1, 3, 0, 30);
  append.columns = {AColumn("train/loss", 0, {1.5, 1.25, 1.125})};
  ASSERT_TRUE(Append(append).ok());
  Reopen();
  EXPECT_EQ(Stream(1, 3).position, 30);
  EXPECT_EQ(Stream(1, 3).line, 3);
  const std::vector<Series> all = Points({1, "", {}});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].key, "train/loss");
  EXPECT_EQ(all[0].rank, 3);
  EXPECT_THAT(all[0].line, ElementsAre(0, 1, 2));
  EXPECT_THAT(all[0].step, ElementsAre(0, 2, 4));
  EXPECT_THAT(all[0].time, ElementsAre(1795000000.25, 1795000001.25, 1795000002.25));
  EXPECT_THAT(all[0].value, ElementsAre(1.5, 1.25, 1.125));
}

TEST_P(StorePoints, AResentPartIsRefusedAndNothingOfItsBatchIsWritten) {
  StreamAppend first = AnAppend(1, 0, 0, 30);
  first.columns = {AColumn("loss", 0, {1, 2, 3})};
  ASSERT_TRUE(Append(first).ok());
  WriteBatch batch;
  batch.studies = {AStudy(9)};
  batch.appends = {AnAppend(2, 0, 0, 10), first};
  const absl::Status status = store_->Commit(batch);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("30 is next"));
  EXPECT_THAT(store_->ListStreams(2).value(), IsEmpty());
  EXPECT_TRUE(absl::IsNotFound(store_->GetStudy(9).status()));
  EXPECT_THAT(Points({1, "", {}})[0].value, ElementsAre(1, 2, 3));
}

// A run of three attempts: 1 from the first step to step 9, 2 failed before it began, 3 from step 6 on.
TEST_P(StorePoints, OfAContinuedAttemptHaveEachStepOnce) {
  const auto add = [&](int64_t attempt, const std::string& key, std::vector<int64_t> steps, double value) {
    StreamAppend append = AnAppend(attempt, 0, Stream(attempt, 0).position,
                                   Stream(attempt, 0).position + 10 * std::ssize(steps));
    append.columns = {AColumn(key, append.begin_line, std::vector<double>(steps.size(), value))};
    append.columns[0].step = std::move(steps);
    ASSERT_TRUE(Append(append).ok());
  };
  CommitStudyWithAttempt(3);
  add(1, "train/loss", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 1);
  add(1, "epoch/train_loss", {0, 1}, 1);  // epochs of five steps
  add(1, "old", {4, 8}, 1);
  add(3, "train/loss", {6, 7, 8}, 3);
  add(3, "epoch/train_loss", {1}, 3);
  add(3, "run/steps", {-1}, 3);
  std::vector<AttemptRow> attempts(3);
  for (int i = 0; i < 3; ++i) attempts[i].id = i + 1, attempts[i].number = i + 1;
  attempts[0].checkpoint_step = 6;
  attempts[2].resumed_step = 6;

  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<double>>> found;
  const auto read = [&](int number, const PointFilter& filter = {}) {
    found.clear();
    return ReadContinuedPoints(*store_, AttemptsContinued(attempts, number), filter, [&](Series series) {
      found[series.key] = {series.step, series.value};
    });
  };
  ASSERT_TRUE(read(3).ok());
  EXPECT_THAT(found["train/loss"].first, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(found["train/loss"].second, ElementsAre(1, 1, 1, 1, 1, 1, 3, 3, 3));
  EXPECT_THAT(found["epoch/train_loss"].second, ElementsAre(1, 3));
  EXPECT_THAT(found["old"].first, ElementsAre(4)) << "step 8 was made again";
  EXPECT_THAT(found["run/steps"].first, ElementsAre(-1));
  EXPECT_THAT(found, SizeIs(4));
  ASSERT_TRUE(read(3, {0, "train/loss", 0}).ok());
  EXPECT_THAT(found["train/loss"].first, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(found, SizeIs(1));
  const std::vector<AttemptRow> continued = AttemptsContinued(attempts, 3);
  for (const size_t most : {1, 2, 3, 7}) {
    SeriesReader reader(*store_, continued, {"train/loss", 0});
    EXPECT_EQ(reader.Count().value(), 9u);
    std::vector<int64_t> steps;
    while (!reader.done()) {
      const Series piece = reader.Next(most).value();
      EXPECT_LE(piece.step.size(), most);
      EXPECT_EQ(piece.value.size(), piece.step.size());
      if (!reader.done()) {
        EXPECT_FALSE(piece.step.empty());
      }
      steps.insert(steps.end(), piece.step.begin(), piece.step.end());
    }
    EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8)) << most;
  }
  std::vector<std::string> names;
  SeriesName after;
  for (bool more = true; more;) {
    const auto page = ListContinuedSeries(*store_, continued, {}, after, 2).value();
    EXPECT_LE(page.size(), 2u);
    for (const SeriesName& name : page) names.push_back(name.key), after = name;
    more = !page.empty();
  }
  EXPECT_THAT(names, ElementsAre("epoch/train_loss", "old", "run/steps", "train/loss"));
  ASSERT_TRUE(read(1).ok());
  EXPECT_THAT(found["train/loss"].first, SizeIs(10)) << "it continued nothing";
  ASSERT_TRUE(read(4).ok());
  EXPECT_THAT(found, IsEmpty());
}

TEST_P(StorePoints, AGapIsRefused) {
  EXPECT_TRUE(absl::IsFailedPrecondition(Append(AnAppend(1, 0, 10, 20))));
  ASSERT_TRUE(Append(AnAppend(1, 0, 0, 10)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Append(AnAppend(1, 0, 20, 30))));
  EXPECT_TRUE(Append(AnAppend(1, 0, 10, 20)).ok());
  EXPECT_EQ(Stream(1, 0).position, 20);
}

TEST_P(StorePoints, PartsOfOneStreamMayFollowEachOtherInOneBatch) {
  WriteBatch batch;
  batch.appends = {AnAppend(1, 0, 0, 20), AnAppend(1, 0, 20, 40)};
  batch.appends[0].columns = {AColumn("loss", 0, {1, 2})};
  batch.appends[1].columns = {AColumn("loss", 2, {3, 4})};
  Commit(batch);
  EXPECT_EQ(Stream(1, 0).position, 40);
  EXPECT_THAT(Points({1, "", {}})[0].value, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Points({1, "", {}})[0].line, ElementsAre(0, 1, 2, 3));
}

TEST_P(StorePoints, WhatAStreamKnowsIsMergedAndKept) {
  StreamAppend append = AnAppend(1, 0, 0, 10);
  append.malformed = 2;
  append.first_malformed = "line 3: not JSON";
  append.finished = true;
  append.parameter_hash = "beef";
  append.error_kind = "data";
  append.error_message = "no file";
  ASSERT_TRUE(Append(append).ok());
  append = AnAppend(1, 0, 10, 20);
  append.malformed = 1;
  append.first_malformed = "line 7: not JSON";
  append.error_kind = "communication";
  append.error_message = "peer is gone";
  ASSERT_TRUE(Append(append).ok());
  ASSERT_TRUE(Append(AnAppend(1, 0, 20, 30)).ok());
  const StreamRow stream = Stream(1, 0);
  EXPECT_EQ(stream.position, 30);
  EXPECT_EQ(stream.malformed, 3);
  EXPECT_EQ(stream.first_malformed, "line 3: not JSON");
  EXPECT_TRUE(stream.finished);
  EXPECT_EQ(stream.parameter_hash, "beef");
  EXPECT_EQ(stream.error_kind, "data");
  EXPECT_EQ(stream.error_message, "no file");
}

TEST_P(StorePoints, SeriesComeByKeyAndRankAndCanBeChosen) {
  WriteBatch batch;
  for (int rank : {2, 0, 1}) {
    StreamAppend append = AnAppend(1, rank, 0, 10);
    append.columns = {AColumn("step/total_s", 0, {0.1 * rank}), AColumn("loss", 0, {1.0 * rank})};
    batch.appends.push_back(append);
  }
  Commit(batch);
  const auto names = [&](const PointFilter& filter) {
    std::vector<std::string> out;
    for (const Series& s : Points(filter)) out.push_back(s.key + "/" + std::to_string(s.rank));
    return out;
  };
  EXPECT_THAT(names({1, "", {}}), ElementsAre("loss/0", "loss/1", "loss/2", "step/total_s/0",
                                              "step/total_s/1", "step/total_s/2"));
  EXPECT_THAT(names({1, "loss", {}}), ElementsAre("loss/0", "loss/1", "loss/2"));
  EXPECT_THAT(names({1, "", 1}), ElementsAre("loss/1", "step/total_s/1"));
  EXPECT_THAT(names({1, "loss", 2}), ElementsAre("loss/2"));
  EXPECT_THAT(names({1, "nothing", {}}), IsEmpty());
  EXPECT_THAT(names({2, "", {}}), IsEmpty());
}

TEST_P(StorePoints, TheFirstPointsOfASeriesCanBeHadAlone) {
  std::vector<double> values;
  for (int i = 0; i < 10'000; ++i) values.push_back(0.5 * i);
  StreamAppend append = AnAppend(1, 0, 0, 10'000);
  append.columns = {AColumn("loss", 0, values), AColumn("rare", 0, {7})};
  ASSERT_TRUE(Append(append).ok());
  const Series first = Points({1, "loss", 0, 3}).at(0);
  EXPECT_THAT(first.value, ElementsAre(0, 0.5, 1));
  EXPECT_EQ(first.line.size(), 3u);
  EXPECT_EQ(first.step.size(), 3u);
  EXPECT_EQ(first.time.size(), 3u);
  EXPECT_THAT(Points({1, "rare", 0, 3}).at(0).value, ElementsAre(7));
  EXPECT_EQ(Points({1, "loss", 0, 5000}).at(0).value.size(), 5000u);
}

TEST_P(StorePoints, NumbersComeBackBitForBit) {
  const std::vector<double> odd = {
      0.1, -0.0, 1e308, 5e-324, 1.0 / 3, std::numeric_limits<double>::infinity(), std::nan("")};
  StreamAppend append = AnAppend(1, 0, 0, 10'000);
  PointColumn column = AColumn("odd", 0, odd);
  column.line = {0, 1, 5, 7, 100, 1000, 4'000'000'000};
  column.step = {-1, 0, 3, INT64_MAX, INT64_MIN, 2, 2};
  append.columns = {column};
  ASSERT_TRUE(Append(append).ok());
  const Series series = Points({1, "odd", 0}).at(0);
  EXPECT_THAT(series.line, ElementsAreArray(column.line));
  EXPECT_THAT(series.step, ElementsAreArray(column.step));
  for (size_t i = 0; i + 1 < odd.size(); ++i) {
    EXPECT_EQ(series.value[i], odd[i]);
    EXPECT_EQ(std::signbit(series.value[i]), std::signbit(odd[i]));
  }
  EXPECT_TRUE(std::isnan(series.value.back()));
}

TEST_P(StorePoints, LongAndManyPartsComeBackInOrder) {
  std::vector<double> expected;
  int64_t position = 0;
  for (int part = 0; part < 40; ++part) {
    // One series is much longer than a chunk.
    const int count = part == 20 ? 10'001 : 1 + part % 5;
    std::vector<double> values(count);
    for (double& v : values) v = static_cast<double>(expected.size()), expected.push_back(v);
    StreamAppend append = AnAppend(1, 0, position, position + 10 * count);
    append.columns = {AColumn("x", position / 10, values)};
    position += 10 * count;
    ASSERT_TRUE(Append(append).ok());
  }
  const Series series = Points({1, "x", 0}).at(0);
  EXPECT_EQ(series.value, expected);
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(series.line[i], static_cast<int64_t>(i));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(series.step[i], static_cast<int64_t>(2 * i));
}

// Reads a series in pieces, and calls `between` after each piece. Returns the number of pieces.
size_t ReadInPieces(Store& store, size_t most, const std::function<void()>& between, Series& all) {
  std::vector<AttemptRow> attempts(1);
  attempts[0].id = 1;
  SeriesReader reader(store, attempts, {"x", 0});
  size_t pieces = 0;
  for (; !reader.done(); ++pieces) {
    const absl::StatusOr<Series> piece = reader.Next(most);
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (!piece.ok()) break;
    EXPECT_LE(piece->value.size(), most);
    all.line.insert(all.line.end(), piece->line.begin(), piece->line.end());
    all.step.insert(all.step.end(), piece->step.begin(), piece->step.end());
    all.time.insert(all.time.end(), piece->time.begin(), piece->time.end());
    all.value.insert(all.value.end(), piece->value.begin(), piece->value.end());
    between();
  }
  const absl::StatusOr<size_t> count = reader.Count();
  EXPECT_TRUE(count.ok()) << count.status();
  EXPECT_EQ(count.value_or(0), all.value.size());
  return pieces;
}

TEST_P(StorePoints, ALongSeriesIsReadInPiecesWhileItsChunksAreMerged) {
  constexpr int64_t kParts = 1200, kPart = 250;
  constexpr size_t kPoints = kParts * kPart;
  WriteBatch batch;
  for (int64_t part = 0; part < kParts; ++part) {
    std::vector<double> values(kPart);
    for (int64_t i = 0; i < kPart; ++i) values[i] = 0.1 * static_cast<double>(part * kPart + i);
    StreamAppend& append =
        batch.appends.emplace_back(AnAppend(1, 0, 10 * part * kPart, 10 * (part + 1) * kPart));
    append.columns = {AColumn("x", part * kPart, values)};
  }
  batch.attempts = {AnAttempt(1, 1)};
  batch.attempts[0].state = AttemptState::kSucceeded;
  Commit(batch);
  const Series whole = Points({1, "x", 0}).at(0);
  ASSERT_EQ(whole.value.size(), kPoints);
  for (const size_t most : {size_t{1000}, size_t{7777}, kPointsPerPiece, kPoints, 2 * kPoints}) {
    Series all;
    int calls = 0;
    const size_t pieces = ReadInPieces(
        *store_, most,
        [&] {
          if (++calls % 3 == 0) {
            EXPECT_TRUE(store_->Maintain().ok());
          }
        },
        all);
    EXPECT_EQ(pieces, kPoints / most + 1);
    EXPECT_TRUE(all.line == whole.line && all.step == whole.step && all.time == whole.time &&
                all.value == whole.value)
        << most;
  }
}

TEST_P(StorePoints, PointsThatAreAppendedBetweenPiecesAreRead) {
  int64_t position = 0;
  const auto append = [&] {
    StreamAppend more = AnAppend(1, 0, 10 * position, 10 * position + 50);
    more.columns = {AColumn("x", position, {0, 1, 2, 3, 4})};
    position += 5;
    ASSERT_TRUE(Append(more).ok());
  };
  append();
  Series all;
  const size_t pieces = ReadInPieces(
      *store_, 3,
      [&] {
        if (position < 20) append();
      },
      all);
  EXPECT_EQ(pieces, 7u);
  EXPECT_EQ(all.line, Points({1, "x", 0}).at(0).line);
  EXPECT_EQ(all.line.size(), 20u);
}

TEST_P(StorePoints, APieceOfADeletedSeriesIsNotFound) {
  StreamAppend append = AnAppend(1, 0, 0, 50);
  append.columns = {AColumn("x", 0, {0, 1, 2, 3, 4})};
  ASSERT_TRUE(Append(append).ok());
  std::vector<AttemptRow> attempts(1);
  attempts[0].id = 1;
  SeriesReader reader(*store_, attempts, {"x", 0}), late = reader;
  ASSERT_TRUE(reader.Next(3).ok());
  WriteBatch batch;
  batch.deleted_studies = {1};
  Commit(batch);
  EXPECT_TRUE(absl::IsNotFound(reader.Next(3).status()));
  EXPECT_TRUE(absl::IsNotFound(reader.Count().status()));
  const absl::StatusOr<Series> none = late.Next(3);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(none->value, IsEmpty());
  EXPECT_TRUE(late.done());
}

TEST_P(StorePoints, ColumnsThatMakeNoSenseAreRefused) {
  const auto refused = [&](auto change) {
    StreamAppend append = AnAppend(1, 0, 0, 10);
    append.columns = {AColumn("x", 0, {1, 2})};
    change(append);
    return absl::IsInvalidArgument(Append(append));
  };
  EXPECT_TRUE(refused([](StreamAppend& a) { a.columns[0].value.pop_back(); }));
  EXPECT_TRUE(refused([](StreamAppend& a) { a.columns[0].line[1] = 0; }));
  EXPECT_TRUE(refused([](StreamAppend& a) { a.columns[0].line[0] = -1; }));
  EXPECT_TRUE(refused([](StreamAppend& a) { a.columns[0].line[1] = int64_t{1} << 32; }));
  EXPECT_TRUE(refused([](StreamAppend& a) { a.end_position = -1; }));
  EXPECT_THAT(store_->ListStreams(1).value(), IsEmpty());
}

TEST_P(StorePoints, TakersMayUseTheStore) {
  WriteBatch batch;
  for (int rank = 0; rank < 8; ++rank) {
    batch.appends.push_back(AnAppend(1, rank, 0, 10));
    batch.appends.back().columns = {AColumn("x", 0, {1})};
  }
  Commit(batch);
  int taken = 0;
  ASSERT_TRUE(store_
                  ->ReadPoints({1, "", {}},
                               [&](Series series) {
                                 ++taken;
                                 WriteBatch more;
                                 more.appends = {AnAppend(1, series.rank, 10, 20)};
                                 EXPECT_TRUE(store_->Commit(more).ok());
                                 EXPECT_TRUE(store_->GetRun(1).ok());
                               })
                  .ok());
  EXPECT_EQ(taken, 8);
}

TEST_P(StorePoints, ASeriesThatIsDeletedDuringAReadIsLeftOut) {
  for (const bool also_rows : {false, true}) {
    const int64_t id = also_rows ? 2 : 1;
    StreamAppend append = AnAppend(id, 0, 0, 30);
    append.columns = {AColumn("a", 0, {1, 2, 3}), AColumn("b", 0, {4, 5, 6})};
    ASSERT_TRUE(Append(append).ok());
    std::vector<std::string> keys;
    const absl::Status read = store_->ReadPoints({id, "", {}}, [&](const Series& series) {
      keys.push_back(series.key);
      EXPECT_THAT(series.value, SizeIs(3)) << series.key;
      WriteBatch batch;
      batch.deleted_studies = {id};
      Commit(batch);
      absl::StatusOr<bool> more = also_rows;
      while (more.ok() && *more) more = store_->Maintain();
      EXPECT_TRUE(more.ok()) << more.status();
    });
    EXPECT_TRUE(read.ok()) << read;
    EXPECT_THAT(keys, ElementsAre("a")) << "with the rows: " << also_rows;
  }
}

// An archive may have such a series.
TEST_P(StorePoints, ASeriesWithoutPointsIsLeftOut) {
  StreamAppend append = AnAppend(1, 0, 0, 30);
  append.columns = {AColumn("a", 0, {1, 2, 3}), AColumn("b", 0, {4, 5, 6})};
  ASSERT_TRUE(Append(append).ok());
  ASSERT_TRUE(
      store_
          ->WriteRows([](Database& db) {
            return db.Execute(
                "DELETE FROM point_chunk WHERE id >> 32 = (SELECT e.id FROM series e JOIN metric_key k ON "
                "k.id = e.key_id WHERE k.name = 'a')");
          })
          .ok());
  const std::vector<Series> all = Points({1, "", {}});
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].key, "b");
}

}  // namespace
}  // namespace scalelab::db
