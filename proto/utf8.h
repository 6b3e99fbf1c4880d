// Which bytes are text: protobuf refuses strings that are not valid UTF-8, so whatever comes from a file or
// an operating system is looked at first.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace scalelab {

// Bytes of the character that starts at text[i]; 0 when no valid one does (cut short, overlong, a surrogate,
// beyond U+10FFFF).
size_t Utf8Length(absl::string_view text, size_t i);

}  // namespace scalelab
