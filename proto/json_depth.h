// Limits the depth of JSON. protobuf's parser has a limit for objects and none for arrays, and the time that it needs
// for nested arrays grows with the square of their depth.
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns whether arrays and objects of a JSON text are nested more than 100 deep. The text may have strings in single
// quotes, which protobuf's parser accepts.
bool IsDeeplyNested(absl::string_view json);

}  // namespace scalelab
