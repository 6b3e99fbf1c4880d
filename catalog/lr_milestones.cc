#include "catalog/lr_milestones.h"

#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "catalog/run_parameters.h"

namespace scalelab {

std::optional<std::vector<double>> ParseLrMilestones(absl::string_view text) {
  std::vector<double> milestones;
  if (text.empty()) return milestones;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    // from_chars also accepts "-1", "inf", "1." and ".5".
    if (word.empty() || !absl::ascii_isdigit(word.front()) || !absl::ascii_isdigit(word.back()))
      return std::nullopt;
    double epoch = 0;
    const char* const end = word.data() + word.size();
    const auto [rest, error] = std::from_chars(word.data(), end, epoch, std::chars_format::fixed);
    const double least = milestones.empty() ? 0 : milestones.back();
    if (error != std::errc() || rest != end || epoch <= least) return std::nullopt;
    milestones.push_back(epoch);
  }
  return milestones;
}

std::string LrMilestonesMistake(absl::string_view lr_milestones, absl::string_view lr_schedule,
                                double epochs) {
  const std::optional<std::vector<double>> milestones = ParseLrMilestones(lr_milestones);
  if (!milestones)
    return absl::StrCat("lr_milestones must be ", kLrMilestonesForm, ", not '", lr_milestones.substr(0, 60),
                        "'");
  if (milestones->empty()) return "";
  if (lr_schedule != "step") {
    return absl::StrCat("lr_milestones is for lr_schedule step, not ", lr_schedule,
                        "; set lr_schedule: step, or remove lr_milestones");
  }
  if (milestones->back() >= epochs) {
    return absl::StrCat("the last of lr_milestones, ", ShowNumber(milestones->back()),
                        ", must be less than epochs, ", ShowNumber(epochs),
                        "; set more epochs, or earlier milestones");
  }
  return "";
}

}  // namespace scalelab
