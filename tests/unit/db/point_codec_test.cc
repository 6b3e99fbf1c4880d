#include "db/point_codec.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> RoundTrip(const std::vector<int64_t>& values, size_t* stored) {
  *stored = StoredInts(values.data(), values.size());
  std::vector<int64_t> out;
  EXPECT_TRUE(AppendInts(values.data(), *stored * sizeof(int64_t), values.size(), out));
  return out;
}

TEST(PointCodec, AProgressionIsStoredAsItsFirstTwoTerms) {
  const std::vector<std::vector<int64_t>> progressions = {
      {5, 6, 7, 8}, {0, 10, 20}, {9, 7, 5, 3}, {4, 4, 4, 4}, {INT64_MAX, INT64_MIN, INT64_MIN + 1}};
  for (const auto& values : progressions) {
    size_t stored = 0;
    EXPECT_EQ(RoundTrip(values, &stored), values);
    EXPECT_EQ(stored, 2u);
  }
}

TEST(PointCodec, AnythingElseIsStoredInFull) {
  for (const auto& values : std::vector<std::vector<int64_t>>{
           {}, {7}, {7, 3}, {1, 2, 4}, {1, 2, 3, 5}, {INT64_MIN, INT64_MAX, 0}}) {
    size_t stored = 0;
    EXPECT_EQ(RoundTrip(values, &stored), values);
    EXPECT_EQ(stored, values.size());
  }
}

TEST(PointCodec, AppendsBehindWhatIsThere) {
  const int64_t terms[] = {3, 5};
  std::vector<int64_t> ints = {1};
  EXPECT_TRUE(AppendInts(terms, 16, 4, ints));
  EXPECT_THAT(ints, ElementsAre(1, 3, 5, 7, 9));
  const double numbers[] = {0.5, 0.25};
  std::vector<double> doubles = {2};
  EXPECT_TRUE(AppendDoubles(numbers, 16, 2, doubles));
  EXPECT_THAT(doubles, ElementsAre(2, 0.5, 0.25));
}

TEST(PointCodec, RefusesBlobsOfAWrongSize) {
  const char bytes[64] = {};
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  EXPECT_FALSE(AppendInts(bytes, 24, 4, ints));
  EXPECT_FALSE(AppendInts(bytes, 16, 1, ints));
  EXPECT_FALSE(AppendInts(bytes, 9, 1, ints));
  EXPECT_FALSE(AppendDoubles(bytes, 16, 4, doubles));
}

}  // namespace
}  // namespace scalelab::db
