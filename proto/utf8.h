// Validates UTF-8. Protobuf rejects strings that are not valid UTF-8, so text from files and the operating
// system is checked first.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the number of bytes of the character at text[i]; 0 if it is not valid (truncated, overlong, a
// surrogate, beyond U+10FFFF).
size_t Utf8Length(absl::string_view text, size_t i);

// Returns the longest beginning of `text` that has at most `limit` bytes and does not end inside a character.
absl::string_view CutUtf8(absl::string_view text, size_t limit);

// Returns `text` with a '?' for each byte that is not part of a valid character.
std::string ValidUtf8(absl::string_view text);

}  // namespace scalelab
