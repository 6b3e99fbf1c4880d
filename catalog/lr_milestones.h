// The run parameter lr_milestones, such as "30,60,80": epochs at which the learning rate is divided by 10.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

// Describes the values of lr_milestones, as the end of the sentence "lr_milestones must be ...".
inline constexpr absl::string_view kLrMilestonesForm =
    "a text with epochs greater than 0 in ascending order without spaces, such as \"30,60,80\"";

// Returns the epochs of a text such as "30,60,80" or "2.5"; none for an empty text, which means "not set".
// Returns nothing if the text does not have this form. worker/adapters/scalelab/spec.py has the same rule.
std::optional<std::vector<double>> ParseLrMilestones(absl::string_view text);

// Returns what is wrong with a run that has these values, as one sentence; "" if nothing is wrong.
std::string LrMilestonesMistake(absl::string_view lr_milestones, absl::string_view lr_schedule,
                                double epochs);

}  // namespace scalelab
