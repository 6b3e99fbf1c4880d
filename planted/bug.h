// Planted bugs: bugs.def lists them, and tests/planted/find_bugs.py checks that the tests find each one.
#pragma once

#include "planted/option.h"

#ifdef SCALELAB_PLANTED_BUGS
#include <cstdio>
#include <cstdlib>
#include <string_view>
#endif

namespace scalelab {

enum class Bug {
#define SCALELAB_BUG(name, suites, text) k##name,
#include "planted/bugs.def"
#undef SCALELAB_BUG
};

#ifdef SCALELAB_PLANTED_BUGS

// Returns whether this process has the bug: whether the environment variable SCALELAB_PLANTED_BUG names it.
inline bool Planted(Bug bug) {
  static const int planted = [] {
    const char* const name = std::getenv("SCALELAB_PLANTED_BUG");
    if (name == nullptr || *name == '\0') return -1;
    int number = 0;
    for (const std::string_view known : {
#define SCALELAB_BUG(name, suites, text) #name,
#include "planted/bugs.def"
#undef SCALELAB_BUG
         }) {
      if (known == name) return number;
      ++number;
    }
    std::fprintf(stderr, "SCALELAB_PLANTED_BUG is %s, which planted/bugs.def does not have\n", name);
    std::abort();
  }();
  return planted == static_cast<int>(bug);
}

#else

// Without the build option SCALELAB_PLANTED_BUGS, a program has none of the bugs: the compiler removes them.
consteval bool Planted(Bug) { return false; }

#endif

}  // namespace scalelab
