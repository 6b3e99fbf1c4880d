#include "proto/json_depth.h"

#include <cstddef>

namespace scalelab {

bool IsDeeplyNested(absl::string_view json) {
  constexpr int kMaxDepth = 100;
  int depth = 0;
  char quote = 0;  // the quote that ends the current string; 0 outside of strings
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quote != 0) {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace scalelab
