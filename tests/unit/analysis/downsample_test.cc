#include "analysis/downsample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::analysis {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Downsample, KeepsAllWhenThereAreNoMoreThanAskedFor) {
  EXPECT_THAT(Downsample({0, 1, 2}, {5, 6, 7}, 10), ElementsAre(0, 1, 2));
  EXPECT_THAT(Downsample({0, 1, 2}, {5, 6, 7}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(Downsample({}, {}, 3), IsEmpty());
}

TEST(Downsample, TakesTheLargestTriangleOfEachBucket) {
  // The buckets between the ends 0 and 5 are {1, 2} and {3, 4}. Twice the areas of the triangles, computed by
  // hand: with the corners (0, 0) and (3.5, 0.5), the mean of the second bucket, 0.5 for point 1 and 30.5 for
  // point 2. With the corners (2, 9) and (5, 0), 15 for point 3 and 9 for point 4.
  EXPECT_THAT(Downsample({0, 1, 2, 3, 4, 5}, {0, 0, 9, 1, 0, 0}, 4), ElementsAre(0, 2, 3, 5));
}

TEST(Downsample, KeepsASpikeAndTheEnds) {
  std::vector<double> x(10'000), y(10'000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i), y[i] = std::sin(x[i] / 500);
  y[7'777] = 50;
  const std::vector<size_t> chosen = Downsample(x, y, 100);
  ASSERT_EQ(chosen.size(), 100u);
  EXPECT_EQ(chosen.front(), 0u);
  EXPECT_EQ(chosen.back(), 9'999u);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
  EXPECT_THAT(chosen, ::testing::Contains(7'777u));
}

TEST(Downsample, NanNeitherWinsNorSpoilsTheRest) {
  std::vector<double> x(1000), y(1000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i), y[i] = i % 3 == 0 ? std::nan("") : 1;
  y[500] = 9;
  const std::vector<size_t> chosen = Downsample(x, y, 20);
  EXPECT_EQ(chosen.size(), 20u);
  EXPECT_THAT(chosen, ::testing::Contains(500u));
  EXPECT_EQ(Downsample(x, std::vector<double>(1000, std::nan("")), 20).size(), 20u);
}

TEST(Downsample, ReturnsNoMorePointsThanAskedFor) {
  const std::vector<double> x = {0, 1, 2, 3, 4}, y = {5, 6, 7, 8, 9};
  EXPECT_THAT(Downsample(x, y, 0), IsEmpty());
  EXPECT_THAT(Downsample(x, y, 1), ElementsAre(4)) << "the newest";
  EXPECT_THAT(Downsample(x, y, 2), ElementsAre(0, 4));
}

TEST(Downsample, ASeriesThatIsNotInMemoryIsReadTwiceFromStartToEnd) {
  constexpr size_t kSize = 5'000;
  std::vector<double> x(kSize), y(kSize);
  for (size_t i = 0; i < kSize; ++i) x[i] = static_cast<double>(i), y[i] = std::sin(x[i] * x[i] / 500);
  for (size_t i = 0; i < kSize; i += 7) y[i] = std::nan("");
  struct Point {
    double x, y;
    size_t index;
  };
  for (const size_t count : {size_t{1}, size_t{2}, size_t{3}, size_t{100}, size_t{3'333}, kSize - 1}) {
    size_t ahead = 0, behind = 0;  // the last indexes
    const auto read = [&](size_t i, size_t& last) {
      EXPECT_TRUE(i > last || i == 0) << count;
      last = i;
      return Point{x[i], y[i], i};
    };
    std::vector<size_t> chosen;
    for (Downsampler points(kSize, count); !points.done();) {
      chosen.push_back(
          points.Next([&](size_t i) { return read(i, ahead); }, [&](size_t i) { return read(i, behind); })
              .index);
      if (chosen.size() > 1 && chosen.size() < count) {
        EXPECT_GT(ahead, behind);
      }
    }
    EXPECT_EQ(chosen, Downsample(x, y, count));
    EXPECT_EQ(chosen.size(), count);
  }
}

}  // namespace
}  // namespace scalelab::analysis
