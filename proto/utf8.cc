#include "proto/utf8.h"

namespace scalelab {

size_t Utf8Length(absl::string_view text, size_t i) {
  auto byte = [&](size_t at) -> unsigned char { return at < text.size() ? text[at] : 0; };
  auto continues = [&](size_t at) { return (byte(at) & 0xC0) == 0x80; };
  unsigned char c = byte(i), d = byte(i + 1);
  if (i >= text.size()) return 0;
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return continues(i + 1) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    if ((c == 0xE0 && d < 0xA0) || (c == 0xED && d > 0x9F)) return 0;
    return continues(i + 1) && continues(i + 2) ? 3 : 0;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if ((c == 0xF0 && d < 0x90) || (c == 0xF4 && d > 0x8F)) return 0;
    return continues(i + 1) && continues(i + 2) && continues(i + 3) ? 4 : 0;
  }
  return 0;
}

absl::string_view CutUtf8(absl::string_view text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit;
  // A byte 10xxxxxx continues a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string ValidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    if (length == 0) {
      valid.push_back('?');
      ++i;
    } else {
      valid.append(text.data() + i, length);
      i += length;
    }
  }
  return valid;
}

}  // namespace scalelab
