#include "db/block_codec.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "db/point_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::db {
namespace {

constexpr size_t kAnySize = 1 << 20;

// Returns the blob, after checking that all values come back bit for bit.
std::string Encode(const std::vector<double>& values) {
  const std::optional<std::string> blob = EncodeBlocks(values, kAnySize);
  EXPECT_TRUE(blob.has_value());
  std::vector<double> out = {7};
  EXPECT_TRUE(DecodeBlocks(*blob, values.size(), out));
  EXPECT_EQ(out.size(), values.size() + 1);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(out[i + 1]), std::bit_cast<uint64_t>(values[i]))
        << i << ": " << values[i];
  }
  return *blob;
}

double BitsEach(const std::vector<double>& values) {
  return 8.0 * static_cast<double>(Encode(values).size()) / static_cast<double>(values.size());
}

TEST(BlockCodec, SmoothNumbersNeedFewBits) {
  std::vector<double> slow, fast, squares, equal(4096, 0.7);
  for (int i = 0; i < 4096; ++i) {
    slow.push_back(std::sin(0.001 * i));
    fast.push_back(std::sin(0.01 * i));
    squares.push_back(0.25 * i * i - 3 * i);
  }
  EXPECT_LT(BitsEach(slow), 42);
  EXPECT_LT(BitsEach(fast), 52);
  EXPECT_LT(BitsEach(squares), 4) << "only headers";
  EXPECT_LT(BitsEach(equal), 4);
}

TEST(BlockCodec, ASpecialNumberCostsOnlyItsBlock) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0.1f, 2.3f);
  std::vector<double> floats;
  for (int i = 0; i < 4096; ++i) floats.push_back(uniform(random));
  const size_t before = Encode(floats).size();
  floats[700] = std::nan("");
  floats[2000] = -std::numeric_limits<double>::infinity();
  EXPECT_LT(Encode(floats).size(), before + 2 * 8 * kBlock);
}

TEST(BlockCodec, AnyDoublesComeBackBitForBit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kMost = std::numeric_limits<double>::max(), kTiny = 5e-324;
  std::vector<std::vector<double>> cases = {{0.1},
                                            {-0.0},
                                            {0.0, -0.0},
                                            {1, 2, -0.0},
                                            {kMost, kTiny, -kMost, -kTiny},
                                            {kTiny},
                                            {std::nan(""), 1},
                                            {kInfinity, -kInfinity},
                                            {1e22, -1e22, 3},
                                            std::vector<double>(65, 0.0),
                                            {kMost, -kMost},
                                            {kTiny, 3 * kTiny, 7 * kTiny, -2 * kTiny},
                                            {std::bit_cast<double>(uint64_t{0x7ff0000000000001})}};
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 3000; ++round) {
    std::vector<double>& values = cases.emplace_back();
    double walk = normal(random);
    for (size_t i = 0, count = 1 + random() % 200; i < count; ++i) {
      walk += 0.001 * normal(random);
      const double of_kind[] = {
          std::bit_cast<double>(random()),
          walk,
          static_cast<float>(walk),
          std::ldexp(normal(random), -1070 + static_cast<int>(random() % 4)),
          random() % 10 == 0 ? kInfinity : std::sin(0.01 * static_cast<double>(i)),
          static_cast<double>(random() % 5) - 2,
          std::bit_cast<double>(0x7fefffffffffffff - (random() % 100) + (random() % 2 << 63)),
          std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 3) * 30)};
      values.push_back(of_kind[round % std::size(of_kind)]);
    }
  }
  for (const std::vector<double>& values : cases) Encode(values);
}

TEST(BlockCodec, NothingLongerThanTheLimitIsReturned) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  for (int i = 0; i < 4096; ++i) values.push_back(std::bit_cast<double>(random()));
  EXPECT_FALSE(EncodeBlocks(values, 8 * values.size()).has_value());
  values.resize(100);
  const size_t size = Encode(values).size();
  EXPECT_TRUE(EncodeBlocks(values, size).has_value());
  EXPECT_FALSE(EncodeBlocks(values, size - 1).has_value());
  EXPECT_FALSE(EncodeBlocks({}, kAnySize).has_value());
  EXPECT_FALSE(EncodeBlocks(std::vector<double>(kMaxChunk + 1), kAnySize).has_value());
}

TEST(BlockCodec, DamagedBlobsAreRefused) {
  std::vector<double> values, out;
  for (int i = 0; i < 130; ++i) values.push_back(std::sin(i));
  const std::string blob = Encode(values);
  EXPECT_FALSE(DecodeBlocks(blob.substr(0, blob.size() - 1), values.size(), out));
  EXPECT_FALSE(DecodeBlocks(blob.substr(0, 3 * kHeader - 1), values.size(), out));
  EXPECT_FALSE(DecodeBlocks("", values.size(), out));
  EXPECT_FALSE(DecodeBlocks(blob, 0, out));
  EXPECT_FALSE(DecodeBlocks(blob, kMaxChunk + 1, out));
  EXPECT_FALSE(DecodeBlocks(blob, std::numeric_limits<size_t>::max(), out));
  const auto with = [&](size_t at, char byte) {
    std::string changed = blob;
    changed[kHeader + at] = byte;  // in the second block
    return DecodeBlocks(changed, values.size(), out);
  };
  EXPECT_FALSE(with(28, 57)) << "no such width";
  EXPECT_FALSE(with(28, 65));
  EXPECT_FALSE(with(29, 64)) << "no such shift";
  EXPECT_FALSE(with(25, '\x7f')) << "outside of the blob";
  EXPECT_FALSE(with(27, '\x7f')) << "no such exponent";
  EXPECT_TRUE(out.empty());
  std::mt19937 random(1);
  for (int round = 0; round < 10'000; ++round) {
    std::string changed = blob;
    for (int i = 0; i < 3; ++i) changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
    out.clear();
    DecodeBlocks(changed, values.size(), out);  // must not read outside of the blob
  }
}

}  // namespace
}  // namespace scalelab::db
