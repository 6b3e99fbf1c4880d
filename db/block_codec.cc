#include "db/block_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "db/point_codec.h"

namespace scalelab::db {
namespace {

static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");

constexpr uint64_t kSign = uint64_t{1} << 63, kMiddle = uint64_t{1} << 62;
constexpr int kMostBits = 56;  // eight bytes hold so many bits at any bit offset within a byte
// No sum overflows if all numbers are at most kFarthest in magnitude and their range is at most kSteepest
// (for a parabola, kCurved).
constexpr int64_t kFarthest = int64_t{1} << 61;
constexpr uint64_t kSteepest = uint64_t{1} << 60, kCurved = uint64_t{1} << 54;
constexpr int kWholeBits = 60;  // maximum number of bits of a whole number
// Exponents of the least and the largest power of two that a double can be a whole multiple of.
constexpr int kLeastExponent = -1074, kMostExponent = 1023;

struct Block {
  int64_t base = 0, stride = 0, curve = 0;
  int scale = 0, width = 64, shift = 0;
};

// A header as it is stored.
struct Header {
  int64_t base, stride, curve;
  uint16_t place, scale;
  uint8_t width, shift;
};
static_assert(offsetof(Header, shift) + 1 == kHeader);

int64_t Fold(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  return static_cast<int64_t>(((bits & ~kSign) - kMiddle) << 1 | bits >> 63);
}

double Unfold(int64_t number) {
  const uint64_t magnitude = static_cast<uint64_t>(number >> 1) + kMiddle;
  return std::bit_cast<double>(magnitude | static_cast<uint64_t>(number) << 63);
}

// Returns the largest exponent for which all values are whole multiples of its power of two, and sets `whole` to these
// whole numbers. Returns nothing if there is none, or if the numbers are too large.
std::optional<int> Whole(std::span<const double> values, int64_t* whole) {
  constexpr int kPoint = 1075;  // exponent bits of a double whose mantissa is a whole number
  int least = kMostExponent, most = kLeastExponent;
  for (const double value : values) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    if (bits == 0) continue;
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff || bits == kSign) return std::nullopt;
    const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (exponent == 0 ? 0 : uint64_t{1} << 52);
    const int place = std::max(exponent, 1) - kPoint;
    least = std::min(least, place + std::countr_zero(mantissa));
    most = std::max(most, place + static_cast<int>(std::bit_width(mantissa)));
  }
  if (most - least > kWholeBits) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t bits = std::bit_cast<uint64_t>(values[i]);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (exponent == 0 ? 0 : uint64_t{1} << 52);
    const int left = std::max(exponent, 1) - kPoint - least;
    const int64_t magnitude =
        mantissa == 0 ? 0 : static_cast<int64_t>(left < 0 ? mantissa >> -left : mantissa << left);
    whole[i] = bits >> 63 != 0 ? -magnitude : magnitude;
  }
  return least;
}

// Returns number j of the parabola.
uint64_t At(const Block& block, uint64_t j) {
  return static_cast<uint64_t>(block.base) + j * static_cast<uint64_t>(block.stride) +
         j * (j - 1) / 2 * static_cast<uint64_t>(block.curve);
}

// Returns the block whose parabola has this stride and curve and lies below all numbers. Computes its base,
// width and shift.
Block Below(std::span<const int64_t> numbers, int64_t stride, int64_t curve) {
  Block block{0, stride, curve};
  int64_t distances[kBlock];
  int64_t base = std::numeric_limits<int64_t>::max();
  for (size_t j = 0; j < numbers.size(); ++j) {
    distances[j] = static_cast<int64_t>(static_cast<uint64_t>(numbers[j]) - At(block, j));
    base = std::min(base, distances[j]);
  }
  uint64_t all_bits = 0;
  for (size_t j = 0; j < numbers.size(); ++j)
    all_bits |= static_cast<uint64_t>(distances[j]) - static_cast<uint64_t>(base);
  if (all_bits >> 63 != 0) return {};  // SQL has no unsigned integers: store the numbers themselves
  block.base = base;
  block.width = static_cast<int>(std::bit_width(all_bits));
  if (all_bits != 0) block.shift = std::countr_zero(all_bits);
  block.width -= block.shift;
  if (block.width > kMostBits) block.width = 64, block.shift = 0;
  return block;
}

// Returns the constant, the line or the parabola for which the distances need the fewest bits.
Block Fit(std::span<const int64_t> numbers) {
  Block best = Below(numbers, 0, 0);
  const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
  const uint64_t range = static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least);
  if (numbers.size() < 3 || best.width == 0 || *least < -kFarthest || *most > kFarthest || range > kSteepest)
    return best;
  const int64_t steps = static_cast<int64_t>(numbers.size()) - 1, middle = steps / 2;
  const int64_t rise = numbers[steps] - numbers[0];
  if (const Block line = Below(numbers, rise / steps, 0); line.width < best.width) best = line;
  if (range > kCurved) return best;
  // The parabola through the first, the middle and the last number.
  const int64_t curve =
      2 * (rise * middle - (numbers[middle] - numbers[0]) * steps) / (middle * steps * (steps - middle));
  const int64_t stride = (rise - curve * (steps * (steps - 1) / 2)) / steps;
  if (const Block parabola = Below(numbers, stride, curve); parabola.width < best.width) best = parabola;
  return best;
}

// Returns the block for `values`, and sets `numbers` to the integers that encode them.
Block MakeBlock(std::span<const double> values, int64_t* numbers) {
  int64_t whole[kBlock];
  Block of_whole;
  const std::optional<int> exponent = Whole(values, whole);
  if (exponent.has_value()) {
    of_whole = Fit({whole, values.size()});
    of_whole.scale = *exponent + kScaleOffset;
  }
  std::transform(values.begin(), values.end(), numbers, Fold);
  const Block of_bits = Fit({numbers, values.size()});
  if (!exponent.has_value() || of_bits.width < of_whole.width) return of_bits;
  std::copy(whole, whole + values.size(), numbers);
  return of_whole;
}

size_t BytesOf(size_t count, int width) { return (count * static_cast<size_t>(width) + 7) / 8; }

// Returns the parts of `values` that are blocks.
std::span<const double> BlockAt(std::span<const double> values, size_t block) {
  return values.subspan(block * kBlock, std::min(kBlock, values.size() - block * kBlock));
}

// Returns whether a few blocks suggest that all of them need more than `limit` bytes.
bool SeemsTooLong(std::span<const double> values, size_t blocks, size_t limit) {
  constexpr size_t kSamples = 4;
  if (blocks <= 2 * kSamples) return false;
  size_t bytes = 0, count = 0;
  int64_t numbers[kBlock];
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const std::span<const double> part = BlockAt(values, (2 * sample + 1) * blocks / (2 * kSamples));
    bytes += kHeader + BytesOf(part.size(), MakeBlock(part, numbers).width);
    count += part.size();
  }
  return bytes * values.size() > limit * count;
}

// Writes the distances of the numbers from the parabola to `to`. The buffer must be eight bytes longer
// than the result.
void Pack(const Block& block, std::span<const int64_t> numbers, char* to) {
  uint64_t waiting = 0;  // bits that do not fill a byte yet
  int bits = 0;
  for (size_t j = 0; j < numbers.size(); ++j) {
    const uint64_t distance = (static_cast<uint64_t>(numbers[j]) - At(block, j)) >> block.shift;
    waiting |= distance << bits;
    std::memcpy(to, &waiting, sizeof(waiting));
    bits += block.width;
    to += bits / 8;
    waiting = bits / 8 == sizeof(waiting) ? 0 : waiting >> (bits / 8 * 8);
    bits %= 8;
  }
}

}  // namespace

std::optional<std::string> EncodeBlocks(std::span<const double> values, size_t limit) {
  const size_t blocks = (values.size() + kBlock - 1) / kBlock;
  if (values.empty() || values.size() > kMaxChunk || blocks * kHeader > limit ||
      SeemsTooLong(values, blocks, limit))
    return std::nullopt;
  constexpr size_t kRoom = 8;  // for Pack
  std::string blob(limit + kRoom, '\0');
  size_t place = blocks * kHeader;
  for (size_t i = 0; i < blocks; ++i) {
    const std::span<const double> part = BlockAt(values, i);
    int64_t numbers[kBlock];
    const Block block = MakeBlock(part, numbers);
    const size_t bytes = BytesOf(part.size(), block.width);
    if (place + bytes > limit) return std::nullopt;
    const Header header{block.base,
                        block.stride,
                        block.curve,
                        static_cast<uint16_t>(place),
                        static_cast<uint16_t>(block.scale),
                        static_cast<uint8_t>(block.width),
                        static_cast<uint8_t>(block.shift)};
    std::memcpy(blob.data() + i * kHeader, &header, kHeader);
    if (block.width > 0) Pack(block, {numbers, part.size()}, blob.data() + place);
    place += bytes;
  }
  blob.resize(place);
  return blob;
}

bool DecodeBlocks(absl::string_view blob, size_t count, std::vector<double>& out) {
  if (count == 0 || count > kMaxChunk) return false;
  const size_t blocks = (count + kBlock - 1) / kBlock, before = out.size();
  if (blob.size() < blocks * kHeader) return false;
  out.resize(before + count);
  double* to = out.data() + before;
  for (size_t i = 0; i < blocks; ++i) {
    Header header;
    std::memcpy(&header, blob.data() + i * kHeader, kHeader);
    const size_t n = std::min(kBlock, count - i * kBlock);
    const int exponent = header.scale - kScaleOffset;
    const bool of_bits = header.scale == 0;
    if ((header.width > kMostBits && header.width != 64) || header.shift > 63 ||
        (!of_bits && (exponent < kLeastExponent || exponent > kMostExponent)) ||
        header.place + BytesOf(n, header.width) > blob.size()) {
      out.resize(before);
      return false;
    }
    const Block block{header.base, header.stride, header.curve};
    const uint64_t mask = header.width == 64 ? ~uint64_t{0} : (uint64_t{1} << header.width) - 1;
    const double power = of_bits ? 0 : std::ldexp(1.0, exponent);
    for (size_t j = 0; j < n; ++j) {
      const size_t bit = j * header.width, at = header.place + bit / 8;
      uint64_t distance = 0;
      if (at + sizeof(distance) <= blob.size())
        std::memcpy(&distance, blob.data() + at, sizeof(distance));
      else if (at < blob.size())
        std::memcpy(&distance, blob.data() + at, blob.size() - at);
      distance = distance >> bit % 8 & mask;
      const int64_t number = static_cast<int64_t>(At(block, j) + (distance << header.shift));
      *to++ = of_bits ? Unfold(number) : static_cast<double>(number) * power;
    }
  }
  return true;
}

}  // namespace scalelab::db
