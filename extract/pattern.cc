#include "extract/pattern.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "re2/re2.h"

namespace scalelab {

struct Pattern::Compiled {
  explicit Compiled(const std::string& regex) : expression(regex, re2::RE2::Quiet) {}
  re2::RE2 expression;
  int value = 1, step = 0;  // numbers of the groups; 0: there is none
};

absl::StatusOr<Pattern> Pattern::Compile(const std::string& regex) {
  auto compiled = std::make_unique<Compiled>(regex);
  const re2::RE2& expression = compiled->expression;
  if (!expression.ok()) return absl::InvalidArgumentError(expression.error());
  const auto& names = expression.NamedCapturingGroups();
  if (const auto step = names.find("step"); step != names.end()) compiled->step = step->second;
  if (const auto value = names.find("value"); value != names.end()) {
    compiled->value = value->second;
  } else if (compiled->step == 1) {
    compiled->value = 2;
  }
  if (compiled->value > expression.NumberOfCapturingGroups())
    return absl::InvalidArgumentError("it has no group for the value; put the number in parentheses");
  return Pattern(std::move(compiled));
}

Pattern::Pattern(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

bool Pattern::has_step() const { return compiled_->step != 0; }

std::optional<Pattern::Match> Pattern::Find(absl::string_view line) const {
  const int groups = compiled_->expression.NumberOfCapturingGroups() + 1;
  std::vector<re2::StringPiece> found(groups);
  const re2::StringPiece text(line.data(), line.size());
  if (!compiled_->expression.Match(text, 0, text.size(), re2::RE2::UNANCHORED, found.data(), groups))
    return std::nullopt;
  const auto of = [&found](int group) { return absl::string_view(found[group].data(), found[group].size()); };
  Match match;
  if (!absl::SimpleAtod(of(compiled_->value), &match.value)) return std::nullopt;
  if (compiled_->step == 0) return match;
  int64_t step = 0;
  if (!absl::SimpleAtoi(of(compiled_->step), &step) || step < 0) return std::nullopt;
  match.step = step;
  return match;
}

}  // namespace scalelab
