#include "db/point_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "db/block_codec.h"

namespace scalelab::db {
namespace {

// Numbers are stored in their memory representation.
static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");

constexpr double kPowers[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};

// Blocks are tried if there are at least kFewestInBlocks numbers that need at least kFewestBytes bytes each.
// They are used if they save at least 1 / kSaving of the space.
constexpr size_t kFewestInBlocks = 32, kFewestBytes = 4, kSaving = 16;

// Packs `distances`. Each number gets the same, smallest possible number of bytes, without the low zero bits
// that all of them have in common.
void Pack(std::span<const uint64_t> distances, uint64_t all_bits, Frame& frame) {
  if (all_bits == 0) return;
  frame.shift = std::countr_zero(all_bits);
  const size_t width = (std::bit_width(all_bits >> frame.shift) + 7) / 8;
  frame.bytes.resize(distances.size() * width + sizeof(uint64_t));
  char* out = frame.bytes.data();
  for (const uint64_t distance : distances) {
    const uint64_t stored = distance >> frame.shift;
    std::memcpy(out, &stored, sizeof(stored));  // the next number overwrites the bytes beyond `width`
    out += width;
  }
  frame.bytes.resize(distances.size() * width);
}

// Encodes with stride 0.
Frame EncodeLevel(std::span<const int64_t> values) {
  Frame frame;
  if (values.empty()) return frame;
  frame.base = *std::min_element(values.begin(), values.end());
  std::vector<uint64_t> distances(values.size());
  uint64_t all_bits = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    distances[i] = static_cast<uint64_t>(values[i]) - static_cast<uint64_t>(frame.base);
    all_bits |= distances[i];
  }
  if (all_bits >> 63 != 0) {
    // SQL has no unsigned integers: store the numbers themselves.
    frame.base = 0;
    std::transform(values.begin(), values.end(), distances.begin(),
                   [](int64_t v) { return static_cast<uint64_t>(v); });
    all_bits = std::numeric_limits<uint64_t>::max();
  }
  Pack(distances, all_bits, frame);
  return frame;
}

// Encodes with the stride from the first to the last number. Returns nothing if a sum could overflow.
std::optional<Frame> EncodeSlope(std::span<const int64_t> values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (static_cast<uint64_t>(*most) - static_cast<uint64_t>(*least) > uint64_t{1} << 61) return std::nullopt;
  const int64_t first = values.front(), steps = static_cast<int64_t>(values.size()) - 1;
  Frame frame;
  frame.stride = (values.back() - first) / steps;
  int64_t lowest = 0;  // the first number lies on the line
  for (int64_t i = 1; i <= steps; ++i) lowest = std::min(lowest, values[i] - first - i * frame.stride);
  int64_t end = 0;
  if (__builtin_add_overflow(first, lowest, &frame.base) ||
      __builtin_add_overflow(frame.base, steps * frame.stride, &end)) {
    return std::nullopt;
  }
  std::vector<uint64_t> distances(values.size());
  uint64_t all_bits = 0;
  for (int64_t i = 0; i <= steps; ++i) {
    distances[i] = static_cast<uint64_t>(values[i] - first - i * frame.stride - lowest);
    all_bits |= distances[i];
  }
  Pack(distances, all_bits, frame);
  return frame;
}

// Returns the smallest power of ten from a list that turns all values into whole numbers exactly, or nothing if there is none.
std::optional<int> Decimals(std::span<const double> values, std::vector<int64_t>& whole) {
  constexpr double kExact = 9007199254740992;  // 2^53
  whole.resize(values.size());
  int power = 0;
  for (size_t i = 0; i < values.size();) {
    const double scaled = std::nearbyint(values[i] * kPowers[power]);
    if (std::abs(scaled) < kExact) {  // and no NaN
      whole[i] = static_cast<int64_t>(scaled);
      const double decoded = static_cast<double>(whole[i]) / kPowers[power];
      if (std::bit_cast<int64_t>(decoded) == std::bit_cast<int64_t>(values[i])) {
        ++i;
        continue;
      }
    }
    power += 3;
    if (power > 9) return std::nullopt;
    i = 0;
  }
  return power;
}

// Returns the number of bytes of each distance; nothing if the frame cannot be decoded.
std::optional<size_t> WidthOf(const StoredFrame& frame, size_t count) {
  if (count == 0 || count > kMaxChunk || frame.bytes.size() % count != 0) return std::nullopt;
  const size_t width = frame.bytes.size() / count;
  if (width > sizeof(uint64_t) || frame.shift < 0 || frame.shift > 63) return std::nullopt;
  return width;
}

// Calls `take` with each number.
template <class Take>
void Unpack(const StoredFrame& frame, size_t count, size_t width, const Take& take) {
  const char* in = frame.bytes.data();
  // The first `fast` numbers are followed by enough bytes to read eight at once.
  const size_t fast = width == 0 || frame.bytes.size() < 8 ? 0 : (frame.bytes.size() - 8) / width + 1;
  const uint64_t mask = width == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * width) - 1;
  uint64_t line = static_cast<uint64_t>(frame.base);
  for (size_t i = 0; i < count; ++i, in += width, line += static_cast<uint64_t>(frame.stride)) {
    uint64_t distance = 0;
    if (width != 0) std::memcpy(&distance, in, i < fast ? sizeof(distance) : width);
    take(i, static_cast<int64_t>(line + ((distance & mask) << frame.shift)));
  }
}

}  // namespace

Frame EncodeInts(std::span<const int64_t> values) {
  if (values.size() > 1) {
    if (std::optional<Frame> frame = EncodeSlope(values)) return *std::move(frame);
  }
  return EncodeLevel(values);
}

Frame EncodeTimes(std::span<const double> values) {
  // The bits of positive doubles, read as integers, increase with the value, and in proportion to it while
  // the exponent is the same. Unix times have the same exponent from 2004 to 2038.
  std::vector<int64_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size_bytes());
  return EncodeInts(bits);
}

Frame EncodeValues(std::span<const double> values, int& kind) {
  std::vector<int64_t> numbers;
  if (const std::optional<int> power = Decimals(values, numbers)) {
    kind = kDecimal + *power;
  } else {
    kind = kBits;
    numbers.resize(values.size());
    std::memcpy(numbers.data(), values.data(), values.size_bytes());
  }
  Frame frame = EncodeLevel(numbers);
  if (values.size() < kFewestInBlocks || frame.bytes.size() < kFewestBytes * values.size()) return frame;
  std::optional<std::string> blocks = EncodeBlocks(values, frame.bytes.size() - frame.bytes.size() / kSaving);
  if (!blocks.has_value()) return frame;
  kind = kBlocks;
  return {0, 0, 0, *std::move(blocks)};
}

bool DecodeInts(const StoredFrame& frame, size_t count, std::vector<int64_t>& out) {
  const std::optional<size_t> width = WidthOf(frame, count);
  if (!width.has_value()) return false;
  out.resize(out.size() + count);
  int64_t* const to = out.data() + out.size() - count;
  Unpack(frame, count, *width, [to](size_t i, int64_t v) { to[i] = v; });
  return true;
}

bool DecodeDoubles(const StoredFrame& frame, int64_t kind, size_t count, std::vector<double>& out) {
  if (kind == kBlocks) return frame.base == 0 && frame.shift == 0 && DecodeBlocks(frame.bytes, count, out);
  const std::optional<size_t> width = WidthOf(frame, count);
  if (!width.has_value() || kind < kBits || kind > kMaxKind) return false;
  out.resize(out.size() + count);
  double* const to = out.data() + out.size() - count;
  if (kind == kBits) {
    Unpack(frame, count, *width, [to](size_t i, int64_t v) { to[i] = std::bit_cast<double>(v); });
  } else {
    const double power = kPowers[kind - kDecimal];
    Unpack(frame, count, *width,
           [to, power](size_t i, int64_t v) { to[i] = static_cast<double>(v) / power; });
  }
  return true;
}

bool AppendInts(absl::string_view bytes, size_t count, std::vector<int64_t>& out) {
  if (count == 0 || count > kMaxChunk) return false;
  if (bytes.size() == count * sizeof(int64_t)) {
    out.resize(out.size() + count);
    std::memcpy(out.data() + out.size() - count, bytes.data(), bytes.size());
    return true;
  }
  uint64_t terms[2];
  if (bytes.size() != sizeof(terms) || count < 2) return false;
  std::memcpy(terms, bytes.data(), sizeof(terms));
  uint64_t term = terms[0];
  for (size_t i = 0; i < count; ++i, term += terms[1] - terms[0]) out.push_back(static_cast<int64_t>(term));
  return true;
}

bool AppendDoubles(absl::string_view bytes, size_t count, std::vector<double>& out) {
  if (count == 0 || count > kMaxChunk || bytes.size() != count * sizeof(double)) return false;
  out.resize(out.size() + count);
  std::memcpy(out.data() + out.size() - count, bytes.data(), bytes.size());
  return true;
}

}  // namespace scalelab::db
