#include "db/point_codec.h"

#include <bit>
#include <cstring>

namespace scalelab::db {

// Vectors are stored in their memory representation.
static_assert(std::endian::native == std::endian::little, "stored numbers are little-endian");

size_t StoredInts(const int64_t* values, size_t count) {
  if (count <= 2) return count;
  const auto difference = [values](size_t i) {  // unsigned, because it may wrap, as the reader's sum does
    return static_cast<uint64_t>(values[i]) - static_cast<uint64_t>(values[i - 1]);
  };
  const uint64_t stride = difference(1);
  for (size_t i = 2; i < count; ++i) {
    if (difference(i) != stride) return count;
  }
  return 2;
}

bool AppendInts(const void* data, size_t bytes, size_t count, std::vector<int64_t>& out) {
  const size_t at = out.size();
  if (bytes == count * sizeof(int64_t)) {
    out.resize(at + count);
    if (bytes != 0) std::memcpy(out.data() + at, data, bytes);
    return true;
  }
  if (bytes != 2 * sizeof(int64_t) || count < 2) return false;
  uint64_t terms[2];
  std::memcpy(terms, data, sizeof(terms));
  out.resize(at + count);
  uint64_t term = terms[0];
  for (size_t i = 0; i < count; ++i, term += terms[1] - terms[0]) out[at + i] = static_cast<int64_t>(term);
  return true;
}

bool AppendDoubles(const void* data, size_t bytes, size_t count, std::vector<double>& out) {
  if (bytes != count * sizeof(double)) return false;
  const size_t at = out.size();
  out.resize(at + count);
  if (bytes != 0) std::memcpy(out.data() + at, data, bytes);
  return true;
}

}  // namespace scalelab::db
