#include "client/bundle/file_comparison.h"

#include <algorithm>
#include <utility>

namespace scalelab::client {

// Reads the next piece of the file if all bytes of the last one were compared. Returns false at the end of
// the file.
bool FileComparison::Fill() {
  constexpr int64_t kPieceBytes = 256 << 10;
  if (at_ < piece_.size()) return true;
  if (next_ == end_ || !status_.ok()) return false;
  auto piece = bundle_.ReadAt(next_, std::min(end_ - next_, kPieceBytes));
  if (!piece.ok()) {
    status_ = piece.status();
    return false;
  }
  piece_ = *std::move(piece);
  next_ += static_cast<int64_t>(piece_.size());
  at_ = 0;
  return true;
}

std::streamsize FileComparison::xsputn(const char* text, std::streamsize size) {
  std::streamsize done = 0;
  while (done < size && !differs_) {
    if (!Fill()) {
      differs_ = true;
      break;
    }
    const auto count = std::min(size - done, static_cast<std::streamsize>(piece_.size() - at_));
    const char* const from = piece_.data() + at_;
    const char* const differing = std::mismatch(from, from + count, text + done).first;
    line_ += std::count(from, differing, '\n');
    differs_ = differing != from + count;
    at_ += static_cast<size_t>(count);
    done += count;
  }
  return size;  // the rest of the text does not matter after a difference
}

FileComparison::int_type FileComparison::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
  const char text = traits_type::to_char_type(character);
  xsputn(&text, 1);
  return character;
}

absl::StatusOr<int64_t> FileComparison::FirstDifference() {
  if (!differs_ && Fill()) differs_ = true;  // the file has more
  if (!status_.ok()) return status_;
  return differs_ ? line_ : 0;
}

}  // namespace scalelab::client
