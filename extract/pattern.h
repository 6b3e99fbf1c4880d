// A regular expression that finds a figure in a line of a program's output.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

class Pattern {
 public:
  struct Match {
    double value = 0;
    std::optional<int64_t> step;  // of the group "step"
  };

  // Returns INVALID_ARGUMENT with what is wrong if the expression is not valid, or has no group for the value.
  static absl::StatusOr<Pattern> Compile(const std::string& regex);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Returns the first match in the line. Nothing if there is none, or if a group is not a number.
  std::optional<Match> Find(absl::string_view line) const;
  bool has_step() const;

 private:
  struct Compiled;
  explicit Pattern(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace scalelab
