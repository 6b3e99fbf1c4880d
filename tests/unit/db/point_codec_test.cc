#include "db/point_codec.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::db {
namespace {

using ::testing::ElementsAre;

StoredFrame Stored(const Frame& frame) { return {frame.base, frame.stride, frame.shift, frame.bytes}; }

std::vector<int64_t> RoundTrip(const std::vector<int64_t>& values, size_t* bytes) {
  const Frame frame = EncodeInts(values);
  *bytes = frame.bytes.size();
  std::vector<int64_t> out;
  EXPECT_TRUE(DecodeInts(Stored(frame), values.size(), out));
  return out;
}

// Returns the number of bytes of each value, after checking that all come back bit for bit.
size_t BytesEach(const std::vector<double>& values) {
  int kind = 0;
  const Frame frame = EncodeValues(values, kind);
  std::vector<double> out;
  EXPECT_TRUE(DecodeDoubles(Stored(frame), kind, values.size(), out));
  EXPECT_EQ(out.size(), values.size());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(out[i]), std::bit_cast<uint64_t>(values[i])) << i << ": " << values[i];
  }
  return frame.bytes.size() / values.size();
}

TEST(PointCodec, AProgressionNeedsNoBytes) {
  const std::vector<std::vector<int64_t>> progressions = {
      {5, 6, 7, 8}, {0, 10, 20}, {9, 7, 5, 3}, {4, 4, 4, 4}, {7}};
  for (const auto& values : progressions) {
    size_t bytes = 1;
    EXPECT_EQ(RoundTrip(values, &bytes), values);
    EXPECT_EQ(bytes, 0u);
  }
}

TEST(PointCodec, IntegersNearALineNeedFewBytes) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 4096; ++i) values.push_back(1'000'000'000'000 - 391 * i + i * i % 7);
  size_t bytes = 0;
  EXPECT_EQ(RoundTrip(values, &bytes), values);
  EXPECT_EQ(bytes, values.size());
}

TEST(PointCodec, AnyIntegersComeBack) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> cases = {{7, 3},
                                             {1, 2, 4},
                                             {kLeast, kMost, 0},
                                             {kMost, kLeast, kLeast + 1},
                                             {kMost, kMost - 1, kMost},
                                             {kLeast, kLeast},
                                             {0, kMost},
                                             {kMost - 3, kMost - 2, kMost},
                                             {-1, 0, 3, kMost, kLeast, 2, 2}};
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t>& values = cases.emplace_back();
    const size_t count = 1 + random() % 20;
    const int bits = static_cast<int>(random() % 64);
    for (size_t i = 0; i < count; ++i)
      values.push_back(static_cast<int64_t>(random() >> bits) - (round % 2 ? 5 : 0));
  }
  for (const auto& values : cases) {
    size_t bytes = 0;
    ASSERT_EQ(RoundTrip(values, &bytes), values);
  }
}

TEST(PointCodec, FloatsNeedFourBytesAndDurationsInNanosecondsToo) {
  std::mt19937 random(1);
  std::vector<double> floats, durations, full;
  std::uniform_real_distribution<double> uniform(0.1, 2.3);
  for (int i = 0; i < 4096; ++i) {
    floats.push_back(static_cast<float>(uniform(random)));
    durations.push_back(static_cast<double>(30'000'000 + random() % 5'000'000) / 1e9);
    full.push_back(uniform(random));
  }
  EXPECT_LE(BytesEach(floats), 4u);
  EXPECT_LE(BytesEach(durations), 3u);
  EXPECT_EQ(BytesEach(full), 7u);
  EXPECT_EQ(BytesEach(std::vector<double>(100, 0.91)), 0u);
}

TEST(PointCodec, AnyDoublesComeBackBitForBit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& values : std::vector<std::vector<double>>{{0.1},
                                                             {-0.0},
                                                             {0.0, -0.0},
                                                             {1, 2, -0.0},
                                                             {1e308, 5e-324, -1e308},
                                                             {std::nan(""), 1},
                                                             {kInfinity, -kInfinity},
                                                             {9007199254740992, 1},
                                                             {0.001, 0.0000000001},
                                                             {1795000000.25, 1795000000.5}}) {
    BytesEach(values);
  }
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> values;
    for (size_t i = 0, count = 1 + random() % 9; i < count; ++i)
      values.push_back(std::bit_cast<double>(random()));
    BytesEach(values);
  }
}

TEST(PointCodec, BlocksAreChosenWhereTheyAreShorter) {
  std::vector<double> wave, noise;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0.1, 2.3);
  for (int i = 0; i < 1000; ++i) {
    wave.push_back(std::sin(0.005 * i));
    noise.push_back(uniform(random));
  }
  int kind = 0;
  EXPECT_LT(EncodeValues(wave, kind).bytes.size(), 6 * wave.size());
  EXPECT_EQ(kind, kBlocks);
  EXPECT_EQ(EncodeValues(noise, kind).bytes.size(), 7 * noise.size());
  EXPECT_EQ(kind, kBits);
  BytesEach(wave);
}

// The bytes of these frames are what versions without blocks have written.
TEST(PointCodec, FramesOfOlderVersionsAreRead) {
  std::vector<double> doubles;
  const absl::string_view bits("\x00\x00\x01\x00\x03\x00", 6);  // 2, 2.5 and 3.5
  ASSERT_TRUE(DecodeDoubles({0x4000000000000000, 0, 50, bits}, kBits, 3, doubles));
  EXPECT_THAT(doubles, ElementsAre(2, 2.5, 3.5));
  doubles.clear();
  ASSERT_TRUE(DecodeDoubles({-5, 0, 0, absl::string_view("\x00\x01\x10", 3)}, kDecimal + 3, 3, doubles));
  EXPECT_THAT(doubles, ElementsAre(-0.005, -0.004, 0.011));
}

TEST(PointCodec, TimesOfSteadyStepsNeedThreeBytes) {
  std::mt19937 random(1);
  std::normal_distribution<double> step(0.031, 0.003);
  std::vector<double> times = {1795000000.25};
  while (times.size() < 4096) times.push_back(times.back() + step(random));
  const Frame frame = EncodeTimes(times);
  EXPECT_LE(frame.bytes.size(), 3 * times.size());
  std::vector<double> out;
  ASSERT_TRUE(DecodeDoubles(Stored(frame), kBits, times.size(), out));
  EXPECT_EQ(out, times);
}

TEST(PointCodec, AppendsBehindWhatIsThere) {
  std::vector<int64_t> ints = {1};
  EXPECT_TRUE(DecodeInts(Stored(EncodeInts(std::vector<int64_t>{3, 5, 8})), 3, ints));
  EXPECT_THAT(ints, ElementsAre(1, 3, 5, 8));
  std::vector<double> doubles = {2};
  int kind = 0;
  const Frame frame = EncodeValues(std::vector<double>{0.5, 0.25}, kind);
  EXPECT_TRUE(DecodeDoubles(Stored(frame), kind, 2, doubles));
  EXPECT_THAT(doubles, ElementsAre(2, 0.5, 0.25));
}

TEST(PointCodec, DamagedFramesAreRefused) {
  std::vector<int64_t> ints;
  std::vector<double> doubles;
  const std::string bytes(64, '\x7f');
  const auto frame = [&](size_t size, int64_t shift) {
    return StoredFrame{INT64_MAX, INT64_MAX, shift, absl::string_view(bytes).substr(0, size)};
  };
  EXPECT_FALSE(DecodeInts(frame(9, 0), 4, ints)) << "no whole number of bytes";
  EXPECT_FALSE(DecodeInts(frame(36, 0), 4, ints)) << "more than eight bytes";
  EXPECT_FALSE(DecodeInts(frame(0, 0), 0, ints));
  EXPECT_FALSE(DecodeInts(frame(0, 0), kMaxChunk + 1, ints));
  EXPECT_FALSE(DecodeInts(frame(0, 0), std::numeric_limits<size_t>::max(), ints));
  EXPECT_FALSE(DecodeInts(frame(8, 64), 8, ints));
  EXPECT_FALSE(DecodeInts(frame(8, -1), 8, ints));
  EXPECT_FALSE(DecodeDoubles(frame(8, 0), 0, 8, doubles));
  EXPECT_FALSE(DecodeDoubles(frame(8, 0), kMaxKind + 1, 8, doubles));
  EXPECT_FALSE(DecodeDoubles(frame(8, 0), kBlocks, 8, doubles));
  EXPECT_TRUE(ints.empty() && doubles.empty());
  EXPECT_TRUE(DecodeInts(frame(8, 63), 8, ints)) << "overflow is only a wrong number";
}

TEST(PointCodec, ColumnsOfOlderDatabasesAreReadAndDamagedOnesAreRefused) {
  const int64_t terms[] = {3, 5};
  const absl::string_view two(reinterpret_cast<const char*>(terms), sizeof(terms));
  std::vector<int64_t> ints;
  EXPECT_TRUE(AppendInts(two, 4, ints));
  EXPECT_THAT(ints, ElementsAre(3, 5, 7, 9));
  EXPECT_TRUE(AppendInts(two, 2, ints));
  EXPECT_THAT(ints, ElementsAre(3, 5, 7, 9, 3, 5));
  std::vector<double> doubles;
  const double numbers[] = {0.5, 0.25};
  EXPECT_TRUE(AppendDoubles({reinterpret_cast<const char*>(numbers), 16}, 2, doubles));
  EXPECT_THAT(doubles, ElementsAre(0.5, 0.25));
  EXPECT_FALSE(AppendInts(two, 1, ints));
  EXPECT_FALSE(AppendInts(two.substr(0, 9), 1, ints));
  EXPECT_FALSE(AppendInts(two, kMaxChunk + 1, ints));
  EXPECT_FALSE(AppendInts("", size_t{1} << 61, ints)) << "the number of bytes overflows to 0";
  EXPECT_FALSE(AppendInts("", 0, ints));
  EXPECT_FALSE(AppendDoubles("", size_t{1} << 61, doubles));
  EXPECT_FALSE(AppendDoubles(two, 4, doubles));
}

}  // namespace
}  // namespace scalelab::db
