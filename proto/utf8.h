// Validates UTF-8. Protobuf rejects strings that are not valid UTF-8, so text from files and the operating
// system is checked first.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the number of bytes of the character at text[i]; 0 if it is not valid (truncated, overlong, a
// surrogate, beyond U+10FFFF).
size_t Utf8Length(absl::string_view text, size_t i);

}  // namespace scalelab
